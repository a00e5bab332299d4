"""What a turn is decided on: what is waited for, and what replicas' own events say."""

import pytest

from router.core.decide import Kind
from router.core.fleet import Report
from tests.support.turns import A, B, cached, engine, long, play, resident, turn


def test_what_waits_before_a_turn_passes_with_time() -> None:
    of = engine("a")
    of.admit(long("s", 320), 0.0)
    waits = [of.decide(turn("t"), at).candidates[0].wait_s for at in (0.0, 4.0, 100.0)]
    assert waits == pytest.approx([10.0, 6.0, 0.0], abs=0.1)


def test_a_full_replica_is_waited_for_as_long_as_turns_hold_their_kv() -> None:
    of = engine("a")
    of.report(A, Report(running=0.0, waiting=0.0, kv_usage=0.0, kv_capacity_tokens=10_000), 0.0)
    of.admit(long("s", 40), 0.0).first_byte(1.0)
    (option,) = of.decide(long("t", 20), 2.0).candidates
    assert option.free_tokens == 0
    assert 4.0 < option.slot_s < 10.0
    assert option.waiting == 0.0
    assert of.decide(turn("u"), 2.0).candidates[0].slot_s > 0.0


def test_a_session_that_another_router_placed_is_at_home_where_its_blocks_lie() -> None:
    of = engine("a", "b", "c")
    of.follow(B, resident("s", 50))
    decision = of.decide(turn("s", 1, 2), 1.0)
    assert (decision.kind, decision.replica, cached(decision)) == (Kind.HOME, B, {"a": 0, "b": 800, "c": 0})


def test_what_a_replica_has_evicted_is_not_expected_there() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1, 2), 0.0, prompt=2000, reply=48).replica
    assert cached(of.decide(turn("s", 1, 2, 3), 1.0))[home] == 2048
    events = resident("s", 128)
    of.follow(home, events)
    assert cached(of.decide(turn("s", 1, 2, 3), 1.0))[home] == 2048
    events.removed(range(101, 129))
    assert cached(of.decide(turn("s", 1, 2, 3), 1.0))[home] == 1600


def test_a_prompt_that_was_changed_finds_no_more_than_it_shares() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1, 2, 3), 0.0, prompt=3000).replica
    of.follow(home, resident("s", 180))
    assert cached(of.decide(turn("s", 1, 9, 8), 1.0))[home] == 1000


def test_a_session_that_another_router_moved_is_followed() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1, 2), 0.0, prompt=2000).replica
    other = A if home == B else B
    of.follow(home, resident("s", 120))
    of.follow(other, resident("s", 200))
    decision = of.decide(turn("s", 1, 2, 3), 1.0)
    assert (decision.home, decision.replica, decision.kind) == (other, other, Kind.HOME)


def test_events_know_more_than_bookkeeping_that_has_let_go() -> None:
    of = engine("a", "b")
    for name in (A, B):
        of.report(name, Report(start_time=1.0, kv_capacity_tokens=2500), 0.0)
    home = play(of, turn("s", 1, 2), 0.0, prompt=2000, reply=48).replica
    play(of, turn("t", 7, 8), 0.5, prompt=2000, reply=48, failed=(A if home == B else B,))
    assert cached(of.decide(turn("s", 1, 2, 3), 1.0))[home] < 1024
    of.follow(home, resident("s", 128))
    decision = of.decide(turn("s", 1, 2, 3), 1.0)
    assert (cached(decision)[home], decision.prompt_tokens) == (2048, 3000)
