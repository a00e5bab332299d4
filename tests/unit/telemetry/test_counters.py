from collections.abc import Callable

import pytest

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.observe import Ended, HealthChange, Outcome, Usage, WaitEnd
from router.core.price import Pull
from router.core.request import Turn
from router.telemetry import counters as counters_module
from router.telemetry.counters import Counters, PullResult, ReplicaCounts

A, B = ReplicaId("a"), ReplicaId("b")
Decided = Callable[..., Decision]
MakeEnded = Callable[..., Ended]


def test_decisions_are_counted_by_replica_kind_and_policy(turn: Turn, decided: Decided) -> None:
    counters = Counters()
    counters.on_decision(turn, decided("a", Kind.HOME))
    counters.on_decision(turn, decided("a", Kind.HOME))
    counters.on_decision(turn, decided("a", Kind.NEW, policy="ring"))
    counters.on_decision(turn, decided("b", Kind.HOME))
    assert counters.replicas[A].decisions == {"home": {Kind.HOME: 2}, "ring": {Kind.NEW: 1}}
    assert counters.replicas[B].decisions == {"home": {Kind.HOME: 1}}


def test_only_further_attempts_are_retries(turn: Turn, decided: Decided) -> None:
    counters = Counters()
    for attempt in (0, 1, 2):
        counters.on_decision(turn, decided("a", attempt=attempt))
    assert counters.replicas[A].retries == 2


def test_outcomes_are_counted_by_replica(decided: Decided, ended: MakeEnded) -> None:
    counters = Counters()
    for outcome in (Outcome.COMPLETED, Outcome.CUT, Outcome.CUT):
        counters.on_ended(ended(decided("a"), outcome))
    counters.on_ended(ended(decided("b"), Outcome.DIED))
    assert counters.replicas[A].outcomes == {Outcome.COMPLETED: 1, Outcome.CUT: 2}
    assert counters.replicas[B].outcomes == {Outcome.DIED: 1}


def test_ttft_is_kept_by_kind_and_only_where_there_is_one(decided: Decided, ended: MakeEnded) -> None:
    counters = Counters()
    counters.on_ended(ended(decided(kind=Kind.HOME), ttft_s=0.05))
    counters.on_ended(ended(decided(kind=Kind.NEW), ttft_s=2.0))
    counters.on_ended(ended(decided(kind=Kind.NEW)))
    assert (counters.ttft[Kind.HOME].count, counters.ttft[Kind.HOME].total) == (1, 0.05)
    assert (counters.ttft[Kind.NEW].count, counters.ttft[Kind.NEW].total) == (1, 2.0)


def test_only_turns_that_completed_have_a_duration(decided: Decided, ended: MakeEnded) -> None:
    counters = Counters()
    counters.on_ended(ended(decided(), duration_s=3.0))
    counters.on_ended(ended(decided(), Outcome.CANCELLED, duration_s=100.0))
    assert (counters.duration.count, counters.duration.total) == (1, 3.0)


def test_predicted_delivered_and_prompt_tokens_are_of_the_same_turns(
    decided: Decided, ended: MakeEnded
) -> None:
    counters = Counters()
    counters.on_ended(ended(decided(cached_tokens=100), usage=Usage(150, 10, 80)))
    counters.on_ended(ended(decided(cached_tokens=7), usage=Usage(150, 10, None)))
    counters.on_ended(ended(decided(cached_tokens=7), usage=Usage(None, None, 50)))
    counters.on_ended(ended(decided(cached_tokens=7), usage=None))
    counts = counters.replicas[A]
    assert (counts.prompt_tokens, counts.cached_tokens, counts.predicted_tokens) == (150, 80, 100)
    assert counts.completion_tokens == 20
    assert counts.unreported == 3
    assert (counters.prediction_error.count, counters.prediction_error.total) == (1, 20.0)


