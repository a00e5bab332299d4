"""Which failures speak against whom, and when one passed probe is enough."""

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId
from router.core.engine import Engine
from router.core.fleet import ModelCard, Report
from router.core.observe import Outcome
from router.core.plan import Plan
from router.core.strategies.least_loaded import LeastLoaded
from tests.support.turns import A, B, C, Recorder, engine, refusal, specs, turn


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
