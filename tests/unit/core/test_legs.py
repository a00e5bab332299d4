"""A paired turn in the engine: who computes its prompt, what is counted where, and what the books learn."""

from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.claims import Claim
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report, Role
from router.core.leg import Leg
from router.core.observe import Outcome, Usage
from router.core.pairbook import PairEnd, Unclaimed, Unreturned
from router.core.plan import Overload, PairRules, Plan, QueueRules
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced
from router.core.ticket import Ticket
from router.core.token_ids import TokenIds

P, Q, D, E, W = (ReplicaId(name) for name in "pqdew")
PROMPT = 10_000
"""Tokens of `turn`'s prompt, by the ratio before anything is learned, or about so many."""


def spec(name: ReplicaId, role: Role, *, two_way: bool = False) -> ReplicaSpec:
    return ReplicaSpec(name, f"http://{name}:1", role=role, two_way=two_way)


FLEET = (
    spec(P, Role.PREFILL, two_way=True),
    spec(Q, Role.PREFILL, two_way=True),
    spec(D, Role.DECODE),
    spec(E, Role.DECODE),
)


def fleet(*specs: ReplicaSpec, plan: Plan | None = None) -> Engine:
    engine = Engine([plan or Plan(name="home", strategy=Priced())], rng=Random(1))
    engine.set_replicas(specs or FLEET, 0.0)
    for one in specs or FLEET:
        engine.probe_passed(one.id, 0.0)
    return engine


def turn(session: str = "s", *, segments: int = 1, pairs: bool = True, last: bool = False) -> Turn:
    chain = Chain(tuple(range(7, 7 + segments)), tuple(40_000 + 400 * at for at in range(segments)), 1)
    key = SessionKey(session.ljust(32, "0"))
    return Turn(
        "/v1/chat/completions", "m", OPEN_TENANT, key, "x", chain, last=last, pairs=pairs, returns=pairs
    )


def in_flight(engine: Engine) -> dict[str, int]:
    return {status.id: status.in_flight for status in engine.replicas(0.0) if status.in_flight}


def pending(engine: Engine, name: ReplicaId) -> int:
    return next(status.pending_tokens for status in engine.replicas(0.0) if status.id == name)


def offer(engine: Engine, ticket: Ticket, tokens: int, *, now: float = 0.0) -> Claim:
    """What the ticket's replica holds after its answer, as the data plane would enter it."""
    engine.legs.keep(ticket, b"{}", TokenIds(b"7," * tokens, tokens), 16, tokens, 0, now)
    assert ticket.turn.session is not None
    claim = engine.pairs.claims.peek(ticket.model.key(ticket.turn.session), now)
    assert claim is not None
    return claim


def prefilled(engine: Engine, ticket: Ticket, *, at: float = 1.0, cached: int = 0) -> Leg:
    leg = engine.legs.begin(ticket, 0.0)
    assert leg is not None
    leg.end(Outcome.COMPLETED, at, Usage(PROMPT, 1, cached))
    return leg


def test_a_turn_goes_to_a_decode_replica_and_its_prompt_to_a_prefill_replica() -> None:
    engine = fleet()
    ticket = engine.admit(turn(), 0.0)
    decision = ticket.decision
    assert decision.kind is Kind.PAIR
    assert decision.replica in (D, E)
    assert decision.pair is not None
    assert decision.pair.prefill in (P, Q)
    assert {c.replica for c in decision.candidates} == {D, E}
    assert pending(engine, decision.replica) == 0
    leg = engine.legs.begin(ticket, 0.0)
    assert leg is not None
    assert pending(engine, leg.member.id) == decision.prompt_tokens
    assert in_flight(engine) == {decision.replica: 1, leg.member.id: 1}
    leg.end(Outcome.COMPLETED, 1.0, Usage(PROMPT, 1, 0))
    leg.end(Outcome.SERVER_ERROR, 2.0)
    assert in_flight(engine) == {decision.replica: 1}
    assert pending(engine, leg.member.id) == 0
    assert engine.pairs.ends[PairEnd.ONE_WAY] == 1
    ticket.first_byte(1.5)
    ticket.end(Outcome.COMPLETED, 2.0, Usage(PROMPT, 5, 0))
    assert in_flight(engine) == {}
    again = engine.admit(turn(), 3.0)
    assert again.decision.home == decision.replica
    assert again.decision.pair is not None
    assert again.decision.pair.prefill == leg.member.id
    assert again.decision.cached_tokens > 0.9 * again.decision.prompt_tokens


