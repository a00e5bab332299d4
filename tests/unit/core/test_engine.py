"""The engine: what its parts add up to."""

from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.engine import Engine
from router.core.fleet import ModelCard, Report
from router.core.model import Models
from router.core.observe import Outcome
from router.core.plan import Overload, Plan, QueueRules, SessionRules
from router.core.queue import Held
from router.core.request import Turn
from router.core.strategies.least_loaded import LeastLoaded
from router.core.strategies.priced import Priced
from router.core.strategies.ring import RingOnly
from router.core.ticket import Ticket
from tests.support.turns import A, B, C, Recorder, engine, play, refusal, specs, turn

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


# --- observers --------------------------------------------------------------------------------------


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


def test_a_refused_turn_teaches_nothing_and_wipes_nothing() -> None:
    of = engine("a", models=Models(most=3))
    of.models(A, (ModelCard("m", b"{}"),), 0.0)
    for number in range(40):
        play(of, turn("s", 1, model="m"), float(number), prompt=4000)
    learned = of._models.of("m").ratio.value
    assert learned != of._models.of("other").ratio.value
    for number in range(10):
        with pytest.raises(Refused):
            of.admit(turn("s", 1, model=f"bogus-{number}"), 50.0)
        with pytest.raises(Refused):
            of.decide(turn("s", 1, model=f"asked-{number}"), 50.0)
    assert list(of._models) == ["m"]
    assert of._eligible.kept() == ("m",)
    assert of._models.of("m").ratio.value == learned


def test_asking_for_a_decision_learns_of_no_model() -> None:
    of = engine("a")
    of.decide(turn("s", 1, model="m"), 0.0)
    assert not of._models


def test_of_too_many_models_the_one_used_longest_ago_goes() -> None:
    of = engine("a", models=Models(most=3))
    for at, model in enumerate(("one", "two", "three", "one", "four", "one", "five")):
        play(of, turn("s", 1, model=model), float(at))
    assert list(of._models) == ["four", "one", "five"]


def test_ending_a_session_ends_it_with_models_that_are_forgotten_too() -> None:
    of = engine("a", models=Models(most=1))
    for at, model in enumerate(("one", "two")):
        play(of, turn("s", 1, model=model), float(at))
    play(of, turn("other", 2, model="two"), 2.0)
    assert of.end_session(SessionKey("s"))
    assert [session.key[:-16] for session in of.sessions(10)] == ["other"]


# --- other policies ---------------------------------------------------------------------------------


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
