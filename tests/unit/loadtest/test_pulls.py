"""The scenarios in which pulls are measured."""

import json
from collections import Counter
from pathlib import Path

import pytest

from loadtest.pulls.__main__ import Outcome, curve, main, play
from loadtest.pulls.scenarios import EVENT_AT_S, SCENARIOS
from router.settings.build import build_plan
from router.settings.load import load_policy
from router.simulator.replay.trace import Trace

NONE = Trace("none", 64, (), timed=True)

# Whole replays: seconds of processor time each, which on a busy machine are minutes.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("name", ["fan-out", "overloaded"])
def test_at_a_hundred_gigabits_pulls_help_where_kv_lies_in_the_wrong_place(name: str) -> None:
    plan = build_plan(load_policy("home").value)
    without, pulled = (play(name, NONE, plan, 0, gbps) for gbps in (0.0, 100.0))
    assert without.pulls == 0
    assert pulled.pulls > 3
    assert pulled.mean_s < 0.9 * without.mean_s


@pytest.mark.parametrize("gbps", [24.0, 100.0])
def test_what_a_fan_out_shares_is_sent_to_each_replica_once_at_most(gbps: float) -> None:
    pulled = play("fan-out", NONE, build_plan(load_policy("home").value), 0, gbps)
    assert pulled.pulls > 0
    # The parent's prompt to each of the seven others, and what agents carry along that move later.
    assert pulled.pulled_tokens < 7 * 100_032 + 40 * 4 * 1024


def test_a_fan_out_finds_out_once_that_its_network_is_slow() -> None:
    pulled = play("fan-out", NONE, build_plan(load_policy("home").value), 0, 6.0)
    # What is pulled later is the little that an agent which moves has added.
    assert 1 <= pulled.pulls <= 3
    assert pulled.pulled_tokens < 0.2 * 100_032


def test_the_curve_is_of_the_seeds_whose_outcomes_are_known() -> None:
    known = {
        (0, 0.0): Outcome(2.0, 0, 0),
        (1, 0.0): Outcome(4.0, 0, 0),
        (2, 0.0): Outcome(6.0, 0, 0),
        (0, 24.0): Outcome(1.0, 10, 100),
        (1, 24.0): Outcome(3.0, 20, 200),
        (3, 24.0): Outcome(9.0, 20, 200),
    }
    text = curve(["calm", "killed"], 4, [24.0, 96.0], lambda name, seed, gbps: known.get((seed, gbps)))
    *_, calm, killed = text.splitlines()
    for row in (calm, killed):
        assert "4.00 s" in row
        assert "0.62 (0.50 … 0.75), 15 pulls" in row
        assert row.endswith("3")


def test_it_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(__file__).parents[2] / "data" / "small-trace.jsonl"
    keep = tmp_path / "pulls.jsonl"
    asked = [str(trace), "--keep", str(keep), "--scenario", "fan-out", "--gbps", "96"]
    main([*asked, "--seeds", "1"])
    text = capsys.readouterr().out
    assert len(keep.read_text().splitlines()) == 2
    assert "fan-out" in text
    main([*asked, "--seeds", "3", "--table"])
    assert capsys.readouterr().out == text
    assert len(keep.read_text().splitlines()) == 2


def test_a_path_whose_bandwidth_is_known_and_slow_is_not_tried(tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "data" / "small-trace.jsonl"
    keep = tmp_path / "pulls.jsonl"
    main(
        [
            str(trace),
            "--keep",
            str(keep),
            "--scenario",
            "overloaded",
            "--gbps",
            "6",
            "--seeds",
            "1",
            "--known",
        ]
    )
    without, known = (json.loads(line) for line in keep.read_text().splitlines())
    assert known["of"].endswith("overloaded 0 6 known")
    assert known["figures"] == without["figures"]


def test_every_event_is_in_its_scenario() -> None:
    made = {name: make(NONE, 0) for name, make in SCENARIOS.items()}
    happens = {name: Counter(event.what for event in scenario.events) for name, scenario in made.items()}
    assert happens == {
        "calm": {},
        "doubled": {"add": 4},
        "drained": {"drain": 1},
        "killed": {"kill": 1, "start": 1},
        "fan-out": {},
        "overloaded": {"drain": 7, "undrain": 7},
    }
    (parent,) = made["fan-out"].trace.sessions
    agents = parent.agents
    assert len(agents) == 40
    assert {agent.session.turns[0].fresh[:1563] for agent in agents} == {parent.turns[0].fresh}
    assert all(EVENT_AT_S <= agent.at_s < EVENT_AT_S + 10.0 for agent in agents)