def test_prompts_go_round_between_equal_prefill_replicas() -> None:
    engine = fleet()
    chosen = {engine.decide(turn(f"s{at}"), 0.0).pair.prefill for at in range(40)}  # type: ignore[union-attr]
    assert chosen == {P, Q}


def test_what_decode_holds_is_fetched_once_by_another_prefill_replica() -> None:
    engine = fleet()
    first = engine.admit(turn(), 0.0)
    leg = prefilled(engine, first)
    first.first_byte(1.1)
    first.end(Outcome.COMPLETED, 2.0, Usage(PROMPT, 5, 0))
    claim = offer(engine, first, 10_004, now=2.0)
    engine.drain(leg.member.id, True)
    second = engine.admit(turn(segments=2), 3.0)
    pair = second.decision.pair
    assert second.decision.kind is Kind.PAIR_PULL
    assert pair is not None
    assert pair.pull is not None
    assert (pair.pull.source, pair.prefill != leg.member.id) == (first.decision.replica, True)
    following = engine.legs.begin(second, 3.0)
    assert following is not None
    assert following.claim is claim
    assert following.missing < 0.2 * second.decision.prompt_tokens
    other = engine.legs.begin(engine.admit(turn(segments=2), 3.0), 3.0)
    assert other is not None
    assert other.claim is None
    other.end(Outcome.CANCELLED, 3.1)
    following.claim_used = True
    following.end(Outcome.COMPLETED, 3.2, Usage(PROMPT, 1, 9_990))
    assert engine.pairs.ends[PairEnd.PULLED] == 1
    assert engine.pairs.claims.next_dropped(3.3) is None
    assert engine.admit(turn(segments=3), 4.0).decision.kind is Kind.PAIR


def test_a_claim_that_was_not_used_serves_the_next_turn() -> None:
    engine = fleet()
    first = engine.admit(turn(), 0.0)
    claim = offer(engine, first, 10_004)
    second = engine.admit(turn(segments=2), 1.0)
    leg = engine.legs.begin(second, 1.0)
    assert leg is not None
    assert leg.claim is claim
    leg.end(Outcome.CANCELLED, 1.1)
    assert engine.admit(turn(segments=2), 1.2).decision.kind is Kind.PAIR_PULL


def test_without_a_prefill_replica_decode_does_all() -> None:
    engine = fleet()
    engine.drain(P, True)
    engine.drain(Q, True)
    decision = engine.admit(turn(), 0.0).decision
    assert (decision.kind, decision.pair) == (Kind.NEW, None)
    assert decision.reason.endswith("no prefill replica can take its prompt")
    assert pending(engine, decision.replica) == decision.prompt_tokens


def test_one_that_goes_away_between_choice_and_start_is_replaced() -> None:
    engine = fleet()
    ticket = engine.admit(turn(), 0.0)
    assert ticket.decision.pair is not None
    gone = ticket.decision.pair.prefill
    engine.drain(gone, True)
    leg = engine.legs.begin(ticket, 0.0)
    assert leg is not None
    assert leg.member.id in {P, Q} - {gone}
    assert engine.legs.begin(ticket, 0.0, failed=(P, Q)) is None
    leg.end(Outcome.CANCELLED, 1.0)


def test_prefill_replicas_answer_nobody_and_own_no_session() -> None:
    only = fleet(spec(P, Role.PREFILL))
    with pytest.raises(Refused, match="all that there are only prefill") as refused:
        only.admit(turn(), 0.0)
    assert refused.value.kind is ErrorKind.NONE_HEALTHY
    engine = fleet()
    engine.drain(D, True)
    engine.drain(E, True)
    with pytest.raises(Refused, match=r"no replica can take this turn: d is draining, e is draining$"):
        engine.admit(turn(), 0.0)
    plain = fleet().admit(turn(pairs=False), 0.0).decision
    assert plain.pair is None
    assert plain.replica in (D, E)


