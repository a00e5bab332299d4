"""The engine: eligibility, kinds, books, learning, and the traps that need more than a strategy."""

from contextlib import suppress
from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.decide import Decision, Kind
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report, Resident
from router.core.hashing import hash64
from router.core.holdings import AgentReport, Holdings
from router.core.observe import Ended, HealthChange, Outcome, Usage
from router.core.plan import Overload, Plan, PullRules, QueueRules, Retry, SessionRules
from router.core.pullbook import PullBook
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.residency import Residency
from router.core.strategies.least_loaded import LeastLoaded
from router.core.strategies.priced import Priced
from router.core.strategies.ring import RingOnly
from router.core.ticket import Ticket
from tests.support.turns import A, B, C, engine, long, play, refusal, specs, turn

# --- kinds ------------------------------------------------------------------------------------------


def test_a_first_turn_is_new_and_the_next_one_goes_home() -> None:
    of = engine("a", "b", "c")
    first = play(of, turn("s", 1), 0.0)
    second = play(of, turn("s", 1, 2), 1.0)
    assert first.kind is Kind.NEW
    assert second.kind is Kind.HOME
    assert second.replica == first.replica


def test_a_session_moves_only_when_the_other_replica_has_answered() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1), 0.0).replica
    ticket = of.admit(turn("s", 1, 2), 1.0, failed=(home,))
    assert ticket.decision.kind is Kind.FAILOVER
    ticket.end(Outcome.CUT, 1.1)
    assert of.decide(turn("s", 1, 2), 1.2).replica == home
    play(of, turn("s", 1, 2), 2.0, failed=(home,))
    moved = of.decide(turn("s", 1, 2, 3), 3.0)
    assert moved.kind is Kind.HOME
    assert moved.replica != home


def test_home_down_is_a_failover_and_home_back_does_not_call_the_session_back() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1), 0.0).replica
    other = B if home == A else A
    for at in (1.0, 2.0):
        of.probe_failed(home, "connection refused", at)
    assert play(of, turn("s", 1, 2), 3.0).kind is Kind.FAILOVER
    for at in (10.0, 25.0):
        of.probe_passed(home, at)
    decision = of.decide(turn("s", 1, 2, 3), 30.0)
    assert (decision.replica, decision.kind) == (other, Kind.HOME)


def test_a_request_without_session_and_prompt_passes() -> None:
    of = engine("a")
    request = Turn("/v1/x", "", OPEN_TENANT, None, "", Chain((), (), 0))
    assert of.admit(request, 0.0).decision.kind is Kind.PASS


def test_home_over_its_limit_is_a_spill_and_the_rest_keeps_its_affinity() -> None:
    of = engine("a", "b", plan=Plan(name="p", strategy=Priced(), overload=Overload(in_flight=2)))
    home = play(of, turn("s", 1), 0.0).replica
    quiet = next(name for name in map(str, range(50)) if play(of, turn(name), 0.5).replica != home)
    for _ in range(2):
        of.admit(turn("s", 1), 1.0)
    assert of.decide(turn("s", 1), 1.0).kind is Kind.SPILL
    assert of.decide(turn(quiet), 1.0).kind is Kind.HOME


# --- who may be chosen ------------------------------------------------------------------------------


def test_an_empty_fleet_a_sick_one_and_an_overloaded_one_are_different_refusals() -> None:
    empty = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    assert refusal(empty, turn()).kind is ErrorKind.NO_REPLICAS
    sick = engine("a")
    for at in (1.0, 2.0):
        sick.probe_failed(A, "timed out", at)
    sick_refusal = refusal(sick, turn(), 3.0)
    assert sick_refusal.kind is ErrorKind.NONE_HEALTHY
    assert "timed out" in sick_refusal.message
    full = engine("a", plan=Plan(name="p", strategy=Priced(), overload=Overload(in_flight=1)))
    full.admit(turn(), 0.0)
    overloaded = refusal(full, turn(), 0.0)
    assert overloaded.kind is ErrorKind.OVERLOADED
    assert overloaded.retry_after_s == 1.0


def test_a_replica_gets_no_turn_before_its_first_good_probe() -> None:
    of = engine("a")
    of.set_replicas(specs("a", "b"), 1.0)
    assert {of.admit(turn(str(n)), 2.0).decision.replica for n in range(20)} == {A}


def test_a_draining_replica_gets_no_turns_not_even_those_of_its_sessions() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1), 0.0).replica
    of.drain(home, True)
    assert of.decide(turn("s", 1, 2), 1.0).kind is Kind.FAILOVER
    of.drain(home, False)
    assert of.decide(turn("s", 1, 2), 1.0).kind is Kind.HOME
    with pytest.raises(KeyError):
        of.drain(ReplicaId("nobody"), True)


def test_only_replicas_that_serve_the_model_are_chosen_and_a_silent_one_may_serve_any() -> None:
    of = engine("a", "b")
    of.models(A, (ModelCard("m1", b"{}"),), 0.0)
    of.models(B, (ModelCard("m2", b"{}"),), 0.0)
    assert {of.decide(turn(str(n), model="m2"), 1.0).replica for n in range(20)} == {B}
    missing = refusal(of, turn(model="m3"), 1.0)
    assert missing.kind is ErrorKind.NO_SUCH_MODEL
    assert "m1, m2" in missing.message
    of.set_replicas(specs("a", "b", "c"), 2.0)
    of.probe_passed(C, 2.0)
    assert of.decide(turn(model="m3"), 3.0).replica == C


def test_a_turn_that_failed_everywhere_says_where() -> None:
    of = engine("a", "b")
    tried = refusal(of, turn(), failed=(A, B))
    assert tried.kind is ErrorKind.UPSTREAM_FAILED
    assert "a, b failed this turn" in tried.message


# --- the books --------------------------------------------------------------------------------------


def test_in_flight_and_pending_are_counted_at_the_choice_and_uncounted_once() -> None:
    of = engine("a")
    ticket = of.admit(turn("s", 1, 2), 0.0)
    status = of.replicas(0.0)[0]
    assert (status.in_flight, status.pending_tokens) == (1, 2000)
    ticket.first_byte(0.5)
    ticket.first_byte(0.6)
    assert of.replicas(0.6)[0].pending_tokens == 0
    ticket.end(Outcome.COMPLETED, 1.0)
    ticket.end(Outcome.CANCELLED, 2.0)
    ticket.first_byte(3.0)
    status = of.replicas(3.0)[0]
    assert (status.in_flight, status.pending_tokens) == (0, 0)


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


