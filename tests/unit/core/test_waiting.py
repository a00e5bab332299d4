"""Turns that wait in the router: who has to, who goes when there is room, and what becomes of the others."""

from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId, TenantId
from router.core.engine import Engine
from router.core.estimate.pulls import Breaker
from router.core.fleet import ReplicaSpec, Report
from router.core.observe import Outcome, WaitEnd
from router.core.observer import Silent
from router.core.plan import Overload, Plan, PullRules, QueueRules
from router.core.pullbook import PullBook, Pulled
from router.core.queue import TURN_TOKENS, Held, due_at
from router.core.request import EMPTY_CHAIN, Turn
from router.core.strategies.least_loaded import LeastLoaded
from router.core.strategies.priced import Priced
from router.core.strategies.ring import RingOnly
from router.core.ticket import Ticket
from tests.support.turns import A, B, C, engine, long, play, specs, turn


def queued(*names: str, rules: QueueRules | None = None, strategy: object = None, **more: object) -> Engine:
    """An engine that holds turns; its replicas have room for 100,000 tokens."""
    rules = rules or QueueRules(ageing=0.1)
    plan = Plan(name="q", strategy=strategy or RingOnly(), queue=rules, **more)  # type: ignore[arg-type]
    made = engine(*names, plan=plan)
    for name in names:
        made.report(ReplicaId(name), Report(kv_usage=0.0, kv_capacity_tokens=100_000), 0.0)
    return made


def enter(of: Engine, request: Turn, now: float, **more: object) -> Held:
    """Enter a turn that must wait."""
    entered = of.enter(request, now, **more)  # type: ignore[arg-type]
    assert isinstance(entered, Held)
    return entered


def go(of: Engine, request: Turn, now: float, **more: object) -> Ticket:
    """Enter a turn that must not wait."""
    entered = of.enter(request, now, **more)  # type: ignore[arg-type]
    assert isinstance(entered, Ticket)
    return entered


def test_with_order_engine_nothing_ever_waits() -> None:
    of = engine("a")
    for number in range(20):
        go(of, long(f"s{number}"), 0.0)
    assert of.held == 0
    assert of.wake_at() is None
    assert of.dispatch(1.0) == ([], [])


def test_an_idle_fleet_holds_nothing() -> None:
    of = queued("a", "b")
    for number in range(50):
        ticket = go(of, long(f"s{number}", 4 * (number + 1)), float(number))
        assert ticket.decision.waited_s == 0.0
        ticket.first_byte(number + 0.3)
        ticket.end(Outcome.COMPLETED, number + 0.9)


def test_a_turn_waits_while_its_replica_has_enough_to_prefill_and_goes_at_the_first_byte() -> None:
    of = queued("a")
    first = go(of, long("s"), 0.0)
    held = enter(of, turn("t"), 0.1)
    assert (of.held, of.in_flight()) == (1, 1)
    assert of.dispatch(0.2) == ([], [])
    first.first_byte(1.0)
    ((went, ticket),), refused = of.dispatch(1.1)
    assert (went, refused) == (held, [])
    assert ticket.decision.waited_s == pytest.approx(1.0)
    assert ticket.decision.at == 1.1
    assert (of.held, of.in_flight()) == (0, 2)


def test_the_shorter_goes_first_whoever_came_first() -> None:
    of = queued("a")
    first = go(of, long("s"), 0.0)
    longer, shorter = enter(of, long("t", 80), 0.1), enter(of, turn("u"), 0.2)
    first.first_byte(1.0)
    went, _ = of.dispatch(1.0)
    assert [held for held, _ in went] == [shorter, longer]


def test_a_turn_waits_for_free_kv_and_one_that_fits_passes_it() -> None:
    of = queued("a")
    first = go(of, long("s", 320), 0.0)  # 80,000 of 100,000 tokens
    first.first_byte(1.0)
    big = enter(of, long("t", 120), 2.0)
    small = go(of, turn("u"), 2.0)
    first.end(Outcome.COMPLETED, 3.0)
    ((went, _),), _ = of.dispatch(3.0)
    assert went is big
    small.end(Outcome.COMPLETED, 3.0)


