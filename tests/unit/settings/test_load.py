"""Config and policy files: the designed ones load as they are, and each fault has its line and its words."""

import textwrap
from pathlib import Path

import pytest

from router.base.errors import SettingsError
from router.settings.fields import Address
from router.settings.load import load_config, load_policy
from router.settings.locate import shipped_policies

# The two examples of the design, to the letter.
DESIGNED_CONFIG = """\
# config/router.yaml
version: 1
listen: 0.0.0.0:8080
admin: {listen: 127.0.0.1:9090}
policies: [policies/home.yaml]            # first is the default; routes below may name others
routes: [{match: {path: /v1/embeddings}, policy: least-loaded}]
replicas:
  - {name: a, url: http://10.0.0.1:8000, kv_agent: 10.0.0.1:7710, kv_events: tcp://10.0.0.1:5561}
discovery: {}                             # file | dns | kubernetes, see docs
access: {keys_file: /run/secrets/keys.yaml, tenant_header: null}   # tenant_header only behind a trusted gateway
limits: {body: 64MiB, held_bytes: 2GiB, head: 64KiB, first_byte: 10m, idle: 75s}
telemetry: {otlp: null, trace_sample: 0.1, access_log: null}
"""  # noqa: E501

DESIGNED_POLICY = """\
# policies/home.yaml
version: 1
policy: home
session: {headers: [x-session-id, x-claude-code-session-id, session-id], body: [prompt_cache_key, metadata.session_id], derive: true, idle: 30m}
strategy: priced        # priced | ring | bounded-ring | prefix | least-loaded | two-choices | round-robin
place: {vnodes: 160, bound: {relative: 1.1, absolute: 50000}}     # tokens of living sessions
price:
  prefill: {seed_tokens_per_s: 8000}
  pull: {enabled: true, min_tokens: 512, stall: 150ms, deadline: 2s}
  move: 50ms
queue: {order: least-missing, ageing: 0.02, horizon: auto, max: 4096, wait: 5m}    # order: engine = dispatch at once, FIFO in the engine
overload: {in_flight: auto, kv_usage: 0.98}
"""  # noqa: E501


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, with `config/` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    return tmp_path


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def config_faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_config(write("c.yaml", text))
    return caught.value.faults


def policy_faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_policy(str(write("p.yaml", text)))
    return caught.value.faults


def test_the_designed_files_load_as_they_are(folder):
    write("policies/home.yaml", DESIGNED_POLICY)
    loaded = load_config(write("config/router.yaml", DESIGNED_CONFIG))
    config = loaded.value
    assert config.listen == Address("0.0.0.0", 8080)
    assert config.limits.held_bytes == 2 << 30
    assert config.limits.first_byte == 600.0
    assert config.replicas[0].kv_agent == Address("10.0.0.1", 7710)
    assert config.replicas[0].kv_events == "tcp://10.0.0.1:5561"
    assert config.access.keys_file == "/run/secrets/keys.yaml"
    assert [policy.value.policy for policy in loaded.policies] == ["home", "least-loaded"]
    home = loaded.policies[0].value
    assert home.price.pull.stall == 0.15
    assert home.queue.wait == 300.0
    assert home.overload.in_flight is None
    assert loaded.notices == (
        "config/router.yaml:12: telemetry.trace_sample: has no effect without telemetry.otlp",
    )


def test_a_version_alone_is_a_config(folder):
    loaded = load_config(write("c.yaml", "version: 1\n"))
    assert [policy.value.policy for policy in loaded.policies] == ["home"]
    assert str(loaded.value.listen) == "127.0.0.1:8080"
    assert str(loaded.value.admin.listen) == "127.0.0.1:9090"