def test_tickets_of_a_replica_that_was_removed_and_added_again_do_not_count_on_the_new_one() -> None:
    of = engine("a", "b")
    ticket = of.admit(turn("s", 1), 0.0, failed=(B,))
    of.set_replicas(specs("b"), 1.0)
    of.set_replicas(specs("a", "b"), 2.0)
    of.probe_passed(A, 2.0)
    ticket.first_byte(3.0)
    ticket.end(Outcome.COMPLETED, 3.0, Usage(1000, 10))
    status = of.replicas(3.0)[0]
    assert (status.id, status.in_flight, status.working_set_tokens, status.index_segments) == (A, 0, 0, 0)


def test_turns_of_ours_that_ended_since_the_report_are_not_taken_for_those_of_others() -> None:
    of = engine("a", "b", plan=Plan(name="p", strategy=LeastLoaded()))
    tickets = [of.admit(turn("s"), 0.0, failed=(B,)) for _ in range(8)]
    of.report(A, Report(running=8.0, waiting=2.0), 1.0)
    for ticket in tickets:
        ticket.end(Outcome.COMPLETED, 2.0)
    foreign = {c.replica: c.foreign for c in of.decide(turn("t"), 2.0).candidates}
    assert foreign == {A: 2.0, B: None}


def test_a_replica_whose_metrics_broke_is_not_over_its_limit_for_ever() -> None:
    of = engine("a", "b")
    of.report(A, Report(kv_usage=0.99, kv_capacity_tokens=900), 0.0)

    def over() -> dict[ReplicaId, str | None]:
        return {c.replica: c.over for c in of.decide(turn("t"), 2.0).candidates}

    for at in range(1, 6):
        of.probe_passed(A, float(at))
        assert over() == {A: "KV usage 0.99, limit 0.98", B: None}
    of.probe_passed(A, 6.0)
    assert over() == {A: None, B: None}
    # People still see what it said last, and how long ago.
    status = of.replicas(6.0)[0]
    assert (status.report, status.report_age_s) == (Report(kv_usage=0.99, kv_capacity_tokens=900), 6.0)


def test_asking_does_not_change_what_comes_next() -> None:
    of, twin = (engine("a", "b", "c", plan=Plan(name="p", strategy=LeastLoaded())) for _ in range(2))
    for number in range(20):
        of.decide(turn(str(number)), 0.0)
        assert of.admit(turn(str(number)), 0.0).decision == twin.admit(turn(str(number)), 0.0).decision


# --- learning ---------------------------------------------------------------------------------------


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


def test_a_restarted_replica_is_cold_at_once() -> None:
    of = engine("a")
    of.report(A, Report(start_time=100.0), 0.0)
    play(of, turn("s", 1, 2), 1.0)
    assert of.decide(turn("s", 1, 2), 2.0).cached_tokens > 0
    of.report(A, Report(start_time=None), 2.5)
    of.report(A, Report(start_time=100.4), 3.0)
    assert of.decide(turn("s", 1, 2), 3.0).kind is Kind.HOME
    of.report(A, Report(start_time=500.0), 4.0)
    cold = of.decide(turn("s", 1, 2), 5.0)
    assert (cold.kind, cold.cached_tokens) == (Kind.NEW, 0)
    assert of.replicas(5.0)[0].restarts == 1


@pytest.mark.parametrize("outcome", [Outcome.DIED, Outcome.CONNECT_FAILED])
def test_a_replica_without_a_start_time_that_was_gone_is_cold_when_it_is_back(outcome: Outcome) -> None:
    of = engine("a", "b")
    of.report(A, Report(kv_usage=0.5), 0.0)
    play(of, turn("s", 1, 2), 1.0, failed=(B,))
    of.admit(turn("s", 1, 2), 2.0, failed=(B,)).end(outcome, 2.5)
    of.probe_passed(A, 3.0)
    assert of.replicas(3.0)[0].restarts == 0  # still ejected
    of.probe_failed(A, "connection refused", 3.5)
    of.probe_passed(A, 40.0)
    cold = of.decide(turn("s", 1, 2), 40.0)
    assert (cold.kind, cold.cached_tokens) == (Kind.NEW, 0)
    assert of.replicas(40.0)[0].restarts == 1
    of.probe_passed(A, 41.0)
    assert of.replicas(41.0)[0].restarts == 1


def test_a_replica_that_tells_its_start_time_is_warm_after_a_refused_connection() -> None:
    of = engine("a")
    of.report(A, Report(start_time=100.0), 0.0)
    play(of, turn("s", 1, 2), 1.0)
    of.admit(turn("s", 1, 2), 2.0).end(Outcome.CONNECT_FAILED, 2.5)
    of.probe_passed(A, 40.0)
    of.report(A, Report(start_time=100.0), 40.1)
    assert of.decide(turn("s", 1, 2), 41.0).kind is Kind.HOME
    assert of.replicas(41.0)[0].restarts == 0


def test_a_replica_that_left_and_came_back_under_its_name_is_cold() -> None:
    of = engine("a", "b")
    play(of, turn("s", 1), 0.0, failed=(B,))
    of.set_replicas(specs("b"), 1.0)
    assert of.decide(turn("s", 1), 1.0).kind is Kind.FAILOVER
    of.set_replicas(specs("a", "b"), 2.0)
    of.probe_passed(A, 2.0)
    decision = of.decide(turn("s", 1), 3.0)
    assert decision.kind is Kind.NEW
    assert all(candidate.cached_tokens == 0 for candidate in decision.candidates)


def test_a_changed_url_is_another_replica() -> None:
    of = engine("a")
    play(of, turn("s", 1), 0.0)
    of.set_replicas([ReplicaSpec(A, "http://elsewhere:1")], 1.0)
    of.probe_passed(A, 1.0)
    assert of.decide(turn("s", 1), 2.0).kind is Kind.NEW


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


