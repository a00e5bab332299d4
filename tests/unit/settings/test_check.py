"""`homing check`: tells files apart by their keys, and reports everything of all of them."""

from pathlib import Path

import pytest
from support.certificates import Authority

from router.settings.check import check_files, schema
from router.settings.credentials import load_secrets
from router.settings.load import load_config

TREE = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(environ: dict[str, str] | None = None, **files: str):
    paths = []
    for name, text in files.items():
        paths.append(Path(f"{name}.yaml"))
        paths[-1].write_text(text)
    return check_files(paths, environ or {})


def test_what_is_shipped_has_no_faults(monkeypatch):
    monkeypatch.chdir(TREE)
    found = check_files(
        [*sorted(Path("policies").glob("*.yaml")), *sorted(Path("config").glob("*.yaml"))], {}
    )
    assert found.faults == ()
    assert not any(notice.startswith("policies/") for notice in found.notices)


def test_the_shipped_example_starts_as_it_is(monkeypatch):
    monkeypatch.chdir(TREE)
    example = load_config(Path("config/router.yaml"))
    assert load_secrets(example, {}).keys is None


def test_kinds_of_file_are_told_apart_by_their_keys(folder):
    found = check(
        policy="version: 1\npolicy: p\n",
        strategy="version: 1\nstrategy: ring\n",
        config="version: 1\nlisten: x\n",
        keys="version: 1\nkeys: []\n",
    )
    assert found.faults == (
        "policy.yaml:1: 'strategy' is missing",
        "strategy.yaml:1: 'policy' is missing",
        "config.yaml:2: listen: 'x' is not host:port; write 127.0.0.1:8080 or [::1]:8080",
        "keys.yaml:2: keys: must not be empty",
    )


def test_a_policy_at_fault_is_reported_once_though_two_files_lead_to_it(folder):
    found = check(p="version: 1\npolicy: p\nstrategy: x\n", c="version: 1\npolicies: [p.yaml]\n")
    assert len(found.faults) == 1


def test_a_secret_that_this_machine_lacks_is_a_notice(folder):
    found = check(
        c="version: 1\npolicies: [ring]\naccess: {keys_file: nowhere}\nreplicas: [{name: a, url: http://a}]\n"
    )
    assert found.faults == ()
    assert found.notices == (
        "c.yaml:3: access.keys_file: no file 'nowhere' (here; `homing serve` would refuse to start)",
    )


def test_a_secret_that_is_there_and_wrong_is_a_fault(folder):
    Path("keys").write_text("version: 1\nkeys: [{tenant: a, key: 'hunter 2'}]\n")
    found = check(c="version: 1\npolicies: [ring]\naccess: {keys_file: keys}\n")
    assert found.faults == (
        "keys:2: keys[0]: key has a space, a control character or a letter outside ASCII",
    )


def test_certificates_are_tried_and_missing_ones_are_a_notice(folder):
    authority = Authority(folder)
    authority.files("one")
    authority.files("two")
    replicas = "replicas: [{name: a, url: http://a}]"
    one = check(c=f"version: 1\npolicies: [ring]\n{replicas}\ntls:\n  cert: one.crt\n  key: two.key\n")
    assert one.faults == ("c.yaml:5: tls: the key 'two.key' is not the key of the certificate 'one.crt'",)
    two = check(c=f"version: 1\npolicies: [ring]\n{replicas}\ntls:\n  cert: gone.crt\n  key: one.key\n")
    assert two.faults == ()
    assert two.notices == (
        "c.yaml:5: tls.cert: no file 'gone.crt' (here; `homing serve` would refuse to start)",
    )
    assert check(c="version: 1\npolicies: [ring]\ntls: {cert: one.crt}\n").faults == (
        "c.yaml:3: tls: 'key' is missing",
    )


def test_a_keys_file_at_fault_is_not_quoted(folder):
    assert check(k="version: 1\nkeys:\n  - {tenant: a, hunter2: x, key: y}\n").faults == (
        "k.yaml:3: keys[0]: unknown key; there is key, sha256, tenant",
    )


def test_a_keys_file_that_is_no_yaml_is_not_quoted(folder):
    assert check(k="version: 1\nkeys: [*hunter2]\n").faults == ("k.yaml:2: is not valid YAML",)
    assert check(c="version: 1\nlisten: *x\n").faults == (
        "c.yaml:2: is not valid YAML: found undefined alias 'x'",
    )


def test_a_config_without_replicas_is_worth_a_word(folder):
    assert check(c="version: 1\npolicies: [ring]\n").notices == (
        "c.yaml:1: no replicas are named: every request is refused until `--replica` names one",
    )


def test_a_missing_file_is_a_fault(folder):
    assert check_files([Path("x.yaml")], {}).faults == ("x.yaml: cannot be read: No such file or directory",)


def test_the_schema_describes_each_kind_and_writes_defaults_as_files_do():
    described = schema()
    assert [ref["$ref"] for ref in described["anyOf"]] == [
        "#/$defs/RouterConfig",
        "#/$defs/Policy",
        "#/$defs/KeysFile",
        "#/$defs/AgentFile",
        "#/$defs/GatewayFile",
    ]
    kinds = described["$defs"]
    assert kinds["RouterConfig"]["additionalProperties"] is False
    assert kinds["RouterConfig"]["required"] == ["version"]
    assert kinds["Policy"]["required"] == ["version", "policy", "strategy"]
    assert kinds["Limits"]["properties"]["body"]["default"] == "64MiB"
    assert kinds["Limits"]["properties"]["first_byte"]["default"] == "10m"
    assert kinds["Admin"]["properties"]["listen"]["default"] == "127.0.0.1:9090"
    assert kinds["Overload"]["properties"]["in_flight"]["default"] == "auto"


def test_a_file_of_replicas_is_checked_with_the_config_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("version: 1\ndiscovery: {file: replicas.yaml}\n")
    found = check_files([Path("c.yaml")], {})
    assert found.faults == ()
    assert found.notices == ("c.yaml:2: discovery.file: no file 'replicas.yaml' (here; it may come later)",)
    Path("replicas.yaml").write_text("version: 1\nreplicas: [{name: a}]\n")
    found = check_files([Path("c.yaml"), Path("replicas.yaml")], {})
    assert found.faults == ("replicas.yaml:2: replicas[0]: 'url' is missing",)
