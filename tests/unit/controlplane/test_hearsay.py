"""What workers tell one another of their turns, and what comes of it."""

from random import Random

import pytest

from router.base.clock import ManualClock
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.controlplane.hearsay import Hearsay
from router.controlplane.link import Kind
from router.core.decide import Kind as Decided
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced

A, B = ReplicaId("a"), ReplicaId("b")
NAMES = (A, B)


class Worker:
    """An engine that tells, and what it has told."""

    def __init__(self, start_time: float | None = 1000.0) -> None:
        self.hearsay = Hearsay(ManualClock(50.0))
        self.engine = Engine(
            [Plan(name="home", strategy=Priced())],
            rng=Random(1),
            observer=self.hearsay,
            on_stored=self.hearsay.stored,
        )
        self.hearsay.hearing = self.engine.hearing
        self.said: list[tuple[Kind, bytes]] = []
        self.hearsay.set_listener(lambda kind, message: self.said.append((kind, message)))
        self.engine.set_replicas([ReplicaSpec(name, f"http://{name}") for name in NAMES], 0.0)
        for name in NAMES:
            self.engine.probe_passed(name, 0.0)
            self.engine.report(name, Report(start_time=start_time), 0.0)

    def serve(self, turn: Turn, outcome: Outcome = Outcome.COMPLETED, *, answered: bool = True) -> ReplicaId:
        ticket = self.engine.admit(turn, 10.0)
        if answered:
            ticket.first_byte(11.0)
        ticket.end(outcome, 12.0, Usage(1000, 20, 0) if outcome is Outcome.COMPLETED else None)
        return ticket.decision.replica

    def hear(self, other: "Worker") -> None:
        for kind, message in other.said:
            self.hearsay.hear(kind, message)


def turn(
    session: str = "s", *, last: bool = False, response: str | None = None, tenant: TenantId = OPEN_TENANT
) -> Turn:
    return Turn(
        "/v1/responses",
        "m",
        tenant,
        SessionKey(session) if session else None,
        "x-session-id",
        Chain((2**63 + 1, 2), (4000, 8000), 1),
        response,
        stream=True,
        last=last,
    )


def test_a_session_has_one_home_whoever_gets_its_next_turn():
    one, other = Worker(), Worker()
    home = one.serve(turn())
    other.hear(one)
    decision = other.engine.decide(turn(), 60.0)
    assert (decision.replica, decision.kind) == (home, Decided.HOME)
    assert decision.cached_tokens > 0
    [session] = other.engine.sessions(9)
    assert (session.resident_tokens, session.reply_tokens, session.turns) == (1020, 20, 1)
    assert (one.hearsay.told, other.hearsay.heard, other.hearsay.strange) == (1, 1, 0)
    assert other.said == [], "what was heard is not told again"


def test_a_prompt_without_a_session_is_known_too():
    one, other = Worker(), Worker()
    went = one.serve(turn(""))
    other.hear(one)
    assert other.engine.sessions(9) == []
    [chosen] = [each for each in other.engine.decide(turn("new"), 60.0).candidates if each.replica == went]
    assert chosen.cached_tokens > 0


def test_a_session_that_ended_there_has_ended_here():
    one, other = Worker(), Worker()
    one.serve(turn())
    other.hear(one)
    one.said.clear()
    one.serve(turn(last=True))
    other.hear(one)
    assert other.engine.sessions(9) == []


def test_a_stored_response_is_found_whoever_is_asked_and_only_by_its_tenant():
    one, other = Worker(), Worker()
    acme = TenantId("acme")
    ticket = one.engine.admit(turn(tenant=acme), 10.0)
    one.engine.stored(acme, "resp_1", ticket)
    other.hear(one)
    decision = other.engine.decide(turn("", response="resp_1", tenant=acme), 60.0)
    assert (decision.replica, decision.reason) == (ticket.decision.replica, "holds the response")


@pytest.mark.parametrize(
    ("outcome", "answered", "told"),
    [
        (Outcome.COMPLETED, True, True),
        (Outcome.CANCELLED, True, True),
        (Outcome.CANCELLED, False, False),
        (Outcome.CLIENT_ERROR, False, False),
        (Outcome.DIED, True, False),
        (Outcome.CONNECT_FAILED, False, False),
    ],
)
def test_only_what_has_left_something_behind_is_told(outcome, answered, told):
    one = Worker()
    one.serve(turn(), outcome, answered=answered)
    assert bool(one.said) is told


@pytest.mark.parametrize(("here", "there"), [(1000.0, 2000.0), (None, 1000.0), (1000.0, None)])
def test_a_replica_that_is_another_process_here_is_not_taken_for_it(here, there):
    one, other = Worker(there), Worker(here)
    one.serve(turn())
    one.engine.stored(OPEN_TENANT, "resp_1", one.engine.admit(turn(), 20.0))
    other.hear(one)
    assert other.engine.sessions(9) == []
    assert (other.hearsay.heard, other.hearsay.strange) == (2, 2)


def test_replicas_that_tell_no_start_time_are_believed_alike():
    one, other = Worker(None), Worker(None)
    one.serve(turn())
    other.hear(one)
    assert len(other.engine.sessions(9)) == 1


def test_one_that_is_unknown_here_is_passed_over():
    one, other = Worker(), Worker()
    one.serve(turn())
    other.engine.set_replicas([], 20.0)
    other.hear(one)
    assert other.hearsay.strange == 1


def test_what_cannot_be_understood_goes_unheard(caplog):
    other = Worker()
    other.hearsay.hear(Kind.TURN, b"nonsense")
    other.hearsay.hear(Kind.RESPONSE, b"\x90")
    assert "cannot be understood" in caplog.text
    assert other.hearsay.heard == 0


def test_nobody_listens_and_nothing_is_told():
    one = Worker()
    one.hearsay.set_listener(None)
    one.serve(turn())
    assert (one.said, one.hearsay.told) == ([], 0)