def test_turns_of_an_earlier_life_take_nothing_from_the_next_one() -> None:
    of = engine("a")
    of.report(A, Report(start_time=1.0), 0.0)
    old = of.admit(turn("s", 1), 0.0)
    waits = of.admit(turn("t", 2).replace(stream=False), 0.0)
    of.report(A, Report(start_time=9.0), 1.0)
    of.probe_passed(A, 1.0)
    new = of.admit(turn("u", 3), 1.0)
    old.first_byte(1.5)
    old.end(Outcome.DIED, 1.5)
    waits.end(Outcome.COMPLETED, 1.5)
    (status,) = of.replicas(9.0)
    assert (status.in_flight, status.pending_tokens) == (1, new.missing)
    new.end(Outcome.COMPLETED, 2.0)
    (status,) = of.replicas(9.0)
    assert (status.in_flight, status.pending_tokens) == (0, 0)


def test_another_replicas_deliveries_are_its_own_and_a_restart_wipes_them() -> None:
    of = engine("a", "b")
    of.report(A, Report(start_time=1.0), 0.0)
    for at in range(40):
        play(of, turn("s", 1, 2, 3), float(at), prompt=3000, cached=0, failed=(B,))
        play(of, turn("t", 1, 2, 3), float(at), prompt=3000, cached=2990, failed=(A,))
    cached = {c.replica: c.cached_tokens for c in of.decide(turn("u", 1, 2, 3), 50.0).candidates}
    assert (cached[A], cached[B]) == (0, 3000)
    of.report(A, Report(start_time=900.0), 60.0)
    play(of, turn("s", 1, 2, 3), 61.0, prompt=3000, failed=(B,))
    assert {c.cached_tokens for c in of.decide(turn("u", 1, 2, 3), 62.0).candidates} == {3000}


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


def test_the_base_model_says_how_many_bytes_a_replica_holds_whatever_its_adapters_are() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_tokens=2000)], 0.0)
    of.probe_passed(A, 0.0)
    of.models(A, tuple(ModelCard(name, b"{}") for name in ("base", "x", "y", "z", "w")), 0.0)
    for at in range(60):
        play(of, turn("s", 1, model="base"), float(at), prompt=2000)
        play(of, turn("t", 2, model="x"), float(at), prompt=100)
    of.report(A, Report(), 61.0)
    # Half a token a byte: two segments of 4,000 bytes are 4,000 tokens, and one is all that fits.
    play(of, turn("u", 8, 9, model="base"), 62.0, prompt=4000)
    assert of.replicas(63.0)[0].index_segments == 1


def test_a_failed_turn_leaves_no_residency() -> None:
    of = engine("a")
    ticket = of.admit(turn("s", 1), 0.0)
    ticket.end(Outcome.CUT, 1.0)
    status = of.replicas(1.0)[0]
    assert (status.working_set_tokens, status.index_segments) == (0, 0)


def test_the_index_forgets_when_the_replica_must_have() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_tokens=2500)], 0.0)
    of.probe_passed(A, 0.0)
    play(of, turn("s", 1, 2), 0.0, prompt=2000, reply=0)
    play(of, turn("t", 8, 9), 1.0, prompt=2000, reply=0)
    assert of.decide(turn("u", 8, 9, 10), 2.0).cached_tokens > 1500
    assert of.decide(turn("u", 1, 2, 10), 2.0).cached_tokens < 1500


# --- tenants, models, pins --------------------------------------------------------------------------


def test_one_id_with_two_models_has_two_homes() -> None:
    of = engine("a", "b")
    of.models(A, (ModelCard("large", b"{}"),), 0.0)
    of.models(B, (ModelCard("small", b"{}"),), 0.0)
    for at in range(3):
        large = play(of, turn("s", 1, model="large"), at)
        small = play(of, turn("s", 2, model="small"), at)
        expected = Kind.NEW if at == 0 else Kind.HOME
        assert (large.kind, small.kind) == (expected, expected)
    ended = of.end_session(SessionKey("s"))
    assert {(session.model, session.home) for session in ended} == {("large", A), ("small", B)}
    assert not of.end_session(SessionKey("s"))
    assert of.decide(turn("s", 1, model="large"), 9.0).kind is Kind.NEW


def test_sessions_will_leave_a_home_that_drains_or_is_short_of_kv_by_the_policy_that_is_asked_for() -> None:
    of = engine("a", "b")
    of.set_plans(
        [
            Plan(name="home", strategy=Priced()),
            Plan(name="strict", strategy=Priced(), overload=Overload(kv_usage=0.9)),
        ]
    )
    assert [of.plan_of(name) for name in ("home", "strict", "gone")] == [0, 1, 0]
    of.report(A, Report(kv_usage=0.95), 0.0)
    assert [of.will_leave(A, plan=plan) for plan in (0, 1)] == [False, True]
    assert [of.will_leave(B, plan=plan) for plan in (0, 1)] == [False, False]
    of.drain(B, True)
    assert of.will_leave(B)
    assert of.will_leave(ReplicaId("unknown"))


def test_a_stored_response_is_a_pin_for_its_own_tenant_only() -> None:
    of = engine("a", "b", "c", plan=Plan(name="p", strategy=RingOnly()))
    acme, beta = TenantId("acme"), TenantId("beta")
    ticket = of.admit(turn("s", 1, tenant=acme), 0.0)
    ticket.first_byte(0.1)
    of.stored(acme, "resp_1", ticket)
    holder = ticket.decision.replica
    pinned = [of.decide(turn(str(n), tenant=acme, response_id="resp_1"), 1.0) for n in range(20)]
    assert {decision.replica for decision in pinned} == {holder}
    # Replicas know no tenants, so one that has never seen the id must not be asked for it either.
    assert refusal(of, turn("s", tenant=beta, response_id="resp_1"), 1.0).kind is ErrorKind.NOT_FOUND
    assert refusal(of, turn("s", tenant=acme, response_id="resp_2"), 1.0).kind is ErrorKind.NOT_FOUND


