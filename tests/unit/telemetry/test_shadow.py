"""A shadow policy's comparison as metrics and fields."""

import pytest

from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Kind
from router.core.plan import Plan
from router.core.shadow import Disagreement, Shadow, Side
from router.core.strategies.ring import RingOnly
from router.telemetry.points import Builder
from router.telemetry.shadow import shadow_fields, shadow_metrics


@pytest.fixture
def shadow() -> Shadow:
    made = Shadow(Plan(name="ring", strategy=RingOnly()))
    tally = made.tally
    tally.turns, tally.disagreed, tally.pinned = 4, 1, 7
    tally.kinds[Kind.NEW, Kind.NEW] = 1
    tally.kinds[Kind.SPILL, Kind.HOME] = 3
    tally.prompt_tokens, tally.live_cached_tokens, tally.shadow_cached_tokens = 9000, 4000, 6000
    tally.live_s, tally.shadow_s = 2.0, 0.5
    tally.live_moves, tally.shadow_moves = 3, 1
    tally.live_refused, tally.shadow_refused = 2, 5
    for number in range(3):
        made.recent.append(
            Disagreement(
                SessionKey(f"s{number}"),
                1000,
                Side(ReplicaId("a"), Kind.SPILL, "next in turn", 100, 0.25),
                Side(ReplicaId("b"), Kind.HOME, "home", 900, 0.0625),
            )
        )
    return made


def test_the_comparison_is_told_in_tokens_and_milliseconds(shadow: Shadow) -> None:
    fields = shadow_fields(shadow, 2)
    disagreements = fields.pop("disagreements")
    assert {each.split(":")[0] for each in fields.pop("not_known")} >= {"KV events", "pulls"}
    assert fields == {
        "policy": "ring",
        "turns": 4,
        "disagreed": 1,
        "cached_tokens": {"live": 4000, "shadow": 6000, "gain": 2000, "of": 9000},
        "mean_expected_ttft_ms": {"live": 500.0, "shadow": 125.0, "gain": 375.0},
        "moves": {"live": 3, "shadow": 1},
        "refused": {"live": 2, "shadow": 5},
        "pinned": 7,
        "kinds": [
            {"live": "new", "shadow": "new", "turns": 1},
            {"live": "spill", "shadow": "home", "turns": 3},
        ],
    }
    assert isinstance(disagreements, list)
    assert [each["session"] for each in disagreements] == ["s2", "s1"]
    assert disagreements[0] == {
        "session": "s2",
        "prompt_tokens": 1000,
        "live": {
            "replica": "a",
            "kind": "spill",
            "reason": "next in turn",
            "cached_tokens": 100,
            "expected_ttft_ms": 250.0,
        },
        "shadow": {
            "replica": "b",
            "kind": "home",
            "reason": "home",
            "cached_tokens": 900,
            "expected_ttft_ms": 62.5,
        },
        "gain_ms": 187.5,
        "gain_tokens": 800,
    }


def test_of_no_turns_there_is_no_mean() -> None:
    fields = shadow_fields(Shadow(Plan(name="ring", strategy=RingOnly())), 5)
    assert fields["mean_expected_ttft_ms"] == {"live": None, "shadow": None, "gain": None}
    assert fields["disagreements"] == []


def test_metrics_count_by_course_and_kind(shadow: Shadow) -> None:
    found = {
        (metric.name, *sorted((point.attributes or {}).items())): point.value
        for metric in shadow_metrics(shadow, Builder(0, 1))
        for point in metric.data.data_points
    }
    live, own, policy = ("course", "live"), ("course", "shadow"), ("policy", "ring")
    assert found == {
        ("homing_shadow_decisions", ("live", "new"), policy, ("shadow", "new")): 1,
        ("homing_shadow_decisions", ("live", "spill"), policy, ("shadow", "home")): 3,
        ("homing_shadow_disagreements", policy): 1,
        ("homing_shadow_cached_tokens", live, policy): 4000,
        ("homing_shadow_cached_tokens", own, policy): 6000,
        ("homing_shadow_expected_seconds", live, policy): 2.0,
        ("homing_shadow_expected_seconds", own, policy): 0.5,
        ("homing_shadow_moves", live, policy): 3,
        ("homing_shadow_moves", own, policy): 1,
        ("homing_shadow_refused", live, policy): 2,
        ("homing_shadow_refused", own, policy): 5,
    }
