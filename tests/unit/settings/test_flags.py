"""Flags alone make a config; over a file they add and replace."""

from pathlib import Path

import pytest

from router.base.errors import SettingsError
from router.settings.fields import Address
from router.settings.flags import config_from_flags
from router.settings.load import load_config


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        """\
version: 1
listen: 0.0.0.0:80
admin: {listen: 127.0.0.1:90, token_file: t}
policies: [ring]
routes: [{match: {model: m}, policy: prefix}]
replicas: [{name: a, url: http://a:1}]
"""
    )
    return load_config(Path("c.yaml"))


def faults(*args, **kwargs) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        config_from_flags(*args, **kwargs)
    return caught.value.faults


def test_replicas_are_named_in_order():
    loaded = config_from_flags(["http://a:8000", "http://b:8000/"])
    assert [(replica.name, replica.url) for replica in loaded.value.replicas] == [
        ("r0", "http://a:8000"),
        ("r1", "http://b:8000"),
    ]


def test_no_flags_give_the_defaults():
    loaded = config_from_flags()
    assert loaded.value.replicas == ()
    assert [policy.value.policy for policy in loaded.policies] == ["home"]
    assert (loaded.value.listen, loaded.value.admin.listen) == (
        Address("127.0.0.1", 8080),
        Address("127.0.0.1", 9090),
    )


def test_flags_set_addresses_and_the_policy():
    loaded = config_from_flags([], "least-loaded", "0.0.0.0:1", "127.0.0.1:2")
    assert [policy.value.policy for policy in loaded.policies] == ["least-loaded"]
    assert str(loaded.value.listen) == "0.0.0.0:1"
    assert str(loaded.value.admin.listen) == "127.0.0.1:2"


def test_the_notices_of_the_users_own_policy_come_along(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("version: 1\npolicy: own\nstrategy: ring\nprice: {move: 0}\n")
    assert len(config_from_flags([], str(own)).notices) == 1
    assert config_from_flags([], "home").notices == ()


def test_over_a_file_flags_add_replicas_and_put_their_policy_first(base):
    loaded = config_from_flags(["http://b:1"], "least-loaded", None, "127.0.0.1:91", base=base)
    assert [replica.name for replica in loaded.value.replicas] == ["a", "r0"]
    assert [policy.value.policy for policy in loaded.policies] == ["least-loaded", "ring", "prefix"]
    assert str(loaded.value.listen) == "0.0.0.0:80"
    assert str(loaded.value.admin.listen) == "127.0.0.1:91"
    assert loaded.value.admin.token_file == "t"
    assert loaded.folder == base.folder


def test_a_policy_of_a_listed_name_takes_its_place_and_routes_follow(base):
    loaded = config_from_flags(policy="prefix", base=base)
    assert [policy.value.policy for policy in loaded.policies] == ["prefix", "ring"]


def test_over_a_file_no_flags_change_nothing(base):
    assert config_from_flags(base=base) == base


def test_every_fault_is_reported_at_once(base):
    Path("two.yaml").write_text(
        "version: 1\nreplicas: [{name: r1, url: http://x:1}, {name: a, url: http://a:1}]\n"
    )
    two = load_config(Path("two.yaml"))
    assert faults(["localhost:1", "http://y:1", "http://a:1"], "hom", "1", "h:99999", base=two) == [
        "--replica: 'localhost:1' has no scheme; write http://localhost:1",
        "--replica: 'http://y:1' would be called r1, as a replica of the file already is",
        "--replica: 'http://a:1' is already replica a",
        "--policy: no policy 'hom' is shipped; did you mean 'home'?",
        "--listen: '1' is not host:port; write 127.0.0.1:8080 or [::1]:8080",
        "--admin: port 99999 is out of range: 0 to 65535",
    ]


def test_the_ports_must_differ():
    assert faults(listen="127.0.0.1:9090") == [
        "--listen: 127.0.0.1:9090 is also the admin port's address; give each its own"
    ]
    assert faults(listen="0.0.0.0:5", admin="127.0.0.1:5") == [
        "--listen: 0.0.0.0:5 is also the admin port's address; give each its own"
    ]
    assert config_from_flags(listen="127.0.0.1:0", admin="127.0.0.1:0").value.listen.port == 0


def test_flags_leave_the_shadow_policy_of_the_file(base):
    Path("c.yaml").write_text(Path("c.yaml").read_text() + "shadow: least-loaded\n")
    loaded = config_from_flags(base=load_config(Path("c.yaml")), policy="home")
    assert loaded.shadow is not None
    assert loaded.shadow.value.policy == "least-loaded"
    assert config_from_flags(base=base).shadow is None