def test_a_look_at_a_response_is_of_its_session_and_model_and_leaves_no_trace() -> None:
    of = engine("a", "b", "c")
    for replica in (A, B, C):
        of.models(replica, (ModelCard("m", b"{}"),), 0.0)
    ticket = of.admit(turn("s", 1, 2), 0.0)
    ticket.first_byte(0.1)
    of.stored(OPEN_TENANT, "resp_1", ticket)
    ticket.end(Outcome.COMPLETED, 0.2, Usage(2000, 50))
    before = list(of.sessions(9))
    poll = Turn("/v1/responses/resp_1", "", OPEN_TENANT, None, "", Chain((), (), 0), "resp_1")
    looked = of.admit(poll, 1.0)
    assert looked.decision.home == looked.decision.replica == ticket.decision.replica
    assert (looked.decision.kind, looked.decision.prompt_tokens, looked.missing) == (Kind.HOME, 0, 0)
    looked.first_byte(1.1)
    looked.end(Outcome.COMPLETED, 1.2)
    assert of.sessions(9) == before
    assert before[0].turns == 1
    # The model may have been unloaded since; the response is there all the same.
    of.models(ticket.decision.replica, (ModelCard("another", b"{}"),), 2.0)
    assert of.decide(poll, 3.0).replica == ticket.decision.replica


def test_a_turn_without_a_prompt_has_no_home_to_leave() -> None:
    of = engine("a", "b")
    play(of, turn("s", 1).replace(chain=Chain((), (), 0)), 0.0)
    assert of.sessions(9) == []


def test_without_tenants_an_unknown_response_is_for_the_replicas_to_judge() -> None:
    of = engine("a", "b", "c")
    request = turn("s", 1, response_id="resp_of_an_earlier_router")
    assert of.decide(request, 1.0).kind is Kind.NEW


def test_a_pin_whose_replica_is_down_or_restarted_is_refused_not_sent_elsewhere() -> None:
    of = engine("a", "b")
    of.report(A, Report(start_time=1.0), 0.0)
    ticket = of.admit(turn("s", 1), 0.0, failed=(B,))
    of.stored(OPEN_TENANT, "resp_1", ticket)
    of.drain(A, True)
    draining = refusal(of, turn("s", response_id="resp_1"), 1.0)
    assert (draining.kind, draining.retry_after_s) == (ErrorKind.PINNED_GONE, 1.0)
    assert draining.message.endswith("is stored on replica a, which is draining")
    of.drain(A, False)
    of.report(A, Report(start_time=900.0), 2.0)
    restarted = refusal(of, turn("s", response_id="resp_1"), 3.0)
    assert restarted.kind is ErrorKind.PINNED_GONE
    assert "restarted" in restarted.message
    assert of.decide(turn("s", response_id="resp_1"), 4.0).kind is Kind.NEW


def going_on(from_response: str, *segments: int) -> Turn:
    """A turn that sends nothing but what is new: its chain, and what is derived of it, are its own."""
    session = SessionKey(f"derived from {segments}")
    return turn("", *segments, response_id=from_response).replace(session=session, session_source="derived")


def test_a_conversation_by_response_ids_is_one_session_at_home_with_all_that_came_before() -> None:
    of = engine("a", "b", "c")
    request = going_on("resp_0", 1).replace(response_id=None)
    for number in range(1, 5):
        ticket = of.admit(request, float(number))
        ticket.first_byte(number + 0.1)
        of.stored(OPEN_TENANT, f"resp_{number}", ticket)
        ticket.end(Outcome.COMPLETED, number + 0.2, Usage(1000 * number, 50, 0))
        request = going_on(f"resp_{number}", 10 + number)
    [session] = of.sessions(9)
    assert (session.turns, session.moves, session.resident_tokens) == (4, 0, 4050)
    assert sum(status.working_set_tokens for status in of.replicas(9.0)) == 4050
    decision = of.decide(request, 9.0)
    assert (decision.kind, decision.reason, decision.home) == (Kind.HOME, "holds the response", session.home)
    assert decision.cached_tokens == 4050
    assert decision.prompt_tokens == 4050 + of.decide(turn("other", 99), 9.0).prompt_tokens


def test_a_branch_from_an_earlier_response_claims_no_more_than_it_sends() -> None:
    of = engine("a")
    first = of.admit(turn("s", 1), 0.0)
    first.first_byte(0.1)
    of.stored(OPEN_TENANT, "resp_1", first)
    first.end(Outcome.COMPLETED, 0.2, Usage(1000, 50, 0))
    play(of, turn("s", 1, 2), 1.0, prompt=2000)
    branch = of.decide(going_on("resp_1", 7), 2.0)
    assert (branch.kind, branch.cached_tokens) == (Kind.HOME, 0)


def test_usage_of_a_conversation_by_response_ids_says_nothing_of_tokens_a_byte() -> None:
    of = engine("a")
    play(of, turn("s", 1), 0.0, prompt=1000)
    before = of.decide(turn("other", 99), 1.0).prompt_tokens
    for number in range(20):
        play(of, going_on("resp_1", 50 + number), 1.0 + number, prompt=90_000)
    assert of.decide(turn("other", 99), 30.0).prompt_tokens == before


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


# --- failures ---------------------------------------------------------------------------------------


def test_a_refused_connection_takes_the_replica_out_at_once() -> None:
    of = engine("a", "b")
    of.admit(turn("s", 1), 0.0, failed=(B,)).end(Outcome.CONNECT_FAILED, 0.1)
    assert of.replicas(0.2)[0].health == "down"
    assert of.decide(turn("t"), 0.2).replica == B


def test_a_replica_that_fails_fast_does_not_look_idle() -> None:
    of = engine("a", "b", plan=Plan(name="p", strategy=LeastLoaded()))
    taken = {A: 0, B: 0}
    for number in range(40):
        now = number * 0.1
        ticket = of.admit(turn(str(number)), now)
        taken[ticket.decision.replica] += 1
        failed = ticket.decision.replica == A
        ticket.end(Outcome.SERVER_ERROR if failed else Outcome.COMPLETED, now + 0.01)
    assert taken[A] <= 4


def send_poison(of: Engine, number: int, now: float) -> None:
    """A prompt that no replica can serve, with its retries."""
    failed: tuple[ReplicaId, ...] = ()
    for attempt in range(3):
        try:
            ticket = of.admit(turn(f"poison-{number}"), now + attempt * 0.01, failed=failed)
        except Refused:
            return
        ticket.end(Outcome.SERVER_ERROR, now + attempt * 0.01 + 0.005)
        failed += (ticket.decision.replica,)


