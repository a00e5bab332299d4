"""What turns leave behind, and what they teach."""

from random import Random

import pytest

from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, engine, play, turn


def test_a_health_check_does_not_touch_the_counters() -> None:
    of = engine("a")
    of.admit(turn(), 0.0)
    of.probe_failed(A, "slow", 1.0)
    of.probe_passed(A, 2.0)
    of.report(A, Report(running=0.0, waiting=0.0), 3.0)
    assert of.in_flight() == 1


def test_a_turn_that_is_not_streamed_leaves_prefill_after_the_predicted_time() -> None:
    of = engine("a")
    of.admit(turn("s", 1, 2, stream=False), 0.0)
    of.decide(turn("other"), 0.1)
    assert of.replicas(0.1)[0].pending_tokens == 2000
    of.decide(turn("other"), 0.3)  # 2,000 tokens at 8,000 a second
    status = of.replicas(0.3)[0]
    assert (status.in_flight, status.pending_tokens) == (1, 0)


def test_what_a_turn_left_behind_is_predicted_for_the_next_reply_included() -> None:
    of = engine("a", "b")
    play(of, turn("s", 1, 2), 0.0, prompt=1900, reply=100)
    decision = of.decide(turn("s", 1, 2, 3, 4), 1.0)
    # 1,900 and 100 as reported; the 8,000 bytes since, by the ratio.
    assert decision.cached_tokens == 2000
    assert 1900 + 1800 <= decision.prompt_tokens <= 1900 + 2200


def test_another_replica_is_credited_with_the_shared_prefix_alone() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1, 2), 0.0).replica
    decision = of.decide(turn("t", 1, 9), 1.0)
    cached = {candidate.replica: candidate.cached_tokens for candidate in decision.candidates}
    assert cached[home] == pytest.approx(1000, rel=0.6)
    assert cached[B if home == A else A] == 0


def test_what_a_replica_does_not_deliver_is_expected_of_it_less_and_less() -> None:
    of = engine("a")
    play(of, turn("s", 1, 2, 3), 0.0, prompt=3000)
    expected = []
    for number in range(1, 41):
        decision = play(of, turn("s", 1, 2, 3), float(number), prompt=3000, reply=0, cached=0)
        expected.append(decision.cached_tokens / decision.prompt_tokens)
    assert [expected[n] for n in (0, 1, 5, 10, 20)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.125], abs=0.01)
    assert of.decide(turn("s", 1, 2, 3), 99.0).cached_tokens == 0
    # It computes all of it each time, and is home all the same.
    last = of.admit(turn("s", 1, 2, 3), 100.0)
    assert (last.decision.kind, last.missing) == (Kind.HOME, 3000)
    # The prompt is known to be there if it caches at all, so what it does deliver is noticed.
    for number in range(101, 170):
        play(of, turn("s", 1, 2, 3), float(number), prompt=3000, reply=0, cached=2990)
    assert of.decide(turn("s", 1, 2, 3), 200.0).cached_tokens == 3000


def test_a_replica_that_loses_what_it_should_hold_is_believed_to_hold_less() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_tokens=8000)], 0.0)
    of.probe_passed(A, 0.0)
    for at, number in enumerate(range(1, 9)):
        play(of, turn(f"s{number}", number), float(at), prompt=1000, reply=0)
    held = of.replicas(9.0)[0].index_segments
    assert held == 8
    for at in range(10, 20):
        play(of, turn("s8", 8), float(at), prompt=1000, reply=0, cached=0)
    # 8,000 tokens × 0.9¹⁰ = 2,790
    assert of.replicas(20.0)[0].index_segments == 2


def test_a_report_of_a_removed_replica_or_of_an_earlier_life_teaches_nothing() -> None:
    of = engine("a")
    of.report(A, Report(start_time=1.0), 0.0)
    play(of, turn("s", 1, 2, 3), 0.0, prompt=3000)
    early = [of.admit(turn("s", 1, 2, 3), 1.0) for _ in range(9)]
    of.report(A, Report(start_time=900.0), 2.0)
    play(of, turn("s", 1, 2, 3), 3.0, prompt=3000)
    for ticket in early:
        ticket.end(Outcome.COMPLETED, 4.0, Usage(3000, 0, 0))
    assert of.decide(turn("s", 1, 2, 3), 5.0).cached_tokens == 3000
    last = of.admit(turn("s", 1, 2, 3), 6.0)
    of.set_replicas((), 7.0)
    last.end(Outcome.COMPLETED, 8.0, Usage(3000, 0, 0))


def test_a_failed_turn_leaves_no_residency() -> None:
    of = engine("a")
    ticket = of.admit(turn("s", 1), 0.0)
    ticket.end(Outcome.CUT, 1.0)
    status = of.replicas(1.0)[0]
    assert (status.working_set_tokens, status.index_segments) == (0, 0)


def test_a_turn_that_only_counts_its_prompt_loads_nothing_and_leaves_nothing() -> None:
    of = engine("a", "b")
    counted = of.admit(turn("s", 1).replace(computes=False), 0.0)
    assert sum(status.pending_tokens for status in of.replicas(0.0)) == 0
    counted.first_byte(0.1)
    counted.end(Outcome.COMPLETED, 0.2)
    first = of.decide(turn("s", 1), 1.0)
    assert (first.kind, first.cached_tokens) == (Kind.NEW, 0)


def test_a_turn_without_a_prompt_leaves_its_session_as_it_was() -> None:
    of = engine("a", "b")
    play(of, turn("s", 1), 0.0, prompt=1000, reply=20)
    play(of, turn("s", 1).replace(chain=Chain((), (), 0)), 1.0)
    [session] = of.sessions(9)
    assert (session.resident_tokens, session.turns) == (1020, 1)
    assert of.decide(turn("s", 1, 2), 2.0).cached_tokens == 1020


def test_first_tokens_teach_what_a_replica_takes_and_a_restart_unlearns_it() -> None:
    of = engine("a")
    of.report(A, Report(start_time=1.0), 0.0)

    def expected() -> float:
        (option,) = of.decide(turn("z", 99), 1000.0).candidates
        return option.curve.work_s(8000, 8000)

    seed = expected()
    for number in range(30):
        ticket = of.admit(turn(f"s{number}", number + 1, number + 1001), 10.0 * number)
        ticket.first_byte(10.0 * number + 4.0)
        ticket.end(Outcome.COMPLETED, 10.0 * number + 5.0, Usage(8000, 20, 0))
    assert seed == pytest.approx(1.0, rel=0.01)
    assert expected() == pytest.approx(4.0, rel=0.1)
    of.report(A, Report(start_time=900.0), 900.0)
    assert expected() == seed


def test_a_turn_that_is_not_streamed_teaches_nothing_of_first_tokens() -> None:
    of = engine("a")
    before = of.decide(turn("z", 99), 0.0).candidates[0].curve
    for number in range(5):
        ticket = of.admit(turn(f"s{number}", number + 1, stream=False), 10.0 * number)
        ticket.first_byte(10.0 * number + 9.0)
        ticket.end(Outcome.COMPLETED, 10.0 * number + 9.0, Usage(1000, 20, 0))
    assert of.decide(turn("z", 99), 100.0).candidates[0].curve == before