def test_every_fault_of_the_config_and_its_policies_is_reported_at_once(folder):
    write("p.yaml", "version: 1\npolicy: mine\nstrategy: prised\nqueu: {}\nsession: {idle: 30}\n")
    faults = config_faults(
        """\
        version: 2
        listen: 0.0.0.0:99999
        policies: [p.yaml, nowhere.yaml]
        routes:
          - {match: {path: v1}, policy: mine}
        replicas:
          - {name: a, url: 10.0.0.1:8000}
          - {name: a, url: http://b:1/v1}
        replcas: []
        """
    )
    assert faults == [
        "c.yaml:1: version: must be 1, not '2'",
        "c.yaml:2: listen: port 99999 is out of range: 0 to 65535",
        "c.yaml:3: policies[1]: no file 'nowhere.yaml' in the working directory",
        "c.yaml:5: routes[0].match.path: 'v1' is not a path; write /v1/embeddings or /v1/audio/*",
        "c.yaml:7: replicas[0].url: '10.0.0.1:8000' has no scheme; write http://10.0.0.1:8000",
        "c.yaml:8: replicas[1].url: 'http://b:1/v1' must not have a path: "
        "Homing adds the request's own; write http://b:1",
        "c.yaml:8: replicas[1].name: 'a' is already on line 7",
        "c.yaml:9: unknown key 'replcas'; did you mean 'replicas'?",
        "p.yaml:3: strategy: unknown strategy 'prised'; did you mean 'priced'? "
        "(or module:Class for your own)",
        "p.yaml:4: unknown key 'queu'; did you mean 'queue'?",
        "p.yaml:5: session.idle: '30' is not a duration; it has no unit (did you mean 30s?); "
        "write 150ms, 30s, 5m, 2h or 1d",
    ]


