"""Who may be given a turn, and why nobody may."""

from contextlib import suppress
from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ModelCard
from router.core.plan import Overload, Plan
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, C, engine, play, refusal, specs, turn


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
