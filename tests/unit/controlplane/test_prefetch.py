"""When KV is sent ahead, and what became of it."""

import asyncio
from collections.abc import Iterable

import pytest
from support.plane import until

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.controlplane import prefetch as module
from router.controlplane.kv_agents import Fetched
from router.controlplane.prefetch import Prefetcher
from router.core.decide import Decision, Kind
from router.core.observe import Ended, Outcome
from router.core.price import Pull
from router.core.request import EMPTY_CHAIN, Turn

A, B, C = (ReplicaId(name) for name in "abc")
S = SessionKey("s")


def decision(replica: ReplicaId, source: ReplicaId | None = None) -> Decision:
    pull = Pull(source, 900, 0.1, 2.0, 0.9) if source is not None else None
    return Decision(replica, Kind.HOME, "", "home", (), None, A, 1000, 0, 0, 0.0, pull=pull)


class Engine:
    def __init__(self, following: Decision | None, *, leaves: bool = True) -> None:
        self.following = following
        self.leaves = leaves
        self.plans: set[int] = set()

    def plan_of(self, policy: str) -> int:
        return {"home": 0, "other": 1}[policy]

    def will_leave(self, replica: ReplicaId, *, plan: int) -> bool:
        assert replica == A
        self.plans.add(plan)
        return self.leaves

    def holders(self, session: SessionKey) -> tuple[ReplicaId, ...]:
        return (B, C)

    def decide(self, turn: Turn, now: float, *, plan: int) -> Decision:
        self.plans.add(plan)
        if self.following is None:
            raise Refused(ErrorKind.NO_REPLICAS, "none")
        return self.following


class Agents:
    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.released: list[tuple[str, SessionKey, set[ReplicaId]]] = []
        self.size = 4096
        self.arrived = asyncio.Event()
        self.arrived.set()

    async def prefetch(self, *wish: object) -> Fetched:
        self.asked.append(wish)
        await self.arrived.wait()
        return Fetched(8, self.size, "done")

    def release(self, label: str, session: SessionKey, holders: Iterable[ReplicaId]) -> None:
        self.released.append((label, session, set(holders)))


def turn(session: SessionKey | None = S, *, last: bool = False) -> Turn:
    return Turn("/v1/chat/completions", "m", OPEN_TENANT, session, "x-session-id", EMPTY_CHAIN, last=last)


def ended(of: Turn, outcome: Outcome = Outcome.COMPLETED, policy: str = "home") -> Ended:
    return Ended(of, decision(A).replace(policy=policy), outcome, None, 0.1, 0.2, 1.0)


def counts(of: Prefetcher) -> tuple[int, int, int, int]:
    """Started, hits, bytes brought, bytes wasted."""
    return of.started, of.hits, of.bytes, of.wasted_bytes


def made(following: Decision | None, *, leaves: bool = True) -> tuple[Prefetcher, Agents]:
    agents = Agents()
    return Prefetcher(Engine(following, leaves=leaves), agents, lambda tenant: f"<{tenant}>"), agents


async def test_kv_goes_ahead_to_where_the_next_turn_will_pull_it_to() -> None:
    prefetcher, agents = made(decision(B, A))
    prefetcher.on_ended(ended(turn()))
    prefetcher.on_ended(ended(turn()))  # it is on its way
    await asyncio.sleep(0)
    assert agents.asked == [(B, f"<{OPEN_TENANT}>", S, (A,), 2.0)]
    prefetcher.on_decision(turn(), decision(B))
    assert (prefetcher.started, prefetcher.hits, prefetcher.bytes, prefetcher.wasted_bytes) == (1, 1, 4096, 0)
    await prefetcher.close()


async def test_what_went_to_another_place_than_the_turn_is_wasted() -> None:
    prefetcher, _ = made(decision(B, A))
    prefetcher.on_ended(ended(turn()))
    await asyncio.sleep(0)
    prefetcher.on_decision(turn(), decision(C))
    assert (prefetcher.hits, prefetcher.wasted_bytes) == (0, 4096)
    await prefetcher.close()