REPLICA = "version: 1\nreplicas:\n  - "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: 1.2.3.4:1\n", "c.yaml:1: 'version' is missing; write 'version: 1'"),
        ("version: 1\nlimits: {bdy: 1MiB}\n", "c.yaml:2: limits: unknown key 'bdy'; did you mean 'body'?"),
        (
            "version: 1\nprobe:\n  xyzzy: 1\n",
            "c.yaml:3: probe: unknown key 'xyzzy'; there is interval, timeout",
        ),
        ("version: 1\nlimits: []\n", "c.yaml:2: limits: expected a mapping of keys to values, found a list"),
        ("version: 1\nreplicas: {}\n", "c.yaml:2: replicas: expected a list, found a mapping"),
        (
            "version: 1\nlimits: {body: 64}\n",
            "c.yaml:2: limits.body: '64' is not a size; it has no unit (did you mean 64MiB?); "
            "write 512B, 64KiB, 64MiB or 2GiB",
        ),
        ("version: 1\nlimits: {idle: 0}\n", "c.yaml:2: limits.idle: must be more than 0"),
        ("version: 1\nlimits: {body: 1B}\n", "c.yaml:2: limits.body: 1B is not from 1KiB to 1TiB"),
        ("version: 1\nlimits: {idle: 99999d}\n", "c.yaml:2: limits.idle: 99999d is not from 100ms to 30d"),
        ("version: 1\nprobe: {interval: 1ms}\n", "c.yaml:2: probe.interval: 1ms is not from 20ms to 1h"),
        (
            "version: 1\ntelemetry: {trace_sample: 1e308}\n",
            "c.yaml:2: telemetry.trace_sample: '1e308' is too large",
        ),
        (
            "version: 1\nlimits: {body: 2GiB, held_bytes: 1GiB}\n",
            "c.yaml:2: limits: body (2GiB) is more than held_bytes (1GiB): "
            "such a request could never be held",
        ),
        (
            "version: 1\ntelemetry: {trace_sample: 2}\n",
            "c.yaml:2: telemetry.trace_sample: should be less than or equal to 1",
        ),
        (
            "version: 1\ntelemetry: {otlp: collector}\n",
            "c.yaml:2: telemetry.otlp: 'collector' is not http:// or https://; write http://10.0.0.1:4318",
        ),
        (
            "version: 1\ntelemetry:\n  otlp: null\n  otlp_ca: ca.pem\n",
            "c.yaml:2: telemetry: otlp_ca is for a collector, and there is none; give otlp",
        ),
        (
            "version: 1\ntelemetry: {otlp: 'http://c:4318', otlp_ca: ca.pem}\n",
            "c.yaml:2: telemetry: otlp_ca is for https://, and otlp is http://c:4318/v1/traces",
        ),
        (
            "version: 1\ntelemetry: {otlp: 'http://c:4318', trace_parent: folow}\n",
            "c.yaml:2: telemetry.trace_parent: 'folow' is none of follow, ignore; did you mean 'follow'?",
        ),
        (
            "version: 1\ntelemetry: {trace_sample: '1'}\n",
            "c.yaml:2: telemetry.trace_sample: expected a number, found '1'",
        ),
        (
            "version: 1\ndiscovery:\n  dns: {name: x}\n",
            "c.yaml:3: discovery.dns: A records name no port; give 'port'",
        ),
        ("version: 1\ndiscovery: {dsn: 1}\n", "c.yaml:2: discovery: unknown key 'dsn'; did you mean 'dns'?"),
        (
            "version: 1\naccess: {tenant_header: 'x y'}\n",
            "c.yaml:2: access.tenant_header: 'x y' is not a header name; write x-session-id",
        ),
        (
            "version: 1\naccess:\n  keys_file: 7\n",
            "c.yaml:3: access.keys_file: expected text, found '7'; write \"7\"",
        ),
        ("version: 1\npolicies: [7]\n", "c.yaml:2: policies[0]: expected text, found '7'; write \"7\""),
        ("version: 1\npolicies: []\n", "c.yaml:2: policies: must not be empty"),
        (
            "version: 1\npolicies: [hmoe]\n",
            "c.yaml:2: policies[0]: no policy 'hmoe' is shipped; did you mean 'home'?",
        ),
        (
            "version: 1\npolicies:\n  - home\n  - policies/ring.yaml\n",
            "c.yaml:4: policies[1]: no file 'policies/ring.yaml' in the working directory; "
            "write 'ring' for the shipped policy",
        ),
        (
            "version: 1\npolicies: [/nowhere/x.yaml]\n",
            "c.yaml:2: policies[0]: no file '/nowhere/x.yaml'",
        ),
        (
            "version: 1\npolicies:\n  - home\n  - home\n",
            "c.yaml:4: policies[1]: a policy named 'home' is already on line 3",
        ),
        (
            "version: 1\nroutes:\n  - {match: {model: m}, policy: least-loded}\n",
            "c.yaml:3: routes[0].policy: unknown policy 'least-loded'; did you mean 'least-loaded'?",
        ),
        (
            "version: 1\nroutes:\n  - {match: {}, policy: home}\n",
            "c.yaml:3: routes[0].match: matches everything: give path, model or tenant, "
            "or put the policy first in 'policies'",
        ),
        (
            "version: 1\nroutes:\n  - {match: {model: 'a*b'}, policy: home}\n",
            "c.yaml:3: routes[0].match.model: 'a*b' is not a pattern: an exact value, "
            "or a beginning and one * at its end",
        ),
        (
            "version: 1\nlisten: 127.0.0.1:80\nadmin:\n  listen: 127.0.0.1:80\n",
            "c.yaml:4: admin.listen: 127.0.0.1:80 is also the data port's; give each its own",
        ),
        (REPLICA + "{name: a}\n", "c.yaml:3: replicas[0]: 'url' is missing"),
        (
            REPLICA + "{name: a, url: http://h:1}\n  - {name: b, url: http://h:1/}\n",
            "c.yaml:4: replicas[1].url: 'http://h:1' is already on line 3",
        ),
        (
            REPLICA + "{name: 1, url: http://h:1}\n",
            "c.yaml:3: replicas[0].name: expected text, found '1'; write \"1\"",
        ),
        (
            REPLICA + "{name: a b, url: http://h:1}\n",
            "c.yaml:3: replicas[0].name: 'a b' is not a name: letters, digits, '.', '_' and '-', at most 64, "
            "a letter or digit first",
        ),
        (
            REPLICA + "{name: a, url: http://h:1, api_key_file: f, api_key_env: E}\n",
            "c.yaml:3: replicas[0]: has both api_key_file and api_key_env; keep one",
        ),
        (
            REPLICA + "{name: a, url: http://h:1, role: prefill}\n",
            "c.yaml:3: replicas[0].role: 'prefill', and no replica has role: decode: nobody would answer with"
            " what it computes",
        ),
        (
            REPLICA + "{name: a, url: http://h:1, two_way: true}\n",
            "c.yaml:3: replicas[0]: two_way is for role: prefill, and the role is both",
        ),
        (
            REPLICA + "{name: a, url: http://h:1, kv_tokens: 0}\n",
            "c.yaml:3: replicas[0].kv_tokens: should be greater than 0",
        ),
        ("version: 1\nversion: 1\n", "c.yaml:2: 'version' is already given on line 1"),
        ("version: 1\nlisten: !x 1\n", "c.yaml:2: YAML tags are not read here (!x): write the plain value"),
        ("version: 1\n\tlisten: x\n", "c.yaml:2: a tab where YAML wants spaces: indent with spaces"),
        ("- version: 1\n", "c.yaml:1: the file is not a mapping of keys to values"),
        ("", "c.yaml:1: the file is empty"),
    ],
)
def test_a_fault_in_a_config_has_its_line_and_its_words(folder, text, expected):
    assert config_faults(text) == [expected]


