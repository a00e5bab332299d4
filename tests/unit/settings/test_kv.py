"""KV files: every fault with its line, and what is written arrives as plain values."""

from pathlib import Path

import pytest

from router.base.errors import SettingsError
from router.kv.config import AgentConfig, GatewayConfig, KeepingConfig, Peer
from router.settings.check import check_files, schema
from router.settings.kv import load_kv_agent, load_kv_gateway
from router.settings.load import load_config, load_policy

SECRET = {"HOMING_SECRET": "a fleet's secret"}
AGENT = "version: 1\nkv_agent: a\nsocket: /run/homing/a.sock\n"
GATEWAY = "version: 1\nkv_gateway: pool\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def faults(text, load=load_kv_agent, environ=SECRET):
    Path("kv.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(Path("kv.yaml"), environ)
    return caught.value.faults


def test_the_least_agent(folder):
    Path("kv.yaml").write_text(AGENT)
    config = load_kv_agent(Path("kv.yaml"), SECRET)
    assert config == AgentConfig(name="a", secret=b"a fleet's secret", socket=Path("/run/homing/a.sock"))


def test_everything_that_an_agents_file_can_say(folder):
    Path("secret").write_text("from a file\n")
    Path("kv.yaml").write_text(
        AGENT + "listen: 10.0.0.1:7000\nmetrics: null\nsecret_file: secret\n"
        "arena: {folder: /mnt/huge, size: 8GiB}\nmode: push-pool\n"
        "peers: [{name: b, address: 10.0.0.2:7000}, {name: pool, address: '[fd00::1]:7720', pool: true}]\n"
        "pull: {stall: 80ms, deadline: 1s, per_source: 3}\npush: {queue: 7}\n"
        "keep: {high_water: 0.6, system_share: 0.2, tenant_share: 0.5, session_window: 1m}\n"
        "verify_local: false\nmax_block: 1MiB\n"
    )
    config = load_kv_agent(Path("kv.yaml"), {})
    assert config == AgentConfig(
        name="a",
        secret=b"from a file",
        host="10.0.0.1",
        port=7000,
        metrics_port=None,
        socket=Path("/run/homing/a.sock"),
        arena_folder=Path("/mnt/huge"),
        arena_bytes=8 << 30,
        peers=(
            Peer(name="b", host="10.0.0.2", port=7000),
            Peer(name="pool", host="fd00::1", port=7720, is_pool=True),
        ),
        mode="push-pool",
        keeping=KeepingConfig(high_water=0.6, system_share=0.2, tenant_share=0.5, session_window_s=60.0),
        stall_s=0.08,
        deadline_s=1.0,
        pulls_per_source=3,
        push_blocks=7,
        verify_local=False,
        max_block_bytes=1 << 20,
    )


def test_the_least_gateway_and_one_with_a_disk(folder):
    Path("kv.yaml").write_text(GATEWAY)
    config = load_kv_gateway(Path("kv.yaml"), SECRET)
    assert config == GatewayConfig(name="pool", secret=b"a fleet's secret")
    Path("kv.yaml").write_text(
        GATEWAY
        + "memory: 1GiB\ndisk: {folder: /var/kv, size: 2TiB}\nmetrics: 127.0.0.1:9\nlisten: '[::1]:8'\n"
    )
    config = load_kv_gateway(Path("kv.yaml"), SECRET)
    assert config == GatewayConfig(
        name="pool",
        secret=b"a fleet's secret",
        host="::1",
        port=8,
        metrics_port=9,
        memory_bytes=1 << 30,
        disk_folder=Path("/var/kv"),
        disk_bytes=2 << 40,
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (AGENT + "arenas: {}\n", "kv.yaml:4: unknown key 'arenas'; did you mean 'arena'?"),
        ("version: 1\nkv_agent: a\n", "'socket' is missing"),
        (AGENT + "arena: {size: 4}\n", "did you mean 4MiB?"),
        (AGENT + "mode: pull\n", "mode"),
        (AGENT + "keep: {high_water: 1.5}\n", "high_water"),
        (AGENT + "metrics: 127.0.0.1:7710\n", "is also for peers"),
        (AGENT.replace("/run", "/" + "r" * 100), "a unix socket's path has at most 100 bytes"),
        (AGENT + "peers: [{name: a, address: 'h:1'}]\n", "'a' is this agent's own name"),
        (AGENT + "peers: [{name: b, address: 'h:1'}, {name: b, address: 'h:2'}]\n", "'b' is given twice"),
        (AGENT + "peers: [{name: b, address: 'h:0'}]\n", "port 0 cannot be connected to"),
        (AGENT + "secret_file: none\n", "secret_file: no file 'none'"),
        (AGENT + "a: [\n", "kv.yaml:"),
    ],
)
def test_faults_have_their_line_and_a_way_out(folder, text, fault):
    (line, *_) = faults(text, environ={} if "secret_file" in text else SECRET)
    assert fault in line