def test_a_replica_that_does_both_is_compared_with_pairs() -> None:
    engine = fleet(*FLEET, spec(W, Role.BOTH))
    decision = engine.decide(turn(), 0.0)
    assert {c.replica for c in decision.candidates} == {D, E, W}
    by_name = {c.replica: c for c in decision.candidates}
    assert by_name[D].wait_s > by_name[W].wait_s == 0.0
    assert by_name[D].curve.token_s < by_name[W].curve.token_s


def test_a_prefill_that_fails_speaks_against_its_replica_unless_it_was_to_fetch() -> None:
    engine = fleet()
    ticket = engine.admit(turn(), 0.0)
    leg = engine.legs.begin(ticket, 0.0)
    assert leg is not None
    leg.end(Outcome.DIED, 1.0)
    assert {s.id: s.health for s in engine.replicas(1.0)}[leg.member.id] == "down"
    engine = fleet()
    ticket = engine.admit(turn(), 0.0)
    offer(engine, ticket, 10_004)
    leg = engine.legs.begin(engine.admit(turn(segments=2), 1.0), 1.0)
    assert leg is not None
    assert leg.claim is not None
    leg.claim_used = True
    leg.end(Outcome.SERVER_ERROR, 1.1)
    assert all(s.recent_failures == 0.0 for s in engine.replicas(1.1))


def test_what_decode_holds_takes_room_there_until_it_is_fetched() -> None:
    engine = fleet()
    ticket = engine.admit(turn(), 0.0)
    decode = ticket.decision.replica
    idle = Report(start_time=1.0, running=0.0, waiting=0.0, kv_usage=0.0, kv_capacity_tokens=50_000)

    def free() -> int | None:
        return next(status.free_tokens for status in engine.replicas(0.0) if status.id == decode)

    by = prefilled(engine, ticket)
    ticket.first_byte(1.5)
    offer(engine, ticket, 10_004)
    ticket.end(Outcome.COMPLETED, 2.0, Usage(PROMPT, 5, 0))
    engine.drain(by.member.id, True)
    engine.report(decode, idle, 2.0)  # as of a moment before
    assert free() == 50_000 - 10_004
    following = engine.admit(turn(segments=2), 3.0)
    leg = engine.legs.begin(following, 3.0)
    assert leg is not None
    assert leg.claim is not None
    assert engine.legs.claimable(following, 3.0) is not None
    leg.claim_used = True
    mine = free()
    leg.end(Outcome.COMPLETED, 3.2, Usage(PROMPT, 1, 9_990))
    now = free()
    assert mine is not None
    assert now is not None
    assert now - mine == 10_004


def test_claims_end_with_their_session_their_replica_and_its_room() -> None:
    engine = fleet(plan=Plan(name="home", strategy=Priced(), pair=PairRules(kv_usage=0.5)))
    ticket = engine.admit(turn(), 0.0)
    claim = offer(engine, ticket, 100)
    ticket.first_byte(0.5)
    ticket.end(Outcome.COMPLETED, 1.0)
    assert engine.end_session(SessionKey("s".ljust(32, "0")))
    assert engine.pairs.claims.next_dropped(1.0) is claim
    claim = offer(engine, ticket, 100)
    engine.report(claim.replica, Report(start_time=1.0, kv_usage=0.4), 1.0)
    assert len(engine.pairs.claims) == 1
    engine.report(claim.replica, Report(start_time=1.0, kv_usage=0.6), 1.0)
    assert engine.pairs.claims.next_dropped(1.0) is claim
    offer(engine, ticket, 100)
    engine.report(claim.replica, Report(start_time=1000.0), 2.0)
    assert len(engine.pairs.claims) == 0
    assert engine.legs.claimable(ticket, 2.0) is None
    ticket = engine.admit(turn(last=True), 3.0)
    assert engine.legs.claimable(ticket, 3.0) is None