POLICY = "version: 1\npolicy: p\nstrategy: priced\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version: 1\npolicy: p\n", "p.yaml:1: 'strategy' is missing"),
        (
            "version: 1\npolicy: p\nstrategy: bounded_ring\n",
            "p.yaml:3: strategy: unknown strategy 'bounded_ring'; did you mean 'bounded-ring'? "
            "(or module:Class for your own)",
        ),
        (
            "version: 1\npolicy: p\nstrategy: zzz\n",
            "p.yaml:3: strategy: unknown strategy 'zzz'; there is bounded-ring, least-loaded, prefix, "
            "priced, ring, round-robin, two-choices (or module:Class for your own)",
        ),
        (
            "version: 1\npolicy: p\nstrategy: no_such_module:Mine\n",
            "p.yaml:3: strategy: cannot import 'no_such_module' from Python's path (PYTHONPATH): "
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            POLICY + "queue: {order: engin}\n",
            "p.yaml:4: queue.order: 'engin' is none of engine, least-missing; did you mean 'engine'?",
        ),
        (
            POLICY + "queue: {wait: soon}\n",
            "p.yaml:4: queue.wait: 'soon' is not a duration; write 150ms, 30s, 5m, 2h or 1d",
        ),
        (
            POLICY + "overload: {in_flight: 0}\n",
            "p.yaml:4: overload.in_flight: '0' is neither auto nor a whole number from 1 up",
        ),
        (
            POLICY + "overload: {kv_usage: 1.5}\n",
            "p.yaml:4: overload.kv_usage: should be less than or equal to 1",
        ),
        (
            POLICY + "retry: {attempts: 1, after_death: 2}\n",
            "p.yaml:4: retry: after_death (2) is more than attempts (1)",
        ),
        (
            POLICY + "session: {derive: yes}\n",
            "p.yaml:4: session.derive: expected true or false, found 'yes'",
        ),
        (
            POLICY + "session:\n  headers:\n    - x-a\n    - 'x b'\n",
            "p.yaml:7: session.headers[1]: 'x b' is not a header name; write x-session-id",
        ),
        (
            POLICY + "session: {body: [a.b.c]}\n",
            "p.yaml:4: session.body[0]: 'a.b.c' is not a body field; "
            "write prompt_cache_key or metadata.session_id",
        ),
        (
            POLICY + "place:\n  bound: {relative: 0.5}\n",
            "p.yaml:5: place.bound.relative: should be greater than or equal to 1",
        ),
        (POLICY + "reserved: drop\n", "p.yaml:4: reserved: 'drop' is none of cut, refuse"),
        (
            POLICY + "params:\n  relative: 2.0\n",
            "p.yaml:5: params.relative: strategy priced takes it from place.bound.relative",
        ),
        (
            "version: 1\npolicy: p\nstrategy: bounded-ring\nparams:\n  absolut: 3.0\n",
            "p.yaml:5: params: unknown key 'absolut'; did you mean 'absolute'?",
        ),
        (
            "version: 1\npolicy: p\nstrategy: bounded-ring\nparams:\n  absolute: '3'\n",
            "p.yaml:5: params.absolute: expected a number, found '3'",
        ),
        (
            "version: 1\npolicy: p\nstrategy: bounded-ring\nparams:\n  relative: 0.5\n",
            "p.yaml:4: params: relative is 0.5: it must be a number from 1 up",
        ),
        (
            "version: 1\npolicy: p\nstrategy: ring\nparams: {vnodes: 9}\n",
            "p.yaml:4: params: unknown key 'vnodes'; there is none",
        ),
    ],
)
def test_a_fault_in_a_policy_has_its_line_and_its_words(folder, text, expected):
    assert policy_faults(text) == [expected]