def test_a_replica_with_nothing_of_ours_is_given_even_what_does_not_fit() -> None:
    of = queued("a")
    of.report(A, Report(kv_usage=0.9, kv_capacity_tokens=100_000), 0.0)
    go(of, long("s", 120), 0.0)


def test_a_report_of_freed_kv_lets_turns_go() -> None:
    of = queued("a")
    go(of, turn("s"), 0.0).first_byte(0.1)
    of.report(A, Report(kv_usage=0.95, kv_capacity_tokens=100_000), 0.2)
    held = enter(of, long("t"), 0.3)
    assert of.dispatch(0.4) == ([], [])
    of.report(A, Report(kv_usage=0.5, kv_capacity_tokens=100_000), 1.0)
    ((went, _),), _ = of.dispatch(1.0)
    assert went is held


def test_nothing_is_known_of_free_kv_once_the_report_is_out_of_date() -> None:
    of = queued("a")
    go(of, turn("s"), 0.0).first_byte(0.1)
    of.report(A, Report(kv_usage=0.95, kv_capacity_tokens=100_000), 0.2)
    enter(of, long("t"), 0.3)
    for at in range(6):
        of.probe_passed(A, 1.0 + at)
    assert len(of.dispatch(7.0)[0]) == 1


def test_a_turn_whose_time_is_up_is_refused_with_when_to_come_back() -> None:
    of = queued("a", rules=QueueRules(wait_s=5.0))
    go(of, long("s"), 0.0)
    held = enter(of, turn("t"), 1.0)
    sooner = enter(of, turn("u"), 1.0, wait_s=2.0)
    assert of.wake_at() == 3.0
    assert of.dispatch(2.9) == ([], [])
    ((expired, refused),) = of.dispatch(3.0)[1]
    assert expired is sooner
    assert refused.kind is ErrorKind.QUEUE_EXPIRED
    assert refused.retry_after_s is not None
    assert of.wake_at() == 6.0
    assert [held for held, _ in of.dispatch(6.0)[1]] == [held]
    assert of.dispatch(7.0) == ([], [])


def test_a_client_may_wait_less_than_the_policy_lets_and_never_more() -> None:
    of = queued("a", rules=QueueRules(wait_s=5.0))
    go(of, long("s"), 0.0)
    assert enter(of, turn("t"), 0.0, wait_s=60.0).deadline == 5.0


def test_a_client_that_leaves_leaves_the_queue_once() -> None:
    of = queued("a")
    first = go(of, long("s"), 0.0)
    held = enter(of, turn("t"), 0.1)
    of.leave(held, 0.2)
    of.leave(held, 0.3)
    assert of.held == 0
    first.first_byte(1.0)
    assert of.dispatch(1.0) == ([], [])


def test_a_full_queue_refuses_with_429_s_kind() -> None:
    of = queued("a", rules=QueueRules(most=2))
    go(of, long("s"), 0.0)
    enter(of, turn("t"), 0.0)
    enter(of, turn("u"), 0.0)
    with pytest.raises(Refused) as caught:
        of.enter(turn("v"), 0.0)
    assert caught.value.kind is ErrorKind.QUEUE_FULL
    assert caught.value.retry_after_s == 300.0


def test_a_tenant_with_less_in_a_full_queue_has_anothers_turn_refused() -> None:
    of = queued("a", rules=QueueRules(most=2))
    go(of, long("s"), 0.0)
    enter(of, turn("t", tenant=TenantId("acme")), 0.0)
    last = enter(of, long("u"), 0.0)
    of.leave(last, 0.0)
    last = enter(of, turn("u", 5, 6, tenant=TenantId("acme")), 0.0)
    enter(of, turn("v", tenant=TenantId("beta")), 0.0)
    ((pushed, refused),) = of.dispatch(0.0)[1]
    assert pushed is last
    assert refused.kind is ErrorKind.QUEUE_FULL


def test_a_priority_passes_turns_that_came_before() -> None:
    of = queued("a", rules=QueueRules(ageing=0.1, leads_s={"high": 60.0}))
    first = go(of, long("s"), 0.0)
    usual, high = enter(of, turn("t"), 0.1), enter(of, long("u"), 0.2, priority="high")
    first.first_byte(1.0)
    assert [held for held, _ in of.dispatch(1.0)[0]] == [high]
    assert usual.waiting


