"""What a new life of a replica starts with, and what the last one took along."""

from random import Random

from router.base.ids import ReplicaId
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, C, cached, engine, play, resident, specs, turn


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


def test_a_restarted_replica_is_not_believed_by_the_events_of_its_last_life() -> None:
    of = engine("a", "b")
    of.report(A, Report(start_time=100.0), 0.0)
    of.follow(A, resident("s", 50))
    of.report(A, Report(start_time=200.0), 1.0)
    assert cached(of.decide(turn("s", 1, 2), 2.0))["a"] == 0


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