def test_a_policy_that_is_not_there_says_so(folder):
    with pytest.raises(SettingsError) as caught:
        load_policy("hom")
    assert caught.value.faults == ["no policy 'hom' is shipped; did you mean 'home'?"]
    with pytest.raises(SettingsError) as caught:
        load_policy("x/mine.yaml")
    assert caught.value.faults == ["no file 'x/mine.yaml' in the working directory"]


def test_a_config_that_is_not_there_says_so(folder):
    with pytest.raises(SettingsError) as caught:
        load_config(Path("c.yaml"))
    assert caught.value.faults == ["c.yaml: cannot be read: No such file or directory"]


def test_a_policy_beside_the_config_comes_before_one_in_the_working_directory(folder):
    write("p.yaml", POLICY)
    write("config/p.yaml", "version: 1\npolicy: beside\nstrategy: ring\n")
    config = write("config/c.yaml", "version: 1\npolicies: [p.yaml]\n")
    assert load_config(config).policies[0].value.policy == "beside"
    Path("config/p.yaml").unlink()
    assert load_config(config).policies[0].value.policy == "p"


def test_a_route_does_not_take_the_blame_for_a_policy_that_cannot_be_read(folder):
    write("p.yaml", "policy: [")
    faults = config_faults(
        "version: 1\npolicies: [p.yaml]\nroutes:\n  - {match: {model: m}, policy: perhaps-p}\n"
    )
    assert [fault.partition(":")[0] for fault in faults] == ["p.yaml"]


def test_a_listed_policy_hides_the_shipped_one_of_its_name(folder):
    write("p.yaml", "version: 1\npolicy: ring\nstrategy: round-robin\n")
    loaded = load_config(
        write("c.yaml", "version: 1\npolicies: [home, p.yaml]\nroutes: [{match: {model: m}, policy: ring}]\n")
    )
    assert [policy.value.strategy for policy in loaded.policies] == ["priced", "round-robin"]


def test_two_routes_to_one_shipped_policy_load_it_once(folder):
    loaded = load_config(
        write(
            "c.yaml",
            """\
            version: 1
            routes:
              - {match: {model: m}, policy: ring}
              - {match: {model: n}, policy: ring}
            """,
        )
    )
    assert [policy.value.policy for policy in loaded.policies] == ["home", "ring"]


def test_every_shipped_policy_is_named_as_its_file_and_loads(folder):
    assert set(shipped_policies()) >= {
        "home",
        "ring",
        "bounded-ring",
        "prefix",
        "least-loaded",
        "two-choices",
        "round-robin",
        "ring-queued",
    }
    for name in shipped_policies():
        assert load_policy(name).value.policy == name


def test_policies_other_than_home_and_the_queued_one_leave_the_order_to_the_engine(folder):
    orders = {name: load_policy(name).value.queue.order for name in shipped_policies()}
    assert {name for name, order in orders.items() if order != "engine"} == {"home", "ring-queued"}


def test_a_shadow_policy_is_loaded_like_any_other(folder):
    write("own.yaml", "version: 1\npolicy: own\nstrategy: ring\nprice: {move: 0}\n")
    loaded = load_config(write("c.yaml", "version: 1\nshadow: own.yaml\n"))
    assert loaded.shadow is not None
    assert loaded.shadow.value.policy == "own"
    assert [policy.value.policy for policy in loaded.policies] == ["home"]
    assert any(notice.startswith("own.yaml:") for notice in loaded.notices)
    shipped = load_config(write("c.yaml", "version: 1\nshadow: ring\n"))
    assert shipped.shadow is not None
    assert shipped.shadow.value.strategy == "ring"
    assert load_config(write("c.yaml", "version: 1\nshadow: null\n")).shadow is None


def test_faults_of_a_shadow_policy_come_with_all_others(folder):
    assert config_faults("version: 1\nshadow: rnig\n") == [
        "c.yaml:2: shadow: no policy 'rnig' is shipped; did you mean 'ring'?"
    ]
    write("own.yaml", "version: 1\npolicy: own\nstrategy: rnig\n")
    faults = config_faults("version: 1\nshadow: own.yaml\nlisten: 5\n")
    assert [fault.split(":")[0] for fault in faults] == ["c.yaml", "own.yaml"]
    assert "expected text" in config_faults("version: 1\nshadow: 5\n")[0]