def test_turns_without_a_prompt_to_prefill_never_wait() -> None:
    of = queued("a")
    go(of, long("s"), 0.0)
    go(of, turn("t").replace(computes=False), 0.0)
    go(of, turn("u").replace(chain=EMPTY_CHAIN), 0.0)


def test_a_turn_that_is_not_streamed_counts_as_prefilled_in_time_and_wakes_the_queue() -> None:
    of = queued("a")
    go(of, long("s").replace(stream=False), 0.0)  # 10,000 tokens at 8,000 a second
    enter(of, turn("t"), 0.1)
    assert of.wake_at() == pytest.approx(1.25, rel=0.01)
    assert len(of.dispatch(1.26)[0]) == 1


def test_a_hard_limit_of_turns_in_flight_holds_instead_of_refusing() -> None:
    of = queued("a", rules=QueueRules(in_flight=1), overload=Overload(in_flight=1))
    first = go(of, turn("s"), 0.0)
    first.first_byte(0.1)
    enter(of, turn("t"), 0.2)
    first.end(Outcome.COMPLETED, 1.0)
    assert len(of.dispatch(1.0)[0]) == 1


def test_a_fixed_horizon_is_seconds_of_prefill() -> None:
    of = queued("a", rules=QueueRules(horizon_s=2.0))
    for number in range(2):
        go(of, long(f"s{number}"), 0.0)
    enter(of, turn("t"), 0.0)  # 20,000 tokens are more than two seconds of 8,000


def test_a_held_turn_is_bound_when_it_goes_and_not_before() -> None:
    of = queued("a", "b", strategy=LeastLoaded())
    tickets = [go(of, long(f"s{number}"), 0.0) for number in range(2)]
    held = enter(of, turn("t"), 0.1)
    assert held.chosen[0].replica == A
    other = next(ticket for ticket in tickets if ticket.decision.replica == B)
    other.first_byte(1.0)
    other.end(Outcome.COMPLETED, 1.0)
    ((_, ticket),), _ = of.dispatch(1.0)
    assert ticket.decision.replica == B


@pytest.mark.parametrize("how", ["down", "removed", "drained"])
def test_turns_that_wait_for_a_replica_that_is_lost_go_elsewhere(how: str) -> None:
    of = queued("a", "b")
    for number in range(8):
        of.enter(long(f"s{number}"), 0.0)
    waiting = of.held
    assert waiting == 6
    if how == "down":
        of.probe_failed(A, "gone", 1.0)
        of.probe_failed(A, "gone", 1.0)
    elif how == "removed":
        of.set_replicas(specs("b"), 1.0)
    else:
        of.drain(A, True)
    of.dispatch(1.0)
    assert of.wake_at() != 1.0
    statuses = {status.id: status.held for status in of.replicas(1.0)}
    assert statuses[B] == waiting
    assert statuses.get(A, 0) == 0


def test_turns_are_refused_when_no_replica_is_left() -> None:
    of = queued("a")
    go(of, long("s"), 0.0)
    held = enter(of, turn("t"), 0.0)
    of.drain(A, True)
    ((refused, why),) = of.dispatch(1.0)[1]
    assert refused is held
    assert why.kind is ErrorKind.NONE_HEALTHY
    assert of.held == 0


def test_a_burst_of_new_sessions_that_wait_does_not_herd() -> None:
    of = queued("a", "b", "c", "d", strategy=Priced())
    for number in range(80):
        of.enter(long(f"s{number}"), 0.0)
    held = [status.held for status in of.replicas(0.0)]
    assert sum(held) == 76
    assert max(held) <= 24


def test_the_strategy_sees_what_waits_for_each_replica() -> None:
    of = queued("a")
    go(of, long("s"), 0.0)
    enter(of, long("t"), 0.0)
    enter(of, turn("u"), 0.0)
    (candidate,) = of.decide(turn("v"), 0.0).candidates
    assert candidate.held_tokens == 11_000 + 2 * TURN_TOKENS
    assert candidate.free_tokens == 90_000
    held = enter(of, long("w", 20), 0.0)
    (candidate,) = held.chosen[0].candidates
    assert candidate.ahead_tokens == 1000 + TURN_TOKENS