@pytest.mark.parametrize(("replicas", "kept"), [("a", 1), ("ab", 1), ("abc", 2), ("abcde", 3)])
def test_prompts_that_no_replica_can_serve_take_out_half_of_the_fleet_at_most(
    replicas: str, kept: int
) -> None:
    of = engine(*replicas)
    for number in range(400):
        now = number * 0.05
        send_poison(of, number, now)
        if number % 20 == 0:
            for name in replicas:
                of.probe_passed(ReplicaId(name), now)
        takes_turns = [s for s in of.replicas(now) if s.health in ("healthy", "probation")]
        assert len(takes_turns) >= kept
        # And whoever else comes is served.
        of.admit(turn("fine"), now + 0.04).end(Outcome.CANCELLED, now + 0.04)


def test_one_such_prompt_speaks_against_the_first_that_it_was_tried_on_alone() -> None:
    of = engine("a", "b", "c")
    send_poison(of, 1, 0.0)
    assert sorted(status.recent_failures for status in of.replicas(0.0)) == pytest.approx([0, 0, 1], abs=0.01)


def test_a_replica_that_fails_while_too_few_are_left_is_kept_and_that_is_said() -> None:
    recorder = Recorder()
    of = engine("a", "b", observer=recorder)
    of.admit(turn("s"), 0.0, failed=(B,)).end(Outcome.CONNECT_FAILED, 0.0)
    for at in (1.0, 1.1, 1.2, 1.3):
        of.admit(turn("t"), at).end(Outcome.TIMEOUT, at)
    status = of.replicas(1.4)[1]
    assert (status.id, status.health) == (B, "healthy")
    assert status.why == "turns failed in a row (3): timeout; kept, as too few others are left"
    assert [fact for fact in recorder.facts if fact[0] == "health"][-1] == ("health", ("healthy", "healthy"))
    assert of.decide(turn("u"), 1.5).replica == B


def test_replicas_of_other_models_are_no_reason_to_spare_one() -> None:
    of = engine("a", "b", "c")
    for replica, model in ((A, "m"), (B, "n"), (C, "n")):
        of.models(replica, (ModelCard(model, b"{}"),), 0.0)
    for at in range(9):
        of.admit(turn("s", model="m"), float(at)).end(Outcome.TIMEOUT, at + 0.1)
    for at in range(9):
        of.admit(turn("s", model="n"), float(at)).end(Outcome.TIMEOUT, at + 0.1)
    assert [status.health for status in of.replicas(9.0)].count("down") == 1
    assert of.replicas(9.0)[0].health == "healthy"


def test_when_nobody_else_is_left_a_passed_probe_brings_a_replica_back_at_once() -> None:
    of = engine("a", "b")
    for at in (1.0, 1.1, 1.2):
        of.admit(turn("s"), at, failed=()).end(Outcome.TIMEOUT, at)
    first = next(status.id for status in of.replicas(1.3) if status.health == "down")
    of.probe_passed(first, 1.3)
    assert {status.health for status in of.replicas(1.3)} == {"down", "healthy"}
    of.admit(turn("s"), 1.4).end(Outcome.DIED, 1.4)
    assert refusal(of, turn("s"), 1.5).kind is ErrorKind.NONE_HEALTHY
    of.probe_passed(first, 1.6)
    assert of.admit(turn("s"), 1.6).decision.replica == first
    status = next(status for status in of.replicas(1.7) if status.id == first)
    assert (status.health, status.why) == ("probation", "probe passed, and no other is left")


def test_after_a_restart_of_the_whole_fleet_no_turn_is_refused_for_a_share_that_spares_nobody() -> None:
    of = engine("a", "b")
    for replica in (A, B):
        of.probe_failed(replica, "gone", 1.0)
        of.probe_failed(replica, "gone", 2.0)
    assert refusal(of, turn("s"), 2.0).kind is ErrorKind.NONE_HEALTHY
    for replica in (A, B):
        of.probe_passed(replica, 5.0)
    assert {status.health for status in of.replicas(5.0)} == {"probation"}
    decisions = [of.admit(turn(str(number)), 5.0).decision for number in range(40)]
    words = "over its share while returning, as no replica is well"
    assert [words in decision.reason for decision in decisions] == [False] * 2 + [True] * 38
    assert {decision.replica for decision in decisions} == {A, B}
    assert of.admit(turn("x"), 5.0, failed=(A,)).decision.replica == B


def test_a_returning_replica_keeps_to_its_share_while_another_is_well() -> None:
    of = engine("a", "b")
    of.probe_failed(A, "gone", 1.0)
    of.probe_failed(A, "gone", 2.0)
    of.probe_passed(A, 5.0)
    placed = [of.admit(turn(str(number)), 5.0).decision for number in range(40)]
    assert sum(decision.replica == A for decision in placed) <= 1
    assert not any("over its share" in decision.reason for decision in placed)
    with suppress(Refused):
        of.admit(turn("x"), 5.0, failed=(B,))
    assert refusal(of, turn("x"), 5.0, failed=(B,)).kind is ErrorKind.UPSTREAM_FAILED


@pytest.mark.parametrize("change", ["removed", "replaced", "restarted"])
def test_what_was_sent_to_a_replica_of_the_past_says_nothing_of_the_one_that_has_its_name(
    change: str,
) -> None:
    recorder = Recorder()
    of = engine("a", "b", observer=recorder)
    of.report(A, Report(start_time=1.0), 0.0)
    tickets = [of.admit(turn("s"), 0.0, failed=(B,)) for _ in range(5)]
    if change == "restarted":
        of.report(A, Report(start_time=900.0), 1.0)
    else:
        of.set_replicas(specs("b"), 1.0)
        if change == "replaced":
            of.set_replicas(specs("a", "b"), 1.0)
            of.probe_passed(A, 1.0)
    facts = len(recorder.facts)
    for ticket in tickets:
        ticket.end(Outcome.DIED, 2.0)
    assert {kind for kind, _ in recorder.facts[facts:]} == {"ended"}
    assert {status.health for status in of.replicas(3.0)} == {"healthy"}
    assert all(status.recent_failures == 0.0 for status in of.replicas(3.0))


def test_a_client_that_leaves_or_errs_says_nothing_of_the_replica() -> None:
    of = engine("a")
    for at in range(10):
        of.admit(turn(), at).end(Outcome.CANCELLED, at)
        of.admit(turn(), at).end(Outcome.CLIENT_ERROR, at)
    assert of.replicas(10.0)[0].health == "healthy"


