"""Turns that go on from a stored response."""

from router.base.errors import ErrorKind
from router.base.ids import OPEN_TENANT, SessionKey, TenantId
from router.core.decide import Kind
from router.core.fleet import ModelCard, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.strategies.ring import RingOnly
from tests.support.turns import A, B, C, engine, play, refusal, turn


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