def test_others_work_shrinks_our_share_but_never_to_nothing() -> None:
    of = queued("a")
    of.report(A, Report(running=4.0, waiting=100.0), 0.0)
    first = go(of, turn("s"), 0.0)  # 1,000 tokens; a quarter of the horizon is 2,048
    go(of, turn("t"), 0.0)
    go(of, turn("u"), 0.0)
    enter(of, turn("v"), 0.0)
    of.report(A, Report(running=4.0, waiting=3.0), 0.5)  # ours
    assert len(of.dispatch(0.5)[0]) == 1
    first.end(Outcome.COMPLETED, 1.0)


def test_each_wait_is_told_with_its_end() -> None:
    told: list[tuple[float, WaitEnd]] = []

    class Watcher(Silent):
        def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
            told.append((waited_s, end))

    of = Engine(
        [Plan(name="q", strategy=RingOnly(), queue=QueueRules(wait_s=4.0))], rng=Random(1), observer=Watcher()
    )
    of.set_replicas(specs("a"), 0.0)
    of.probe_passed(A, 0.0)
    first = go(of, long("s"), 0.0)
    goes, leaves = enter(of, turn("t"), 0.0), enter(of, long("u"), 0.0)
    enter(of, long("v"), 0.0)
    of.leave(leaves, 0.5)
    first.first_byte(1.0)
    assert of.dispatch(1.0)[0][0][0] is goes
    enter(of, long("w", 400), 1.0)
    of.dispatch(4.0)
    of.drain(A, True)
    of.dispatch(4.5)
    assert told == [
        (0.5, WaitEnd.LEFT),
        (1.0, WaitEnd.DISPATCHED),
        (1.0, WaitEnd.DISPATCHED),
        (3.5, WaitEnd.NO_REPLICA),
    ]


def test_more_turns_than_are_priced_in_one_go_are_all_seen_to_in_several() -> None:
    of = queued("a", "b")
    entered = [of.enter(long(f"s{number}", 4), 0.0, wait_s=100.0) for number in range(302)]
    waiting = of.held
    assert waiting > 250
    of.set_replicas(specs("b", "c"), 1.0)
    of.probe_passed(C, 1.0)
    for ticket in entered:
        if isinstance(ticket, Ticket):
            ticket.end(Outcome.COMPLETED, 1.0)
    went, now = 0, 1.0
    while of.held:
        for ticket in [ticket for _, ticket in of.dispatch(now)[0]]:
            ticket.end(Outcome.COMPLETED, now)
            went += 1
        wake = of.wake_at()
        if wake is None or wake > now:
            # Else there is more to be seen to at once.
            now += 0.005
        assert now < 10.0
    assert went == waiting


def test_a_long_line_for_a_replica_that_drains_is_moved_some_at_a_time_and_none_goes_there() -> None:
    of = queued("a", "b")
    entered = [of.enter(long(f"s{number}", 40), 0.0) for number in range(100)]
    waiting = {status.id: status.held for status in of.replicas(0.0)}
    assert waiting[A] > 30
    running = [ticket for ticket in entered if isinstance(ticket, Ticket)]
    of.drain(A, True)
    for ticket in running:
        ticket.end(Outcome.COMPLETED, 1.0)
    looks = 0
    while (left := {status.id: status.held for status in of.replicas(1.0)}[A]) > 0:
        went, refused = of.dispatch(1.0)
        assert refused == []
        assert all(ticket.decision.replica == B for _, ticket in went)
        after = {status.id: status.held for status in of.replicas(1.0)}[A]
        assert left - 12 <= after < left
        assert not after or of.wake_at() == 1.0
        looks += 1
    assert looks > 2


def test_a_replica_that_drains_is_no_idle_one() -> None:
    of = queued("a", "b")
    assert of.has_idle()
    of.drain(B, True)
    go(of, long("s"), 0.0)
    assert not of.has_idle()