def test_retries_end_with_the_attempts_the_death_and_the_budget() -> None:
    of = engine(
        "a", plan=Plan(name="p", strategy=Priced(), retry=Retry(attempts=2, after_death=0, budget=0.0))
    )
    assert of.may_retry((Outcome.CUT,), 0.0)
    assert of.may_retry((Outcome.CUT, Outcome.SERVER_ERROR), 0.0)
    assert not of.may_retry((Outcome.CUT,) * 3, 0.0)
    assert not of.may_retry((Outcome.DIED,), 0.0)
    granted = sum(of.may_retry((Outcome.CUT,), 0.0) for _ in range(1000))
    assert 0 < granted < 100


def test_turns_of_a_replica_that_is_gone_move_on_whatever_the_budget_says_and_once_after_a_death() -> None:
    of = engine("a", plan=Plan(name="p", strategy=Priced(), retry=Retry(budget=0.0)))
    while of.may_retry((Outcome.CUT,), 0.0):
        pass
    assert all(of.may_retry((Outcome.DIED,), 0.0) for _ in range(1000))
    assert all(of.may_retry((Outcome.CONNECT_FAILED, Outcome.CONNECT_FAILED), 0.0) for _ in range(1000))
    assert of.may_retry((Outcome.DIED, Outcome.CONNECT_FAILED), 0.0)
    assert not of.may_retry((Outcome.DIED, Outcome.DIED), 0.0)
    assert not of.may_retry((Outcome.DIED, Outcome.CUT), 0.0)


# --- observers --------------------------------------------------------------------------------------


class Recorder:
    def __init__(self) -> None:
        self.facts: list[tuple[str, object]] = []

    def on_decision(self, of: Turn, decision: Decision) -> None:
        self.facts.append(("decision", decision.kind))

    def on_refused(self, of: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self.facts.append(("refused", kind))

    def on_ended(self, ended: Ended) -> None:
        self.facts.append(("ended", (ended.outcome, ended.ttft_s)))

    def on_health(self, change: HealthChange) -> None:
        self.facts.append(("health", (change.before, change.after)))

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        self.facts.append(("restarted", replica))

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self.facts.append(("moved", (before, after)))


def test_every_fact_is_told_once_in_order() -> None:
    recorder = Recorder()
    of = engine("a", observer=recorder)
    ticket = of.admit(turn(), 0.0)
    ticket.first_byte(0.25)
    ticket.end(Outcome.COMPLETED, 1.0)
    whole = of.admit(turn(stream=False), 1.0)
    whole.first_byte(2.0)
    whole.end(Outcome.COMPLETED, 2.0)
    # Some replica had this turn and failed it, which its end tells: it is not refused.
    assert refusal(of, turn(), failed=(A,)).kind is ErrorKind.UPSTREAM_FAILED
    of.drain(A, True)
    refusal(of, turn(), 3.0)
    assert recorder.facts == [
        ("health", ("starting", "healthy")),
        ("decision", Kind.NEW),
        ("ended", (Outcome.COMPLETED, 0.25)),
        ("decision", Kind.HOME),
        # Its first byte came after all decoding: no time to a first token.
        ("ended", (Outcome.COMPLETED, None)),
        ("refused", ErrorKind.NONE_HEALTHY),
    ]


def test_an_observer_that_raises_is_detached_and_reported_and_routing_goes_on() -> None:
    class Broken(Recorder):
        def on_decision(self, of: Turn, decision: Decision) -> None:
            raise RuntimeError("full disk")

    reported: list[Exception] = []
    of = Engine(
        [Plan(name="p", strategy=Priced())], rng=Random(1), observer=Broken(), on_detach=reported.append
    )
    of.set_replicas(specs("a"), 0.0)
    of.probe_passed(A, 0.0)
    tickets: list[Ticket] = [of.admit(turn(), 0.0) for _ in range(3)]
    assert [str(error) for error in reported] == ["full disk"]
    assert of.in_flight() == len(tickets)


# --- what is kept of models -------------------------------------------------------------------------


def test_a_refused_turn_teaches_nothing_and_wipes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.core.engine._MAX_MODELS", 3)
    of = engine("a")
    of.models(A, (ModelCard("m", b"{}"),), 0.0)
    for number in range(40):
        play(of, turn("s", 1, model="m"), float(number), prompt=4000)
    learned = of._model("m").ratio.value
    assert learned != of._model("other").ratio.value
    for number in range(10):
        with pytest.raises(Refused):
            of.admit(turn("s", 1, model=f"bogus-{number}"), 50.0)
        with pytest.raises(Refused):
            of.decide(turn("s", 1, model=f"asked-{number}"), 50.0)
    assert list(of._models) == ["m"]
    assert list(of._ready) == ["m"]
    assert of._model("m").ratio.value == learned


def test_asking_for_a_decision_learns_of_no_model() -> None:
    of = engine("a")
    of.decide(turn("s", 1, model="m"), 0.0)
    assert not of._models


def test_of_too_many_models_the_one_used_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.core.engine._MAX_MODELS", 3)
    of = engine("a")
    for at, model in enumerate(("one", "two", "three", "one", "four", "one", "five")):
        play(of, turn("s", 1, model=model), float(at))
    assert list(of._models) == ["four", "one", "five"]


def test_ending_a_session_ends_it_with_models_that_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.core.engine._MAX_MODELS", 1)
    of = engine("a")
    for at, model in enumerate(("one", "two")):
        play(of, turn("s", 1, model=model), float(at))
    play(of, turn("other", 2, model="two"), 2.0)
    assert of.end_session(SessionKey("s"))
    assert [session.key[:-16] for session in of.sessions(10)] == ["other"]


# --- other policies -----------------------------------------------------------------------------------


def test_policies_are_swapped_whole_and_keep_sessions_and_prefixes():
    made = engine(A, B, C)
    first = play(made, turn("s", 1, 2), 1.0)
    made.set_plans(
        [Plan(name="other", strategy=LeastLoaded(), vnodes=40), Plan(name="ring", strategy=RingOnly())]
    )
    assert [plan.name for plan in made.plans] == ["other", "ring"]
    decision = made.decide(turn("s", 1, 2, 3), 2.0)
    assert (decision.policy, decision.home) == ("other", first.replica)
    assert decision.candidates != ()
    assert made.decide(turn("s", 1, 2, 3), 2.0, plan=1).policy == "ring"


def test_a_turn_whose_policy_is_gone_goes_on_under_the_default():
    plans = [Plan(name=name, strategy=LeastLoaded()) for name in ("one", "two", "three")]
    made = engine(A, B)
    made.set_plans(plans)
    ticket = made.admit(turn("s", 1), 1.0, plan=2)
    made.set_plans([Plan(name="new", strategy=LeastLoaded())])
    assert [plan.name for plan in made.plans] == ["new"]
    ticket.end(Outcome.CONNECT_FAILED, 1.1)
    assert made.may_retry([Outcome.CONNECT_FAILED], 1.1, plan=2)
    retry = made.admit(turn("s", 1), 1.2, plan=2, failed=(ticket.decision.replica,))
    assert retry.decision.policy == "new"
    retry.end(Outcome.COMPLETED, 1.3)
    assert made.in_flight() == 0


def test_a_retry_budget_that_stays_the_same_is_not_filled_by_a_reload():
    plan = Plan(name="home", strategy=Priced(), retry=Retry(budget=0.0))
    made = engine(A, B, plan=plan)
    spent = sum(made.may_retry([Outcome.CUT], 1.0) for _ in range(100))
    assert 0 < spent < 100
    made.set_plans([plan])
    assert not made.may_retry([Outcome.CUT], 1.0)
    made.set_plans([Plan(name="home", strategy=Priced(), retry=Retry(budget=0.5))])
    assert made.may_retry([Outcome.CUT], 1.0)


def test_sessions_are_forgotten_after_the_time_of_the_new_policies():
    made = engine(A, B, C)
    play(made, turn("s", 1), 0.0)
    made.set_plans([Plan(name="short", strategy=Priced(), session=SessionRules(idle_s=5.0))])
    assert made.decide(turn("s", 1), 4.0).home is not None
    assert made.decide(turn("s", 1), 6.0).home is None


def test_an_engine_is_never_without_a_policy():
    made = engine(A)
    with pytest.raises(ValueError, match="at least one plan"):
        made.set_plans([])
    assert [plan.name for plan in made.plans] == ["home"]


# --- what replicas take, and where KV lies ----------------------------------------------------------


def test_what_the_device_gave_up_still_lies_on_the_host_and_costs_the_way_back() -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000, kv_usage=0.0), 0.0)
    for name in "stuv":
        play(of, turn(name, hash64(name.encode()), hash64(name.encode() * 2)), 1.0, prompt=2000)
    (option,) = of.decide(turn("s", hash64(b"s"), hash64(b"ss")), 2.0).candidates
    assert (option.cached_tokens, option.reach_tokens) == (2000, 12_000)
    assert option.host_tokens == 2000
    (latest,) = of.decide(turn("v", hash64(b"v"), hash64(b"vv")), 2.0).candidates
    assert (latest.cached_tokens, latest.host_tokens) == (2000, 0)


