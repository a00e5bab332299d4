"""What one engine knows, taken in by another: held against what replicas report."""

from random import Random

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.memory import Memory
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced

A, B = ReplicaId("a"), ReplicaId("b")


def engine(started: dict[str, float | None] | None = None, host_tokens: int | None = None) -> Engine:
    made = Engine([Plan(name="home", strategy=Priced())], rng=Random(1))
    made.set_replicas([ReplicaSpec(name, f"http://{name}:8000") for name in (A, B)], 0.0)
    for name, start in (started or {A: 1000.0, B: 2000.0}).items():
        made.probe_passed(ReplicaId(name), 0.0)
        made.report(
            ReplicaId(name),
            Report(start_time=start, kv_capacity_tokens=100_000, host_kv_tokens=host_tokens),
            0.0,
        )
    return made


def turn(session: str, *segments: int, response_id: str | None = None) -> Turn:
    chain = Chain(segments, tuple(4000 * (at + 1) for at in range(len(segments))), 1)
    return Turn(
        "/v1/chat/completions", "m", OPEN_TENANT, SessionKey(session * 32), "x", chain, response_id, True
    )


def play(of: Engine, request: Turn, now: float, stores: str | None = None):
    ticket = of.admit(request, now)
    ticket.first_byte(now)
    if stores is not None:
        of.stored(OPEN_TENANT, stores, ticket)
    ticket.end(Outcome.COMPLETED, now, Usage(1200 * len(request.chain.hashes), 20, None))
    return ticket.decision


def known(now: float = 100.0) -> tuple[Engine, dict[str, ReplicaId]]:
    of = engine()
    homes = {}
    for number in range(8):
        session = chr(ord("s") + number)
        homes[session] = play(
            of, turn(session, 7, 100 + number), now + number, stores=f"resp-{session}"
        ).replica
    assert set(homes.values()) == {A, B}
    return of, homes


@pytest.mark.parametrize("host_tokens", [None, 400_000])
def test_sessions_go_home_after_a_restart_and_are_predicted_as_before(host_tokens):
    of, homes = known()
    other = engine(host_tokens=host_tokens)
    assert other.recollection.recall(of.recollection.memory(110.0), 5.0, 30.0) == {A: "", B: ""}
    for number, (session, home) in enumerate(homes.items()):
        before = of.decide(turn(session, 7, 100 + number, 9), 111.0)
        after = other.decide(turn(session, 7, 100 + number, 9), 6.0)
        assert (after.kind, after.replica) == (Kind.HOME, home)
        assert (after.cached_tokens, after.prompt_tokens) == (before.cached_tokens, before.prompt_tokens)
    for was, now in zip(of.replicas(111.0), other.replicas(6.0), strict=True):
        assert (now.sessions, now.working_set_tokens) == (was.sessions, was.working_set_tokens)
        assert now.index_segments == was.index_segments


def test_a_replica_that_has_restarted_since_is_cold_and_the_other_is_not():
    of, homes = known()
    other = engine({A: 1000.5, B: 2060.0})
    assert other.recollection.recall(of.recollection.memory(110.0), 5.0, 30.0) == {A: "", B: "has restarted"}
    for number, (session, home) in enumerate(homes.items()):
        decision = other.decide(turn(session, 7, 100 + number, 9), 6.0)
        assert (decision.kind is Kind.HOME) == (home == A)
    assert [status.sessions for status in other.replicas(6.0)][1] == 0


def test_one_that_has_left_and_one_that_has_not_answered_are_cold():
    of, _ = known()
    other = engine({B: None})
    other.set_replicas([ReplicaSpec(B, "http://b:8000")], 1.0)
    assert other.recollection.recall(of.recollection.memory(110.0), 5.0, 30.0) == {
        A: "is not in the fleet",
        B: "does not tell when it started, so nothing can be checked",
    }


def test_a_session_that_has_been_idle_for_too_long_meanwhile_is_gone():
    of, homes = known()
    other = engine()
    other.recollection.recall(of.recollection.memory(107.0), 5.0, 1796.0)
    kinds = [other.decide(turn(s, 7, 100 + n, 9), 5.0).kind for n, s in enumerate(homes)]
    assert kinds == [Kind.NEW] * 3 + [Kind.HOME] * 5


def test_stored_responses_are_found_again_where_they_lie():
    of, homes = known()
    other = engine()
    other.recollection.recall(of.recollection.memory(110.0), 5.0, 30.0)
    for session, home in homes.items():
        decision = other.decide(turn("y", 5, response_id=f"resp-{session}"), 6.0)
        assert (decision.replica, decision.reason) == (home, "holds the response")


def test_a_drained_replica_stays_drained_and_ratios_stay_learned():
    of, _ = known()
    of.drain(A, True)
    other = engine({A: 5.0, B: 2000.0})
    other.recollection.recall(of.recollection.memory(110.0), 5.0, 30.0)
    assert [status.draining for status in other.replicas(6.0)] == [True, False]
    assert other._models.of("m").ratio.value == of._models.of("m").ratio.value


def test_what_is_known_already_stays():
    of, _ = known()
    other = engine()
    home = play(other, turn("s", 7), 4.0).replica
    with pytest.raises(ValueError, match="only an empty shelf"):
        other.recollection.recall(of.recollection.memory(110.0), 5.0, 30.0)
    assert other.decide(turn("s", 7, 8), 6.0).replica == home


def test_nothing_known_is_nothing_taken():
    assert engine().recollection.recall(Memory(), 5.0, 0.0) == {}