def test_turns_that_were_priced_at_one_instant_keep_to_what_their_source_may_give() -> None:
    rules = PullRules(per_source=2, seed_gbps=800.0)
    book = PullBook(rules)
    plan = Plan(name="q", strategy=Priced(), queue=QueueRules(), pull=rules)
    of = Engine([plan], rng=Random(1), pullbook=book)
    of.set_replicas([ReplicaSpec(name, f"http://{name}:1", kv_agent="x") for name in (A, B)], 0.0)
    for replica in (A, B):
        of.probe_passed(replica, 0.0)
    of.drain(B, True)
    sessions = [long(f"s{number}", 160) for number in range(12)]
    for session in sessions:
        play(of, session, 0.0, prompt=40_000)
    for at in range(30):
        # What the path carries is known.
        book.end(A, B, book.begin(A, B, at), Pulled(4000, 400_000_000, 0.01, complete=True), at)
    of.drain(B, False)
    of.drain(A, True)
    first = go(of, long("other", 400), 50.0)
    held = [enter(of, session, 51.0) for session in sessions]
    assert all(each.chosen[0].pull is not None for each in held)
    first.first_byte(52.0)
    went = of.dispatch(52.0)[0]
    while of.wake_at() == 52.0:
        went += of.dispatch(52.0)[0]
    assert [ticket.decision.pull is not None for _, ticket in went].count(True) == 2
    assert not book.allows(A, 52.0)


def test_what_a_source_that_fails_would_have_brought_waits_behind_what_is_warm() -> None:
    """A burst of failures opens the breaker. Those who would have pulled are cold then, and do not go to
    prefill all at once: they wait, behind turns that have little to compute. When it closes, they pull."""
    rules = PullRules(per_source=50, seed_gbps=800.0)
    book = PullBook(rules)
    plan = Plan(name="q", strategy=Priced(), queue=QueueRules(), pull=rules)
    of = Engine([plan], rng=Random(1), pullbook=book)
    of.set_replicas([ReplicaSpec(name, f"http://{name}:1", kv_agent="x") for name in (A, B)], 0.0)
    for replica in (A, B):
        of.probe_passed(replica, 0.0)
    for at in range(30):
        book.end(A, B, book.begin(A, B, at), Pulled(4000, 400_000_000, 0.01, complete=True), at)
    of.drain(B, True)
    away = [long(f"s{number}", 160) for number in range(6)]
    for session in away:
        play(of, session, 31.0, prompt=40_000)
    of.drain(B, False)
    of.drain(A, True)
    warm = long("warm", 160)
    play(of, warm, 32.0, prompt=40_000)
    assert of.decide(away[0], 40.0).pull is not None
    for _ in range(20):
        book.result(A, False, 41.0)
    first = go(of, away[0], 41.0)
    assert first.decision.pull is None
    cold = [enter(of, session, 41.0) for session in away[1:]]
    assert not any(held.chosen[0].pull for held in cold)
    last = enter(of, turn("warm", *warm.chain.hashes, 7), 42.0)
    first.first_byte(43.0)
    went = [held for held, _ in of.dispatch(43.0)[0]]
    assert went[0] is last
    assert len(went) < len(cold), "not all at once"
    # It comes back by steps, each pull that succeeds lets the next one be sooner.
    now = 60.0
    while not book.allows(A, now) or book.breakers(now)[A] is not Breaker.CLOSED:
        if book.allows(A, now):
            book.end(A, B, book.begin(A, B, now), Pulled(4000, 400_000_000, 0.01, complete=True), now)
        now += 1.0
        assert now < 120.0
    assert of.decide(away[5], now).pull is not None


def test_a_turn_that_passes_those_that_do_not_fit_is_not_expected_to_wait_for_them() -> None:
    of = queued("a")
    first = go(of, long("s", 320), 0.0)  # 80,000 of 100,000 tokens
    first.first_byte(1.0)
    before = enter(of, long("t", 120), 2.0)
    at_once = go(of, long("u", 60), 60.0)
    late = due_at(60.0, 0.1, before.chosen[1], 15_000, 15_000)
    assert 60.0 < before.due < late
    assert (at_once.decision.chosen.slot_s, at_once.decision.chosen.wait_s) == (0.0, 0.0)
    assert at_once.decision.chosen.free_tokens == pytest.approx(20_000, rel=0.01)
