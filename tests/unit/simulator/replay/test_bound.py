"""The bound: nothing is computed twice, and whoever has least left goes first."""

from pathlib import Path

import pytest

from router.core.plan import Plan
from router.core.strategies.ring import RingOnly
from router.simulator.replay.bound import Bound
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.reading import read_trace
from router.simulator.replay.trace import Trace, TraceSession, TraceTurn
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings

SMALL = Path(__file__).parents[3] / "data" / "small-trace.jsonl"
SETTINGS = ReplicaSettings(block_size=64, kv_blocks=1000, prefill_tps=1000.0, max_model_len=10**9)


def bound(trace, replicas=1, selection=None):
    workload = choose(trace, selection or Selection(), SETTINGS.context_tokens)
    return Bound(workload, SETTINGS, replicas=replicas).run()


def test_a_session_alone_is_as_on_a_replica(make):
    measured = bound(make.trace(make.session("s", (1000, 0, 11, 0.0), (1200, 15, 11, 5.0))))
    assert measured.ttft_s == pytest.approx([1.0, 0.24])
    assert measured.session_s == pytest.approx([1.0 + 0.2 + 5.0 + 0.24 + 0.2])
    assert (measured.prompt_tokens, measured.cached_tokens) == (2200, 960)


def test_a_short_turn_takes_the_place_of_a_long_one_which_goes_on_later(make):
    trace = make.trace(
        make.session("long", (4000, 0, 1, 0.0)),
        make.session("short", (500, 0, 1, 0.0), at=1.0),
        make.session("middle", (2000, 0, 1, 0.0), at=1.2),
    )
    # Short: 1.0 to 1.5. Middle: 1.5 to 3.5, before the 3 s that are left of the long one, 3.5 to 6.5.
    assert bound(trace).ttft_s == pytest.approx([0.5, 2.3, 6.5])


def test_one_that_has_no_more_left_than_the_new_one_is_not_interrupted(make):
    trace = make.trace(make.session("a", (2000, 0, 1, 0.0)), make.session("b", (1000, 0, 1, 0.0), at=1.0))
    assert bound(trace).ttft_s == pytest.approx([2.0, 2.0])


def test_all_replicas_serve_one_queue(make):
    trace = make.trace(*(make.session(name, (1000, 0, 1, 0.0)) for name in "abc"))
    assert bound(trace, replicas=2).ttft_s == pytest.approx([1.0, 1.0, 2.0])


def test_a_block_that_any_turn_has_brought_is_everywhere_at_once():
    turns = [TraceTurn(0.0, tokens, 1, 0.0, 0, (1, 2, *own)) for tokens, own in ((300, (3, 4)), (200, (5,)))]
    trace_ = [TraceSession(name, 0.0, (turn,), 0) for name, turn in zip("ab", turns, strict=True)]
    measured = bound(Trace("made", 64, tuple(trace_), timed=True), replicas=2)
    assert sorted(measured.ttft_s) == pytest.approx([(200 - 128) / 1000, 0.3])


def test_the_last_block_is_always_computed_in_part():
    turn = TraceTurn(0.0, 128, 1, 0.0, 0, (1, 2))
    sessions = tuple(TraceSession(name, at, (turn,), 0) for name, at in (("a", 0.0), ("b", 5.0)))
    measured = bound(Trace("made", 64, sessions, timed=True))
    assert measured.ttft_s == pytest.approx([0.128, 0.064])


@pytest.mark.parametrize("rate", [0.0, 0.2, 2.0])
def test_no_replay_is_better_on_the_small_trace(rate):
    selection = Selection(rate=rate, seed=5)
    trace = read_trace(SMALL)
    best = bound(trace, 3, selection)
    workload = choose(trace, selection, SETTINGS.context_tokens)
    plan = Plan(name="ring", strategy=RingOnly())
    real = FleetReplay(plan, workload, SETTINGS, replicas=3, seed=5).run()
    assert len(best.ttft_s) == len(real.ttft_s)
    assert sum(best.ttft_s) <= sum(real.ttft_s) + 1e-9
    assert best.cached_tokens / best.prompt_tokens >= real.cached_tokens / real.prompt_tokens
    assert bound(trace, 3, selection).ttft_s == best.ttft_s