def test_zero_cached_tokens_that_were_reported_are_a_report(decided: Decided, ended: MakeEnded) -> None:
    counters = Counters()
    counters.on_ended(ended(decided(cached_tokens=0), usage=Usage(150, 0, 0)))
    assert counters.replicas[A].unreported == 0
    assert counters.replicas[A].prompt_tokens == 150
    assert counters.prediction_error.counts[0] == 1


def test_a_turn_that_did_not_complete_owes_no_report(decided: Decided, ended: MakeEnded) -> None:
    counters = Counters()
    counters.on_ended(ended(decided(), Outcome.CANCELLED))
    counters.on_ended(ended(decided(), Outcome.CUT, usage=Usage(150)))
    assert counters.replicas[A].unreported == 0


def test_the_prediction_error_does_not_depend_on_its_direction(decided: Decided, ended: MakeEnded) -> None:
    counters = Counters()
    counters.on_ended(ended(decided(cached_tokens=0), usage=Usage(150, 0, 30)))
    counters.on_ended(ended(decided(cached_tokens=30), usage=Usage(150, 0, 0)))
    assert (counters.prediction_error.count, counters.prediction_error.total) == (2, 60.0)


def test_waits_are_spread_by_how_they_ended(turn: Turn) -> None:
    counters = Counters()
    counters.on_waited(turn, 0.75, WaitEnd.DISPATCHED)
    counters.on_waited(turn, 2.0, WaitEnd.DISPATCHED)
    counters.on_waited(turn, 300.0, WaitEnd.EXPIRED)
    assert counters.waits[WaitEnd.DISPATCHED].total == 2.75
    assert counters.waits[WaitEnd.EXPIRED].count == 1
    assert counters.waits[WaitEnd.LEFT].count == 0


def test_refusals_moves_health_changes_and_restarts_are_counted(turn: Turn) -> None:
    counters = Counters()
    counters.on_refused(turn, ErrorKind.OVERLOADED, "full", 1.0)
    counters.on_moved(SessionKey("k"), A, B, 1.0)
    counters.on_health(HealthChange(A, "healthy", "down", "refused", 1.0))
    counters.on_health(HealthChange(A, "down", "probation", "", 2.0))
    counters.on_restarted(A, 1.0)
    assert counters.refused == {ErrorKind.OVERLOADED: 1}
    assert counters.moves == 1
    assert counters.replicas[A].health_changes == {"down": 1, "probation": 1}
    assert counters.replicas[A].restarts == 1


def test_replicas_that_left_are_dropped_on_demand(turn: Turn, decided: Decided) -> None:
    counters = Counters()
    for replica in "abc":
        counters.on_decision(turn, decided(replica))
    counters.retain([A, ReplicaId("z")])
    assert set(counters.replicas) == {A}


def test_replica_names_that_nobody_drops_are_bounded(
    turn: Turn, decided: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters_module, "_MAX_REPLICAS", 3)
    counters = Counters()
    for replica in ("a", "b", "c", "d"):
        counters.on_decision(turn, decided(replica))
    assert set(counters.replicas) == {"b", "c", "d"}


def test_a_replica_counts_as_present_even_with_nothing_counted() -> None:
    # `get(…) or admit(…)` on the hot path relies on it.
    assert ReplicaCounts()


@pytest.mark.parametrize(
    ("usage", "result"),
    [
        (Usage(500, 9, 400), PullResult.CAME),
        (Usage(500, 9, 100), PullResult.FELL_BACK),
        (Usage(500, 9, None), PullResult.UNREPORTED),
        (None, PullResult.UNREPORTED),
    ],
)
def test_a_pull_is_counted_by_what_came_of_it(usage, result, decided, ended):
    counters = Counters()
    pull = Pull(ReplicaId("b"), 400, 0.1, 2.0, 0.9)
    counters.on_ended(ended(decided("a", Kind.PULL, cached_tokens=400).replace(pull=pull), usage=usage))
    assert dict(counters.pulls) == {result: 1}


def test_a_turn_that_pulls_nothing_is_no_pull(decided, ended):
    counters = Counters()
    counters.on_ended(ended(decided("a"), usage=Usage(500, 9, 400)))
    assert not counters.pulls
