"""What differs between two settings, in words; what of it a running router cannot take up."""

import pytest
from support.certificates import Authority

from router.settings.compare import Settings, differences, refused_changes
from router.settings.credentials import load_secrets
from router.settings.load import load_config

BASE = 'version: 1\nreplicas:\n  - {name: a, url: "http://a:8000"}\n  - {name: b, url: "http://b:8000"}\n'


@pytest.fixture
def settings(tmp_path):
    def make(text=BASE, environ=None, policy=""):
        (tmp_path / "own.yaml").write_text(f"version: 1\npolicy: own\nstrategy: ring\n{policy}")
        path = tmp_path / "router.yaml"
        path.write_text(text + "policies: [own.yaml]\n")
        loaded = load_config(path)
        return Settings(loaded, load_secrets(loaded, environ or {}))

    return make


def test_settings_that_say_the_same_do_not_differ(settings):
    other = (
        'version: 1\nreplicas:\n  - {url: "http://b:8000/", name: b}\n  - {name: a, url: "http://a:8000"}\n'
    )
    assert differences(settings(), settings(other + "limits: {body: 64MiB}\n")) == ()


def test_replicas_are_told_apart_by_name(settings):
    after = settings('version: 1\nreplicas:\n  - {name: b, url: "http://b:9000"}\n')
    changes = differences(settings(), after)
    assert "replicas[b].url: http://b:8000 → http://b:9000" in changes
    assert "replicas[a].url: http://a:8000 → nothing" in changes
    assert not any("replicas[b]" in change and "url" not in change for change in changes)


def test_policies_are_compared_by_value(settings):
    changes = differences(settings(), settings(policy="session: {idle: 5m}\nplace: {vnodes: 10}\n"))
    assert changes == ("policy own.session.idle: 30m → 5m", "policy own.place.vnodes: 160 → 10")


def test_a_long_value_is_cut(settings):
    hosts = ", ".join(f"a-long-name-{number}.example" for number in range(30))
    [change] = differences(settings(), settings(BASE + f"admin: {{hosts: [{hosts}]}}\n"))
    assert change.endswith("…")
    assert len(change) < 200


def test_secrets_are_compared_and_not_shown(settings):
    before = settings(environ={"HOMING_API_KEYS": "acme=key-one"})
    after = settings(environ={"HOMING_API_KEYS": "acme=key-two"})
    assert differences(before, after) == ("access.keys_file: changed",)
    assert differences(before, settings(environ={"HOMING_API_KEYS": "acme=key-one"})) == ()


def test_certificate_authorities_differ_by_what_they_say(tmp_path, settings):
    text = BASE.replace('http://b:8000"', 'https://b:8000", ca: ca.pem')
    first = Authority(tmp_path).path.read_bytes()
    before = settings(text)
    (tmp_path / "ca.pem").write_bytes(first)
    assert differences(before, settings(text)) == ()
    Authority(tmp_path)
    assert differences(before, settings(text)) == ("the replicas' certificate authorities: changed",)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("listen: 127.0.0.1:8081\n", "listen"),
        ("admin: {listen: 127.0.0.1:9091}\n", "admin"),
        ("telemetry: {trace_sample: 0.5}\n", "telemetry"),
    ],
)
def test_what_makes_another_router_needs_a_restart(settings, more, key):
    [fault] = refused_changes(settings(), settings(BASE + more))
    assert fault.line == 5
    assert fault.what == f"{key}: cannot change while the router runs; restart it"


def test_the_secret_and_the_admin_token_need_a_restart(settings):
    faults = refused_changes(settings(), settings(environ={"HOMING_SECRET": "s", "HOMING_ADMIN_TOKEN": "t"}))
    assert [fault.what.split(":")[0] for fault in faults] == ["access.secret_file", "admin.token_file"]
    assert "restart" in faults[0].what


def test_the_headers_for_a_collector_may_change_and_are_not_shown(settings):
    text = BASE + 'telemetry: {otlp: "http://c:4318"}\n'
    before, after = (settings(text, {"HOMING_OTLP_HEADERS": f"key={key}"}) for key in ("one", "two"))
    assert differences(before, after) == ("telemetry.otlp_headers_file: changed",)
    assert refused_changes(before, after) == ()


def test_what_may_change_is_not_refused(settings):
    after = settings(
        "version: 1\nreplicas: []\nlimits: {body: 1MiB}\nprobe: {interval: 9s}\n",
        {"HOMING_API_KEYS": "acme=k"},
        "overload: {kv_usage: 0.5}\n",
    )
    assert refused_changes(settings(), after) == ()


def test_a_shadow_may_be_replaced_and_not_begun_or_ended(settings):
    one, other, none = settings(BASE + "shadow: ring\n"), settings(BASE + "shadow: prefix\n"), settings()
    assert refused_changes(one, other) == ()
    assert "shadow: ring → prefix" in differences(one, other)
    for before, after in ((none, one), (one, none)):
        [fault] = refused_changes(before, after)
        assert fault.what.startswith("shadow: one can be replaced while the router runs")