async def test_nothing_goes_where_it_would_not_pay() -> None:
    for following, leaves, over in (
        (decision(B, A), False, ended(turn())),
        (decision(B), True, ended(turn())),
        (decision(A, B), True, ended(turn())),
        (None, True, ended(turn())),
        (decision(B, A), True, ended(turn(None))),
        (decision(B, A), True, ended(turn(), Outcome.DIED)),
    ):
        prefetcher, agents = made(following, leaves=leaves)
        prefetcher.on_ended(over)
        await asyncio.sleep(0)
        assert (agents.asked, prefetcher.started) == ([], 0)


async def test_a_session_that_is_over_is_released() -> None:
    prefetcher, agents = made(decision(B, A))
    prefetcher.on_ended(ended(turn()))
    await asyncio.sleep(0)
    prefetcher.on_ended(ended(turn(last=True)))
    assert agents.released == [(f"<{OPEN_TENANT}>", S, {A, B, C})]
    assert prefetcher.wasted_bytes == 4096
    await prefetcher.close()


async def test_the_policy_of_the_turn_says_whether_and_where_to() -> None:
    agents = Agents()
    engine = Engine(decision(B, A))
    prefetcher = Prefetcher(engine, agents, lambda tenant: f"<{tenant}>")
    prefetcher.on_ended(ended(turn(), policy="other"))
    assert (engine.plans, prefetcher.started) == ({1}, 1)
    await prefetcher.close()


async def test_where_nothing_came_there_is_neither_hit_nor_waste() -> None:
    for went_to in (B, C):
        prefetcher, agents = made(decision(B, A))
        agents.size = 0
        prefetcher.on_ended(ended(turn()))
        await asyncio.sleep(0)
        prefetcher.on_decision(turn(), decision(went_to))
        assert counts(prefetcher) == (1, 0, 0, 0)
        await prefetcher.close()


@pytest.mark.parametrize(("went_to", "expected"), [(B, (1, 1, 4096, 0)), (C, (1, 0, 4096, 4096))])
async def test_what_comes_after_the_turn_counts_by_where_that_went(
    went_to: ReplicaId, expected: tuple[int, ...]
) -> None:
    prefetcher, agents = made(decision(B, A))
    agents.arrived.clear()
    prefetcher.on_ended(ended(turn()))
    await asyncio.sleep(0)
    prefetcher.on_decision(turn(), decision(went_to))
    assert counts(prefetcher) == (1, 0, 0, 0)
    agents.arrived.set()
    await until(lambda: prefetcher.bytes)
    assert counts(prefetcher) == expected
    await prefetcher.close()


async def test_a_prefetch_that_ends_late_is_not_taken_for_the_next_one() -> None:
    prefetcher, agents = made(decision(B, A))
    agents.arrived.clear()
    prefetcher.on_ended(ended(turn()))
    await asyncio.sleep(0)
    prefetcher.on_decision(turn(), decision(C))
    prefetcher.on_ended(ended(turn()))
    await asyncio.sleep(0)
    assert len(agents.asked) == 2
    agents.arrived.set()
    await until(lambda: prefetcher.bytes == 2 * 4096)
    assert counts(prefetcher) == (2, 0, 8192, 4096)
    prefetcher.on_decision(turn(), decision(B))
    assert counts(prefetcher) == (2, 1, 8192, 4096)
    await prefetcher.close()


async def test_the_oldest_of_too_many_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(module, "_MOST", 1)
    prefetcher, _ = made(decision(B, A))
    prefetcher.on_ended(ended(turn()))
    prefetcher.on_ended(ended(turn(SessionKey("other"))))
    await until(lambda: prefetcher.bytes == 2 * 4096)
    assert counts(prefetcher) == (2, 0, 8192, 4096)
    await prefetcher.close()