def test_what_lies_on_the_device_is_within_reach_when_a_host_tier_is_heard_of() -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=100_000), 0.0)
    play(of, long("s", 320), 0.0, prompt=80_000)
    of.report(A, Report(kv_capacity_tokens=100_000, host_kv_tokens=400_000), 1.0)
    play(of, long("t", 320), 1.0, prompt=80_000)
    (option,) = of.decide(long("s", 320), 2.0).candidates
    assert option.cached_tokens == pytest.approx(80_000, rel=0.01)
    assert option.host_tokens == pytest.approx(60_000, rel=0.01)


def test_one_report_without_capacities_forgets_nothing() -> None:
    of = engine("a")
    full = Report(kv_capacity_tokens=100_000, host_kv_tokens=400_000)
    of.report(A, full, 0.0)
    for session in "stu":
        play(of, long(session, 320), 0.0, prompt=80_000)
    before = of.decide(long("s", 320), 1.0).candidates[0]
    assert before.host_tokens == pytest.approx(80_000, rel=0.01)
    of.report(A, Report(running=0.0), 1.0)
    of.report(A, full, 2.0)
    assert of.decide(long("s", 320), 3.0).candidates[0].cached_tokens == before.cached_tokens


def test_an_agent_that_is_another_process_holds_nothing_and_what_the_device_has_stays() -> None:
    of = Engine(
        [Plan(name="home", strategy=Priced())],
        rng=Random(1),
        pullbook=PullBook(PullRules()),
        holdings=Holdings(),
    )
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_agent="x")], 0.0)
    of.probe_passed(A, 0.0)
    of.report(A, Report(kv_capacity_tokens=100_000), 0.0)
    told = AgentReport(True, capacity_tokens=400_000)
    of.agent_reported(A, told, 0.0)
    for session in "st":
        play(of, long(session, 320), 0.0, prompt=80_000)
    of.agent_lost(A, False, 1.0)
    of.agent_reported(A, told, 1.0)
    assert of.decide(long("s", 320), 1.0).candidates[0].cached_tokens == pytest.approx(80_000, rel=0.01)
    of.agent_lost(A, True, 2.0)
    assert of.decide(long("s", 320), 2.0).candidates[0].reach_tokens == 100_000
    of.agent_reported(A, told, 2.0)
    first, last = (of.decide(long(session, 320), 3.0).candidates[0] for session in "st")
    assert first.reach_tokens == 500_000
    # The device had given up most of the first one.
    assert (first.cached_tokens, first.host_tokens) == (20_000, 0)
    assert last.cached_tokens == pytest.approx(80_000, rel=0.01)
    assert last.host_tokens == 0


def test_a_host_tier_that_is_gone_holds_nothing() -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000), 0.0)
    for name in "st":
        play(of, turn(name, hash64(name.encode()), hash64(name.encode() * 2)), 1.0, prompt=2000)
    of.report(A, Report(kv_capacity_tokens=3000), 2.0)
    (option,) = of.decide(turn("s", hash64(b"s"), hash64(b"ss")), 3.0).candidates
    # The last 3,000 tokens are still on the device: 1,000 of them its own.
    assert (option.cached_tokens, option.host_tokens, option.reach_tokens) == (1000, 0, 3000)


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


# --- what replicas' own events say --------------------------------------------------------------------


def resident(session: str, blocks: int) -> Residency:
    made = Residency()
    made.stored(list(range(1, blocks + 1)), None, 16, SessionKey(session))
    return made


