"""Agents' shapes, in the engine: sub-agents and forks, compactions, pauses, and ends that are told."""

from random import Random

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec
from router.core.hashing import hash64
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.strategies.params import PricedParams
from router.core.strategies.priced import Priced
from router.core.ticket import Ticket

NAMES = tuple(ReplicaId(f"r{number}") for number in range(8))
PARENT = SessionKey("parent")
SEGMENT = 4096
"""Bytes: some thousand tokens."""


def engine(count: int = 8) -> Engine:
    made = Engine([Plan(name="home", strategy=Priced(PricedParams()))], rng=Random(1))
    made.set_replicas([ReplicaSpec(name, f"http://{name}:8000") for name in NAMES[:count]], 0.0)
    for name in NAMES[:count]:
        made.probe_passed(name, 0.0)
    return made


def turn(
    session: str,
    *texts: str,
    opening: int = 1,
    parent: SessionKey | None = None,
    tenant: TenantId = OPEN_TENANT,
    last: bool = False,
) -> Turn:
    """A prompt of segments of a thousand tokens, named by their texts."""
    hashes: list[int] = []
    for text in texts:
        hashes.append(hash64(text.encode(), hashes[-1] if hashes else hash64(tenant.encode())))
    chain = Chain(tuple(hashes), tuple(SEGMENT * (at + 1) for at in range(len(texts))), opening)
    key = SessionKey(session)
    return Turn(
        "/v1/chat/completions", "m", tenant, key, "x-session-id", chain, None, True, True, parent, last
    )


def answer(ticket: Ticket, now: float, outcome: Outcome = Outcome.COMPLETED, reply: int = 20) -> ReplicaId:
    ticket.first_byte(now + 0.1)
    prompt = len(ticket.turn.chain.hashes) * SEGMENT // 4
    ticket.end(outcome, now + 0.2, Usage(prompt, reply, None))
    return ticket.decision.replica


def play(of: Engine, request: Turn, now: float = 0.0) -> ReplicaId:
    return answer(of.admit(request, now), now)


def working_set(of: Engine) -> dict[ReplicaId, int]:
    return {status.id: status.working_set_tokens for status in of.replicas(0.0) if status.working_set_tokens}


HISTORY = tuple(f"part {number}" for number in range(20))


def test_a_sub_agent_starts_where_its_parents_prefix_lies() -> None:
    of = engine()
    home = play(of, turn("parent", *HISTORY))
    for number in range(8):
        decision = of.decide(turn(f"child {number}", *HISTORY, "task", parent=PARENT), 1.0)
        assert (decision.replica, decision.kind, decision.reason) == (home, Kind.NEW, "beside its parent")
        assert decision.cached_tokens == 20 * SEGMENT // 4


def test_a_sub_agent_that_shares_nothing_with_its_parent_is_placed_like_any_session() -> None:
    of = engine()
    play(of, turn("parent", *HISTORY))
    alone = engine()
    for number in range(8):
        of_parent = of.decide(turn(f"child {number}", "another prompt", parent=PARENT), 1.0)
        placed = alone.decide(turn(f"child {number}", "another prompt"), 1.0)
        assert (of_parent.replica, of_parent.reason) == (placed.replica, "owner on the ring")


def test_a_system_prompt_that_all_have_draws_no_sub_agent() -> None:
    of = engine()
    for name in NAMES:
        others = tuple(other for other in NAMES if other != name)
        answer(of.admit(turn(f"on {name}", "system", name), 0.0, failed=others), 0.0)
    play(of, turn("parent", "system", "question"))
    decisions = [
        of.decide(turn(f"child {number}", "system", f"task {number}", parent=PARENT), 1.0)
        for number in range(40)
    ]
    assert {decision.reason for decision in decisions} == {"owner on the ring"}
    assert len({decision.replica for decision in decisions}) == 8


@pytest.mark.parametrize("at_once", [True, False])
def test_a_fan_out_of_many_spreads_and_shares_the_prefix(at_once: bool) -> None:
    of = engine()
    home = play(of, turn("parent", *HISTORY))
    tickets = []
    for number in range(40):
        request = turn(f"child {number}", *HISTORY, f"task {number}", parent=PARENT)
        tickets.append(of.admit(request, 1.0 + number))
        if not at_once:
            answer(tickets[-1], 1.0 + number)
    where = [ticket.decision.replica for ticket in tickets]
    counts = {name: where.count(name) for name in NAMES}
    assert where[0] == home
    assert max(counts.values()) <= 16, counts
    assert len([name for name in NAMES if counts[name]]) >= 3
    for ticket in tickets:
        answer(ticket, 50.0)
    if not at_once:
        # Each replica that has some computed the prefix at most once.
        cold = [ticket for ticket in tickets if not ticket.decision.cached_tokens]
        assert len(cold) <= len(set(where)) - 1