def test_limits_on_turns_in_flight_are_those_of_who_answers() -> None:
    plan = Plan(name="home", strategy=Priced(), overload=Overload(in_flight=1))
    engine = fleet(FLEET[0], FLEET[2], FLEET[3], plan=plan)
    tickets = [engine.admit(turn(f"s{at}"), 0.0) for at in range(2)]
    legs = [engine.legs.begin(ticket, 0.0) for ticket in tickets]
    assert all(leg is not None and leg.member.id == P for leg in legs)
    with pytest.raises(Refused, match="limit of 1 turns"):
        engine.admit(turn("s2"), 0.0)


def test_what_a_prefill_replica_has_computed_is_within_its_reach_where_it_has_a_host_tier() -> None:
    engine = fleet(spec(P, Role.PREFILL), spec(D, Role.DECODE))
    engine.report(P, Report(start_time=1.0, kv_capacity_tokens=100_000, host_kv_tokens=100_000), 0.0)
    ticket = engine.admit(turn(), 0.0)
    prefilled(engine, ticket)
    ticket.end(Outcome.COMPLETED, 2.0)
    pairing = engine.decide(turn("other"), 3.0).pair
    assert pairing is not None
    assert pairing.cached_tokens > 0.9 * PROMPT


def own(session: str, root: int) -> Turn:
    return turn(session).replace(chain=Chain((root,), (40_000,), 1))


def host_and_device() -> Engine:
    """A prefill replica that has the prompt of `own("a", 1)` on its host."""
    engine = fleet(spec(P, Role.PREFILL), spec(D, Role.DECODE))
    engine.report(P, Report(start_time=1.0, kv_capacity_tokens=12_000, host_kv_tokens=100_000), 0.0)
    for name, root in (("a", 1), ("b", 2)):
        ticket = engine.admit(own(name, root), 0.0)
        prefilled(engine, ticket)
        ticket.end(Outcome.COMPLETED, 2.0)
    return engine


def test_a_prefill_replica_brings_prompts_back_from_its_host_one_after_the_other() -> None:
    engine = host_and_device()
    ticket = engine.admit(own("a", 1), 3.0)
    leg = engine.legs.begin(ticket, 3.0)
    assert leg is not None
    (there,) = leg.pairing.candidates
    assert there.host_tokens == pytest.approx(PROMPT, rel=0.01)
    behind = engine.decide(own("c", 1), 3.0).pair
    assert behind is not None
    assert behind.chosen.link_s == pytest.approx(there.host_tokens * there.curve.reload_s, rel=0.01)
    leg.end(Outcome.COMPLETED, 3.01, Usage(PROMPT, 1, PROMPT - 1))
    after = engine.decide(own("c", 2), 3.01).pair
    assert after is not None
    assert after.chosen.link_s == 0.0


def test_what_a_prefill_replica_brought_back_from_its_host_is_learned_as_that() -> None:
    engine = host_and_device()
    now = 3.0
    for number in range(60):
        ticket = engine.admit(own("ab"[number % 2], 1 + number % 2), now)
        leg = engine.legs.begin(ticket, now)
        assert leg is not None
        assert leg.pairing.chosen.host_tokens == pytest.approx(PROMPT, rel=0.01)
        # A tenth of the rate that is assumed at first.
        leg.end(Outcome.COMPLETED, now + PROMPT / 30_000, Usage(PROMPT, 1, PROMPT - 16))
        ticket.end(Outcome.COMPLETED, now + 1.0)
        now += 2.0
    pairing = engine.decide(own("a", 1), now).pair
    assert pairing is not None
    assert 1.0 / pairing.chosen.curve.reload_s == pytest.approx(30_000, rel=0.2)
    assert 1.0 / pairing.chosen.curve.token_s == pytest.approx(8000, rel=0.5)


