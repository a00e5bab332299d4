from collections.abc import Callable

import orjson

from router.base.clock import ManualClock
from router.base.ids import ReplicaId
from router.core.decide import Decision, Kind
from router.core.observe import Ended, Outcome, Usage
from router.core.price import Pull
from router.core.request import Turn
from router.telemetry.moves import Moves

Decided = Callable[..., Decision]
MakeEnded = Callable[..., Ended]

# 2026-01-01T00:00:00Z when the monotonic clock reads 100.
NEW_YEAR = 1767225600.0


def moves(now: float = 100.0) -> tuple[Moves, ManualClock]:
    clock = ManualClock(now)
    return Moves(clock, wall=lambda: NEW_YEAR), clock


def pulling(decided: Decided, source: str = "a", target: str = "b", tokens: int = 800) -> Decision:
    """A decision that expects 100 tokens there already, and the pulled ones."""
    decision = decided(target, Kind.PULL, cached_tokens=100 + tokens, at=99.0)
    return decision.replace(pull=Pull(ReplicaId(source), tokens, 0.1, 2.0, 0.9))


def test_a_turn_at_home_is_no_move(turn: Turn, decided: Decided, ended: MakeEnded) -> None:
    kept, _ = moves()
    for kind in (Kind.HOME, Kind.NEW, Kind.PASS):
        kept.on_decision(turn, decided(kind=kind))
        kept.on_ended(ended(decided(kind=kind)))
    assert kept.fields(10) == {"window_s": 900.0, "flows": [], "unnamed": 0, "moves": []}


def test_a_pull_is_a_flow_from_its_source_with_what_came(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    kept, _ = moves()
    decision = pulling(decided)
    kept.on_decision(turn, decision)
    [under_way] = kept.fields(10)["flows"]
    assert (under_way["source"], under_way["target"], under_way["under_way"]) == ("a", "b", 1)
    assert under_way["pulls"] == 0
    kept.on_ended(ended(decision, usage=Usage(1000, 5, 880), ttft_s=0.25))
    told = kept.fields(10)
    assert told["flows"] == [
        {
            "source": "a",
            "target": "b",
            "pulls": 1,
            "spills": 0,
            "failovers": 0,
            "short": 0,
            "asked_tokens": 800,
            "came_tokens": 780,
            "under_way": 0,
        }
    ]
    assert told["moves"] == [
        {
            "time": "2025-12-31T23:59:59.000+00:00",
            "session": "k",
            "kind": "pull",
            "source": "a",
            "target": "b",
            "reason": "owner on the ring",
            "prompt_tokens": 120,
            "asked_tokens": 800,
            "came_tokens": 780,
            "ttft_ms": 250.0,
        }
    ]
    orjson.dumps(told)


def test_a_pull_that_brought_too_little_is_short_and_one_of_which_nothing_is_told_is_not(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    kept, _ = moves()
    for usage in (Usage(1000, 5, 90), Usage(1000, 5, 400), None):
        decision = pulling(decided)
        kept.on_decision(turn, decision)
        kept.on_ended(ended(decision, usage=usage))
    [flow] = kept.fields(10)["flows"]
    assert (flow["pulls"], flow["short"], flow["came_tokens"]) == (3, 2, 300)


def test_spills_and_failovers_go_from_home_to_where_the_turn_went(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    kept, _ = moves()
    for kind in (Kind.SPILL, Kind.SPILL, Kind.FAILOVER):
        kept.on_ended(ended(decided("c", kind)))
    [flow] = kept.fields(10)["flows"]
    assert (flow["source"], flow["target"], flow["spills"], flow["failovers"]) == ("a", "c", 2, 1)


def test_one_without_a_home_or_that_stayed_is_shown_and_flows_nowhere(
    decided: Decided, ended: MakeEnded
) -> None:
    kept, _ = moves()
    kept.on_ended(ended(decided("c", Kind.FAILOVER).replace(home=None)))
    kept.on_ended(ended(decided("a", Kind.FAILOVER)))
    told = kept.fields(10)
    assert told["flows"] == []
    assert [(move["source"], move["target"]) for move in told["moves"]] == [("a", "a"), (None, "c")]


def test_what_failed_or_was_left_has_moved_nothing_and_is_no_longer_under_way(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    kept, _ = moves()
    for outcome in (Outcome.DIED, Outcome.CANCELLED):
        decision = pulling(decided)
        kept.on_decision(turn, decision)
        kept.on_ended(ended(decision, outcome))
    assert kept.under_way == {}
    assert (kept.fields(10)["flows"], kept.fields(10)["moves"]) == ([], [])


def test_flows_are_of_the_last_quarter_of_an_hour(decided: Decided, ended: MakeEnded) -> None:
    kept, clock = moves(0.0)
    for minute in range(20):
        kept.on_ended(ended(decided("b", Kind.SPILL, at=60.0 * minute), duration_s=0.0))
    clock.advance(60.0 * 19)
    [flow] = kept.fields(5)["flows"]
    assert flow["spills"] == 15
    assert len(kept.fields(5)["moves"]) == 5
    clock.advance(3600.0)
    assert kept.fields(5)["flows"] == []


def test_pairs_beyond_a_bound_are_counted_without_their_names(decided: Decided, ended: MakeEnded) -> None:
    kept, _ = moves()
    for number in range(2100):
        kept.on_ended(ended(decided(f"r{number}", Kind.SPILL)))
    assert len(kept.fields(1)["flows"]) == 2048
    assert kept.unnamed == 52