def test_a_parent_that_nobody_knows_or_of_another_tenant_is_none() -> None:
    of = engine()
    acme, evil = TenantId("acme"), TenantId("evil")
    play(of, turn("parent", *HISTORY, tenant=acme))
    request = turn("child", *HISTORY, "task", parent=SessionKey("nobody"), tenant=acme)
    assert of.decide(request.replace(chain=turn("child", "x").chain), 1.0).reason == "owner on the ring"
    # The keys of two tenants differ, whatever their ids; and so do the roots of their chains.
    request = turn("child", *HISTORY, "task", parent=SessionKey("parent of evil"), tenant=evil)
    decision = of.decide(request, 1.0)
    assert (decision.reason, decision.cached_tokens) == ("owner on the ring", 0)


def test_a_sub_agent_with_a_home_goes_there_whatever_becomes_of_its_parent() -> None:
    of = engine()
    home = play(of, turn("parent", *HISTORY))
    play(of, turn("child", *HISTORY, "task", parent=PARENT), 1.0)
    of.end_session(PARENT)
    following = of.decide(turn("child", *HISTORY, "task", "more", parent=PARENT), 2.0)
    assert (following.replica, following.kind) == (home, Kind.HOME)


def test_a_parent_whose_replica_is_down_draws_nobody() -> None:
    of = engine()
    home = play(of, turn("parent", *HISTORY))
    of.drain(home, True)
    decision = of.decide(turn("child", *HISTORY, "task", parent=PARENT), 1.0)
    assert decision.replica != home
    assert decision.reason.endswith("on the ring")


def test_a_conversation_with_the_opening_of_another_starts_where_that_lies() -> None:
    of = engine()
    home = play(of, turn("one", *HISTORY, opening=3))
    fork = of.decide(turn("two", *HISTORY[:10], "another way", opening=3), 1.0)
    assert (fork.replica, fork.reason) == (home, "where its opening lies")
    # A system prompt alone is no opening, and a short opening is many conversations'.
    assert of.decide(turn("three", *HISTORY[:2], "question", opening=3), 1.0).reason == "owner on the ring"
    assert of.decide(turn("four", HISTORY[0], opening=1), 1.0).reason == "owner on the ring"


def test_conversations_with_one_opening_do_not_gather() -> None:
    of = engine()
    where = [play(of, turn(f"s{number}", *HISTORY, opening=20), float(number)) for number in range(80)]
    counts = [where.count(name) for name in NAMES]
    assert max(counts) <= 14, counts
    # A replica that has none yet is found once all others are above the bound: they share what they hold.
    assert len([count for count in counts if count]) >= 6, counts


def test_a_compaction_leaves_of_the_old_residency_what_the_new_prompt_shares_with_it() -> None:
    of = engine()
    home = play(of, turn("s", *HISTORY, opening=2))
    assert working_set(of) == {home: 20 * 1024 + 20}
    compacted = turn("s", *HISTORY[:2], "summary", opening=2)
    ticket = of.admit(compacted, 60.0)
    assert (ticket.decision.replica, ticket.decision.kind) == (home, Kind.HOME)
    assert (ticket.decision.cached_tokens, ticket.decision.prompt_tokens) == (2 * 1024, 3 * 1024)
    ticket.first_byte(60.1)
    assert working_set(of) == {home: 3 * 1024}
    ticket.end(Outcome.COMPLETED, 60.2, Usage(3 * 1024, 50, 2 * 1024))
    assert working_set(of) == {home: 3 * 1024 + 50}
    # Gone on from, nothing of the old history is believed to be the session's.
    following = of.decide(turn("s", *HISTORY[:2], "summary", "more", opening=2), 90.0)
    assert following.cached_tokens == 3 * 1024 + 50


def test_a_pause_of_many_minutes_is_no_reason_to_forget() -> None:
    of = engine()
    home = play(of, turn("s", *HISTORY))
    decision = of.decide(turn("s", *HISTORY, "late"), 29 * 60.0)
    assert (decision.replica, decision.kind, decision.cached_tokens) == (home, Kind.HOME, 20 * 1024 + 20)


@pytest.mark.parametrize(
    ("outcome", "ends"),
    [
        (Outcome.COMPLETED, True),
        (Outcome.CANCELLED, True),
        (Outcome.CLIENT_ERROR, True),
        (Outcome.DIED, False),
        (Outcome.SERVER_ERROR, False),
    ],
)
def test_the_last_turn_takes_the_working_set_with_it_once_it_is_over(outcome: Outcome, ends: bool) -> None:
    of = engine()
    home = play(of, turn("s", *HISTORY))
    play(of, turn("other", "x"))
    ticket = of.admit(turn("s", *HISTORY, "bye", last=True), 1.0)
    assert of.admit(turn("s", *HISTORY, "bye"), 1.0).decision.kind is Kind.HOME
    before = working_set(of)[home]
    answer(ticket, 1.0, outcome)
    known = {session.key for session in of.sessions(10)}
    assert len(known) == (1 if ends else 2)
    assert (working_set(of).get(home, 0) < before) is ends


def test_the_last_turn_of_a_parent_takes_no_sub_agent_with_it() -> None:
    of = engine()
    play(of, turn("parent", *HISTORY))
    home = play(of, turn("child", *HISTORY, "task", parent=PARENT), 1.0)
    play(of, turn("parent", *HISTORY, "bye", last=True), 2.0)
    assert working_set(of) == {home: 21 * 1024 + 20}
