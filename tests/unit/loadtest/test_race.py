"""The race: its fleet, its sessions, how routers are told of replicas, and what is made of the figures."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest
import yaml
from support.fleet import fleet
from support.plane import until

from loadtest.agents.profile import load_profile
from loadtest.bench.contenders import Setting
from loadtest.race import report
from loadtest.race.__main__ import main
from loadtest.race.cell import Cell, document
from loadtest.race.clients import Crowd, Turn, was_cut
from loadtest.race.fleet import Fleet, event_ports
from loadtest.race.routers import OURS, routers
from loadtest.race.scenarios import REPLICAS, SCENARIOS, SLOWER
from router.simulator.events import REPLAY_PORT
from router.simulator.settings import ReplicaSettings

CELL = Cell(
    router=OURS,
    scenario="medium",
    seed=1,
    scale=20.0,
    turns=100,
    failed=3,
    cut=1,
    failures={"503": 2, "cut": 1},
    hit_rate=0.8,
    ttft_s={"count": 97.0, "mean": 1.0, "p50": 0.5, "p90": 2.0, "p99": 9.0},
    by_place={"turn 1": {"count": 10.0, "mean": 2.0, "p50": 1.0, "p90": 3.0, "p99": 9.0}},
    session_s={"count": 5.0, "p50": 60.0, "p90": 90.0},
    turns_per_s=2.0,
    imbalance=1.1,
    cpu_ms_a_turn=1.5,
    core=0.2,
    memory_mib=70.0,
    busy=0.5,
    others=0.01,
    first=False,
    late_ms=1.0,
)


def other(name: str, seed: int, hit_rate: float, mean: float) -> Cell:
    return replace(CELL, router=name, seed=seed, hit_rate=hit_rate, ttft_s={**CELL.ttft_s, "mean": mean})


# --- what counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "void"),
    [
        ({}, False),
        ({"busy": 0.81}, True),
        ({"others": 0.16}, True),
        ({"late_ms": 5.1}, True),
        ({"late_ms": 9.0, "scale": 10.0}, False),
        # A race that goes first is disturbed by itself only.
        ({"busy": 1.0, "others": 0.5, "first": True}, False),
        ({"busy": 1.0, "others": 0.1, "first": True}, True),
        ({"busy": 1.0, "others": 0.5, "first": True, "late_ms": 5.1}, True),
    ],
)
def test_a_run_on_a_busy_machine_or_with_late_timers_is_void(changes: dict[str, float], void: bool) -> None:
    assert replace(CELL, **changes).void is void  # type: ignore[arg-type]


def test_the_table_has_medians_of_the_runs_that_count_and_says_where_ours_is_not_best() -> None:
    cells = [
        *(other(OURS, seed, hit, mean) for seed, hit, mean in ((1, 0.8, 1.0), (2, 0.7, 3.0), (3, 0.9, 2.0))),
        *(other("nginx", seed, 0.75, 4.0) for seed in (1, 2, 3)),
        *(other("haproxy", seed, 0.85, 5.0) for seed in (1, 2, 3)),
        replace(other("haproxy", 4, 1.0, 0.1), busy=0.9),
    ]
    text = report.tables(cells, [OURS, "nginx", "haproxy"])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1].startswith("| homing | 3 | 0.800 (0.700–0.900) | **2.00** (1.00–3.00) |")
    assert rows[3].startswith("| haproxy | 3 | **0.850** (0.850–0.850) | 5.00 (5.00–5.00) |")
    assert rows[1].endswith("| 2 | 1 |")
    assert "- hit rate: **not best**, 0.94 × that of haproxy, the best" in text
    assert "- TTFT mean s: best, 0.50 × that of nginx, the next" in text
    assert report.by_place(cells, "medium", [OURS]).splitlines()[2] == "| homing | 2.00 / 3.00 |"
    assert report.by_place(cells, "light", [OURS]) == ""


def test_runs_on_record_are_not_made_again_and_make_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--report", "--results", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err
    lines = [
        {"at": "2026-01-01T00:00+00:00", "version": "1", **document(replace(CELL, scenario=name, seed=seed))}
        for name in SCENARIOS
        for seed in (1, 2, 3)
    ]
    (tmp_path / "race.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert main(["--report", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "race.md").read_text()
    assert all(f"### {name}: " in text for name in SCENARIOS)
    assert "| homing | 3 |" in text


# --- routers ----------------------------------------------------------------------------------------


def setting(folder: Path, upstreams: tuple[int, ...] = (9001, 9002)) -> Setting:
    events = {f"http://127.0.0.1:{port}": port + 100 for port in (9001, 9002, 9003)}
    return Setting(Path("/bin/program"), 8000, 8001, upstreams, folder, events)


@pytest.mark.parametrize("name", routers())
def test_every_router_listens_on_loopback_and_is_given_all_replicas(name: str, tmp_path: Path) -> None:
    words = " ".join(routers()[name].arguments(setting(tmp_path)))
    written = " ".join(path.read_text() for path in tmp_path.iterdir())
    assert "9001" in words + written
    assert "9002" in words + written
    assert "0.0.0.0" not in words + written


def test_kv_aware_is_told_of_the_events_of_those_replicas_that_it_knows(tmp_path: Path) -> None:
    one = routers()["vllm-router kv_aware"]
    words = one.arguments(setting(tmp_path))
    assert one.kv_events
    assert [word for word in words if "=tcp" in word] == [
        "http://127.0.0.1:9001=tcp://127.0.0.1:9101",
        "http://127.0.0.1:9001=tcp://127.0.0.1:9111",
        "http://127.0.0.1:9002=tcp://127.0.0.1:9102",
        "http://127.0.0.1:9002=tcp://127.0.0.1:9112",
    ]
    assert sum(router.kv_events for router in routers().values()) == 1


def test_ports_of_events_are_free_and_so_are_those_of_their_replays() -> None:
    ports = event_ports(6)
    assert len({*ports, *(port + REPLAY_PORT for port in ports)}) == 12


def test_ours_finds_an_added_replica_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: signals.append((pid, number)))
    ours = routers()[OURS]
    ours.arguments(setting(tmp_path))
    ours.add(setting(tmp_path, (9001, 9002, 9003)), 77)
    listed = yaml.safe_load((tmp_path / "replicas.yaml").read_text())["replicas"]
    assert [one["url"].rpartition(":")[2] for one in listed] == ["9001", "9002", "9003"]
    assert signals == [(77, signal.SIGHUP)]


# --- the fleet --------------------------------------------------------------------------------------


async def test_replicas_publish_kv_events_where_they_are_given_ports() -> None:
    ports = event_ports(2)
    one = Fleet(2, ReplicaSettings(time_scale=50.0), ports)
    assert [replica.settings.kv_events for replica in one.replicas] == ports
    assert [replica.settings.kv_events for replica in Fleet(2, ReplicaSettings()).replicas] == [0, 0]


@asynccontextmanager
async def simulated(count: int) -> AsyncIterator[Fleet]:
    one = Fleet(count, ReplicaSettings(time_scale=50.0))
    for replica in one.replicas:
        await replica.start()
    try:
        yield one
    finally:
        for replica in one.replicas:
            await replica.kill()


async def said(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "abc " * 400}], "max_tokens": 4, "ignore_eos": True}
    async with httpx.AsyncClient() as http:
        (await http.post(f"{url}/v1/chat/completions", json=body, timeout=30)).raise_for_status()


async def test_what_a_replica_computed_is_counted_over_all_its_lives() -> None:
    async with simulated(2) as one:
        url = one.replicas[1].url
        await said(url)
        await said(url)
        before = one.totals()["replicas"]
        assert before[0] == {"prompt": 0, "computed": 0, "turns": 0}
        assert before[1]["turns"] == 2
        assert before[1]["computed"] < before[1]["prompt"]
        await one.do("kill", 1)
        assert one.totals()["replicas"] == before
        await one.do("start", 1)
        await said(url)
        after = one.totals()["replicas"][1]
        assert after["turns"] == 3
        # The new life is cold.
        assert after["computed"] - before[1]["computed"] == before[1]["prompt"] // 2
        with pytest.raises(KeyError):
            await one.do("paint", 1)


async def test_a_replica_can_be_slowed_and_restored() -> None:
    async with simulated(1) as one:
        driver = one.replicas[0].api.driver
        await one.do("slow", 0)
        assert driver.time_scale == 50.0 / SLOWER
        await said(one.replicas[0].url)
        await one.do("restore", 0)
        assert driver.time_scale == 50.0


# --- the sessions -----------------------------------------------------------------------------------


@pytest.mark.timeout(180)
async def test_a_crowd_plays_through_a_router_and_a_cut_is_told_from_a_refusal() -> None:
    async with fleet(2) as router:
        crowd = Crowd(
            load_profile("race"),
            1,
            port=router.router.dataplane.port,
            count=4,
            scale=400.0,
            come_within_s=20.0,
        )
        crowd.begin()
        try:
            await until(lambda: len(crowd.played.turns) > 25, 100.0)
            for replica in router.replicas.values():
                replica.fault("status:400", path="/v1/chat")
            await until(lambda: any(turn.failure for turn in crowd.played.turns), 50.0)
        finally:
            await crowd.close()
        turns = crowd.played.turns
        good = [turn for turn in turns if turn.failure is None]
        bad = [turn for turn in turns if turn.failure is not None]
        assert len(good) > 20
        assert all(turn.ttft_s is not None and turn.ttft_s > 0 for turn in good)
        assert all(turn.ended_s >= turn.at_s for turn in turns)
        assert all((turn.failure or "").startswith("400: ") and not was_cut(turn) for turn in bad)
        records = [record for replica in router.replicas.values() for record in replica.requests]
        assert len({record.headers.get("x-session-id") for record in records}) >= 4
    assert was_cut(Turn(0.0, 1.0, "turn 1", 0.5, "cut"))


def test_every_event_is_of_a_replica_that_there_is() -> None:
    for scenario in SCENARIOS.values():
        for event in scenario.events:
            assert event.replica == REPLICAS if event.what == "add" else event.replica < REPLICAS