ROUTER = "version: 1\nlisten: 127.0.0.1:0\nreplicas: []\n"
POLICY = "version: 1\npolicy: mine\nstrategy: priced\n"
KEYS = "version: 1\nkeys: []\n"


@pytest.mark.parametrize(
    ("text", "load", "fault"),
    [
        (
            GATEWAY,
            load_kv_agent,
            "kv.yaml:2: this is a KV gateway's file; it goes with `homing kv-gateway -c`",
        ),
        (AGENT, load_kv_gateway, "kv.yaml:2: this is a KV agent's file; it goes with `homing kv-agent -c`"),
        (ROUTER, load_kv_agent, "kv.yaml:3: this is a router's config; it goes with `homing serve -c`"),
        (AGENT, load_config, "kv.yaml:2: this is a KV agent's file; it goes with `homing kv-agent -c`"),
        (POLICY, load_config, "kv.yaml:2: this is a policy; name it under `policies` in the router's config"),
        (KEYS, load_config, "kv.yaml:2: this is a file of API keys; name it in the router's config"),
        (ROUTER, load_policy, "kv.yaml:3: this is a router's config; it goes with `homing serve -c`"),
    ],
)
def test_a_file_of_another_kind_is_told_what_it_is_for_and_not_that_its_keys_are_unknown(
    folder, text, load, fault
):
    Path("kv.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load("kv.yaml") if load is load_policy else load(
            Path("kv.yaml"), *([SECRET] if load is not load_config else [])
        )
    (told,) = caught.value.faults
    assert told.startswith(fault)


def test_a_key_of_another_kind_in_a_file_is_one_that_is_unknown(folder):
    assert faults(AGENT + "replicas: []\n") == [
        "kv.yaml:4: unknown key 'replicas'; there is arena, keep, kv_agent, listen, max_block, metrics, mode,"
        " peers, pull, push, secret_file, socket, verify_local, version",
    ]


def test_without_a_secret_nothing_starts(folder):
    what = "secret_file: agents, gateways and the router share a secret; give it or HOMING_SECRET"
    assert faults(AGENT, environ={}) == [f"kv.yaml:1: {what}"]
    assert faults(GATEWAY, load_kv_gateway, environ={}) == [f"kv.yaml:1: {what}"]
    assert faults(AGENT, environ={"HOMING_SECRET": " "}) == ["HOMING_SECRET: is empty"]


def test_check_knows_both_kinds_and_takes_an_absent_secret_for_a_notice(folder):
    Path("a.yaml").write_text(AGENT)
    Path("g.yaml").write_text(GATEWAY + "disk: {}\n")
    found = check_files([Path("a.yaml"), Path("g.yaml")], {})
    assert found.faults == ("g.yaml:3: disk: 'folder' is missing",)
    (notice,) = found.notices
    assert notice.endswith("(here; `homing kv-agent` would refuse to start)")


def test_the_schema_describes_both():
    assert {"AgentFile", "GatewayFile"} <= set(schema()["$defs"])