def returning(*, held: int = 1000) -> tuple[Engine, Leg]:
    """A second turn whose prefill replica may fetch what decode holds of the first."""
    engine = fleet()
    ticket = engine.admit(turn(), 0.0)
    by = prefilled(engine, ticket)
    ticket.first_byte(1.5)
    offer(engine, ticket, held)
    ticket.end(Outcome.COMPLETED, 2.0, Usage(PROMPT, 5, 0))
    engine.drain(by.member.id, True)
    leg = engine.legs.begin(engine.admit(turn(segments=2), 3.0), 3.0)
    assert leg is not None
    assert leg.claim is not None
    return engine, leg


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (b"7," * 1000 + b"8," * 500, 992),
        (b"7," * 700 + b"8," * 500, 688),
        (b"7," * 1000, 992),
        (b"7," * 992, 976),
        (b"7," * 272 + b"8,", 272),
    ],
    ids=["goes on", "edited", "the same", "less than the whole prompt", "just enough"],
)
def test_what_is_fetched_back_is_whole_blocks_that_both_begin_with(prompt: bytes, tokens: int) -> None:
    engine, leg = returning()
    assert engine.legs.fetch_back(leg, TokenIds(prompt, prompt.count(b",")), 0) == tokens
    assert leg.claim_used


def test_too_little_in_common_lets_the_claim_go_and_unknown_ids_keep_it() -> None:
    engine, leg = returning()
    unreturned = engine.pairs.unreturned
    assert engine.legs.fetch_back(leg, None, 0) == 0
    assert (unreturned[Unreturned.UNKNOWN_TOKENS], leg.claim is not None) == (1, True)
    claim = leg.claim
    assert engine.legs.fetch_back(leg, TokenIds(b"7," * 255 + b"8," * 99, 354), 0) == 0
    assert (unreturned[Unreturned.OTHER_TOKENS], leg.claim, leg.claim_used) == (1, None, False)
    assert engine.pairs.claims.next_dropped(4.0) is claim


def test_what_cannot_be_compared_or_has_no_next_turn_is_let_go_of() -> None:
    engine = fleet()
    claims, unclaimed = engine.pairs.claims, engine.pairs.unclaimed
    ticket, last = engine.admit(turn(), 0.0), engine.admit(turn(last=True), 0.0)
    known = TokenIds(b"7,", 1)
    engine.legs.keep(ticket, b"1", known, 16, 16, 0, 1.0, comparable=False)
    engine.legs.keep(ticket, b"2", None, 16, 16, 0, 1.0)
    assert unclaimed[Unclaimed.NOT_COMPARABLE] == 2
    engine.legs.keep(last, b"3", known, 16, 16, 0, 1.0)
    assert unclaimed[Unclaimed.NO_SESSION] == 1
    dropped = [claims.next_dropped(2.0) for _ in range(3)]
    assert [one.offer for one in dropped if one is not None] == [b"1", b"2", b"3"]
    assert len(claims) == 0


def test_a_claim_that_a_waiting_turn_has_no_room_for_is_let_go_of() -> None:
    plan = Plan(name="home", strategy=Priced(), queue=QueueRules(), pair=PairRules(kv_usage=0.9))
    engine = fleet(FLEET[0], FLEET[2], plan=plan)
    room = Report(start_time=1.0, running=1.0, waiting=0.0, kv_usage=0.6, kv_capacity_tokens=32_000)
    engine.report(D, room._replace(running=0.0, kv_usage=0.0), 0.0)
    ticket = engine.admit(turn(), 0.0)
    prefilled(engine, ticket)
    ticket.first_byte(1.5)
    offer(engine, ticket, 12_000)
    ticket.end(Outcome.COMPLETED, 2.0, Usage(PROMPT, 5, 0))
    assert isinstance(engine.enter(turn("long", segments=2), 2.0), Ticket)
    engine.report(D, room, 2.5)
    assert engine.pairs.claims.next_dropped(2.5) is None
    assert isinstance(engine.enter(turn("waits", segments=40), 3.0), Held)
    engine.report(D, room, 3.5)
    dropped = engine.pairs.claims.next_dropped(3.5)
    assert dropped is not None
    assert dropped.held_tokens == 12_000
