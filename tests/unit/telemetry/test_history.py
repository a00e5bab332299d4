from collections.abc import Callable

import orjson
import pytest

from router.base.clock import ManualClock
from router.base.errors import ErrorKind
from router.core.decide import Decision, Kind
from router.core.observe import Ended, Outcome, Usage
from router.core.request import Turn
from router.telemetry.history import SLICES, History

Decided = Callable[..., Decision]
MakeEnded = Callable[..., Ended]


def test_lately_is_told_by_kind_with_shares_and_percentiles(decided: Decided, ended: MakeEnded) -> None:
    clock = ManualClock(1000.0)
    history = History(clock)
    for _ in range(9):
        history.on_ended(ended(decided(at=1000.0), usage=Usage(200, 5, 150), ttft_s=0.1))
    history.on_ended(ended(decided("b", Kind.NEW, at=1000.0), usage=Usage(200, 5, 0), ttft_s=3.0))
    clock.advance(20.0)
    lately = history.lately()
    assert (lately["turns"], lately["prompt_tokens"], lately["cached_tokens"]) == (10, 2000, 1350)
    assert lately["hit_rate"] == 0.675
    assert lately["window_s"] == 20.0
    assert lately["turns_per_s"] == 0.5
    assert list(lately["kinds"]) == ["new", "home"]
    assert lately["kinds"]["home"]["hit_rate"] == 0.75
    assert lately["kinds"]["new"]["hit_rate"] == 0.0
    # Within the step of a fifth that they fall in.
    assert lately["ttft_ms"]["p50"] == pytest.approx(100.0, rel=0.2)
    assert lately["ttft_ms"]["p95"] == pytest.approx(3000.0, rel=0.2)


def test_a_replica_is_told_by_what_it_completed(decided: Decided, ended: MakeEnded) -> None:
    history = History(ManualClock(50.0))
    history.on_ended(ended(decided("a"), usage=Usage(100, 1, 80)))
    history.on_ended(ended(decided("b"), usage=Usage(100, 1, None)))
    history.on_ended(ended(decided("c"), Outcome.CUT))
    told = history.replicas()
    assert list(told) == ["a", "b"]
    assert told["a"]["hit_rate"] == 0.8
    assert (told["b"]["turns"], told["b"]["unreported"], told["b"]["hit_rate"]) == (1, 1, None)


def test_failures_and_refusals_are_counted_and_departures_are_not(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    history = History(ManualClock(50.0))
    history.on_ended(ended(decided(), Outcome.DIED))
    history.on_ended(ended(decided(), Outcome.CANCELLED))
    history.on_refused(turn, ErrorKind.OVERLOADED, "full", 51.0)
    lately = history.lately()
    assert (lately["turns"], lately["failed"], lately["refused"]) == (0, 1, 1)
    assert lately["hit_rate"] is None
    assert lately["ttft_ms"] == {"p50": None, "p95": None}


def test_the_series_has_a_figure_for_every_slice_from_the_first_on(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    clock = ManualClock(100.0)
    history = History(clock)
    history.on_ended(ended(decided(at=99.0), usage=Usage(100, 1, 50), ttft_s=0.05))
    clock.advance(34.0)
    history.on_ended(ended(decided(kind=Kind.SPILL, at=132.0), usage=Usage(10, 1, 0)))
    history.on_refused(turn, ErrorKind.OVERLOADED, "full", 133.0)
    series = history.series()
    assert series["turns"] == [1, 0, 0, 1]
    assert series["prompt_tokens"] == [100, 0, 0, 10]
    assert series["cached_tokens"] == [50, 0, 0, 0]
    assert series["refused"] == [0, 0, 0, 1]
    assert series["kinds"]["home"] == [1, 0, 0, 0]
    assert series["kinds"]["spill"] == [0, 0, 0, 1]
    assert series["ttft_p50_ms"][1:] == [None, None, None]
    assert series["ends_in_s"] == 6.0
    orjson.dumps(series)


def test_an_hour_is_kept_and_five_minutes_tell_replicas_apart(decided: Decided, ended: MakeEnded) -> None:
    clock = ManualClock(0.0)
    history = History(clock)
    for _ in range(SLICES + 50):
        history.on_ended(ended(decided(at=clock.now()), duration_s=0.0, usage=Usage(10, 1, 5)))
        clock.advance(10.0)
    assert len(history._slices) == SLICES
    assert sum(bool(each.replicas) for each in history._slices) == 30
    assert len(history.series()["turns"]) == SLICES
    assert history.lately()["turns"] == 29


def test_what_happened_long_ago_is_not_lately(decided: Decided, ended: MakeEnded) -> None:
    clock = ManualClock(0.0)
    history = History(clock)
    history.on_ended(ended(decided(at=0.0), usage=Usage(10, 1, 5)))
    clock.advance(4000.0)
    assert history.lately()["turns"] == 0
    assert history.replicas() == {}
    assert history.series()["turns"] == [0]


def test_a_fact_that_is_told_late_counts_as_of_the_latest_slice(decided: Decided, ended: MakeEnded) -> None:
    clock = ManualClock(100.0)
    history = History(clock)
    history.on_ended(ended(decided(at=119.0)))
    history.on_ended(ended(decided(at=90.0)))
    clock.advance(20.0)
    assert history.series()["turns"] == [0, 0, 2]


@pytest.mark.parametrize("ttft_s", [0.0, 1e-9, 0.001, 119.0, 1e6])
def test_every_time_has_a_step(ttft_s: float, decided: Decided, ended: MakeEnded) -> None:
    history = History(ManualClock(50.0))
    history.on_ended(ended(decided(), ttft_s=ttft_s))
    assert history.lately()["ttft_ms"]["p50"] > 0.0