def cached(decision: Decision) -> dict[str, int]:
    return {candidate.replica: candidate.cached_tokens for candidate in decision.candidates}


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


def test_a_feed_that_is_lost_leaves_bookkeeping_as_it_was() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1, 2), 0.0, prompt=2000, reply=48).replica
    before = of.decide(turn("s", 1, 2, 3), 1.0)
    of.follow(home, resident("s", 1))
    of.follow(home, None)
    of.follow(ReplicaId("nobody"), resident("s", 1))
    assert of.decide(turn("s", 1, 2, 3), 1.0) == before


def test_a_restarted_replica_is_not_believed_by_the_events_of_its_last_life() -> None:
    of = engine("a", "b")
    of.report(A, Report(start_time=100.0), 0.0)
    of.follow(A, resident("s", 50))
    of.report(A, Report(start_time=200.0), 1.0)
    assert cached(of.decide(turn("s", 1, 2), 2.0))["a"] == 0


def test_a_cache_that_was_cleared_is_empty_and_keeps_its_stored_responses() -> None:
    of = engine("a", "b")
    ticket = of.admit(turn("s", 1, 2), 0.0)
    ticket.first_byte(0.1)
    of.stored(OPEN_TENANT, "resp", ticket)
    ticket.end(Outcome.COMPLETED, 0.2, Usage(2000, 20, None))
    home = ticket.decision.replica
    of.cache_cleared(home)
    assert cached(of.decide(turn("s", 1, 2, 3), 1.0))[home] == 0
    assert of.decide(turn("t", 5, response_id="resp"), 1.0).replica == home


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


# --- for people -------------------------------------------------------------------------------------


def test_a_session_is_found_by_its_own_key_and_by_that_of_one_model() -> None:
    of = engine("a", "b")
    key = "0123456789abcdef" * 2
    play(of, turn(key, 1, model="large"), 0.0)
    play(of, turn(key, 2, model="small"), 1.0)
    play(of, turn("another"), 2.0)
    found = of.sessions_of(SessionKey(key))
    assert sorted(session.model for session in found) == ["large", "small"]
    assert [session.model for session in of.sessions_of(found[0].key)] == [found[0].model]
    assert of.sessions_of(SessionKey("nobody")) == []
    assert of.session_count() == 3


def test_whereabouts_are_what_replicas_and_agents_say() -> None:
    holdings = Holdings(pools=[ReplicaId("pool")])
    of = Engine(
        [Plan(name="home", strategy=Priced())],
        rng=Random(1),
        pullbook=PullBook(PullRules()),
        holdings=holdings,
    )
    of.set_replicas(specs("a", "b"), 0.0)
    key = SessionKey("0123456789abcdef" * 2)
    assert of.whereabouts(key) == []
    residency = Residency()
    residency.stored([1, 2, 3], None, 16, key)
    of.follow(A, residency)
    of.agent_reported(B, AgentReport(True, ((key, 96),), (), 96), 0.0)
    of.agent_reported(ReplicaId("pool"), AgentReport(True, ((key, 32),), (), 32), 0.0)
    expected = [
        Resident(B, 96, "agent"),
        Resident(A, 48, "events"),
        Resident(ReplicaId("pool"), 32, "agent"),
    ]
    assert of.whereabouts(key) == expected
    # The longer key, which names a model, is of the same session.
    assert of.whereabouts(SessionKey(key + "f" * 16)) == expected


def test_held_turns_are_shown_while_they_wait() -> None:
    of = engine("a", plan=Plan(name="home", strategy=Priced(), queue=QueueRules()))
    waiting = []
    for number in range(40):
        entered = of.enter(turn(f"s{number}", number + 1), float(number))
        if isinstance(entered, Held):
            waiting.append(entered)
    assert waiting
    assert of.held_turns(3) == waiting[:3]
    of.leave(waiting[0], 50.0)
    assert waiting[0] not in of.held_turns(100)


# --- learning together ------------------------------------------------------------------------------


def believed_s(of: Engine, replica: ReplicaId) -> float:
    """For a thousand tokens, as of its last report."""
    of.report(replica, Report(start_time=1.0), 9.0)
    lent = of.lend(replica)
    assert lent is not None
    return lent.learned.curve.seconds(1000, 1000)


def slow_turns(of: Engine, replica: ReplicaId, model: str) -> None:
    """Which take three seconds for a thousand tokens."""
    for number in range(20):
        ticket = of.admit(turn(f"{replica}{number}", model=model), 5.0 + number)
        assert ticket.decision.replica == replica
        ticket.first_byte(8.0 + number)
        ticket.end(Outcome.COMPLETED, 8.0 + number, Usage(1000, 1, 0))


def test_what_one_replica_taught_is_believed_of_those_that_serve_the_same() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas(specs("a", "b", "c"), 0.0)
    cards = {A: "m", B: "m", C: "other"}
    for name, model in cards.items():
        of.models(name, (ModelCard(model, b"{}"), ModelCard(f"{model}-adapter", b"{}")), 0.0)
    of.probe_passed(A, 0.0)
    seed_s = believed_s(of, B)
    slow_turns(of, A, "m")
    assert believed_s(of, A) > 5 * seed_s
    assert 5 * seed_s < believed_s(of, B) < believed_s(of, A)
    assert believed_s(of, C) == seed_s
    # One that is another process, or joins, is taken for one of them.
    of.report(B, Report(start_time=500.0), 40.0)
    assert believed_s(of, B) > 5 * seed_s
    of.set_replicas(specs("a", "c"), 50.0)
    of.set_replicas(specs("a", "b", "c"), 51.0)
    of.models(B, (ModelCard("m", b"{}"),), 51.0)
    assert believed_s(of, B) > 5 * seed_s


def test_what_was_learned_of_a_model_goes_with_the_last_that_serves_it() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas(specs("a", "c"), 0.0)
    of.models(A, (ModelCard("m", b"{}"),), 0.0)
    of.probe_passed(A, 0.0)
    seed_s = believed_s(of, A)
    slow_turns(of, A, "m")
    of.set_replicas(specs("c"), 50.0)
    of.set_replicas(specs("a", "c"), 51.0)
    of.models(A, (ModelCard("m", b"{}"),), 51.0)
    assert believed_s(of, A) == seed_s
