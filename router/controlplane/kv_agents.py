"""Listens to the fleet's KV agents and gateways: what they hold, whether they are there, how pulls go.

What it hears goes to the engine; what the router wants of an agent goes through here. Any of them may be
absent, slow or restarted: nothing is pulled from it then, and all else goes on.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol

from router.base.clock import Clock
from router.base.ids import ReplicaId, SessionKey
from router.base.tasks import TaskOwner
from router.core.holdings import AgentReport
from router.kv import messages as m
from router.kv.remote import Remote, RemoteFault, dial
from router.kv.wire import Type

_log = logging.getLogger(__name__)

_OWN_NAME: Final = "router"

_EVERY_S: Final = 1.0
"""Between two questions of what has changed."""
_ANSWER_S: Final = 2.0
_REDIAL_S: Final = 1.0
_REDIAL_MOST_S: Final = 15.0

_MAX_BLOCK_BYTES: Final = 1
"""A router is sent no blocks."""


class AgentAddress(NamedTuple):
    """Where a KV agent or gateway listens."""

    host: str
    port: int


class AgentFleet(Protocol):
    """Who is told: the engine."""

    def agent_reported(self, name: ReplicaId, report: AgentReport, now: float) -> None: ...

    def agent_lost(self, name: ReplicaId, restarted: bool, now: float) -> None: ...


class Fetched(NamedTuple):
    """What a prefetch brought."""

    blocks: int
    size: int
    """Bytes."""
    reason: str


@dataclass(slots=True)
class _Watch:
    name: ReplicaId
    address: AgentAddress
    task: asyncio.Task[object] | None = None
    remote: Remote | None = None
    life: bytes = b""
    number: int = 0
    rates: dict[str, float] | None = None
    fault: str = ""
    """Why it is not there, as logged last; "" while it is."""


class KvAgents:
    """All agents and gateways of a fleet. Must be used on a running event loop.

    `secret` is the fleet's: it shows an agent that this is its router, and the router that it is an agent.
    """

    def __init__(self, fleet: AgentFleet, clock: Clock, rng: Random, *, secret: bytes) -> None:
        self._fleet = fleet
        self._clock = clock
        self._rng = rng
        self._secret = secret
        self._watches: dict[ReplicaId, _Watch] = {}
        self._tasks = TaskOwner()

    def set_agents(self, addresses: Mapping[ReplicaId, AgentAddress]) -> None:
        """Listen to exactly these."""
        for name, watch in tuple(self._watches.items()):
            if addresses.get(name) != watch.address:
                del self._watches[name]
                if watch.task is not None:
                    watch.task.cancel()
                if watch.remote is not None:
                    watch.remote.close()
                self._fleet.agent_lost(name, False, self._clock.now())
        for name, address in addresses.items():
            if name not in self._watches:
                watch = self._watches[name] = _Watch(name, address)
                watch.task = self._tasks.spawn(self._listen(watch), name=f"kv agent {name}")

    async def close(self) -> None:
        """Listen to nobody any more."""
        await self._tasks.close()
        for watch in self._watches.values():
            if watch.remote is not None:
                watch.remote.close()
        self._watches.clear()

    def faults(self) -> dict[ReplicaId, str]:
        """Every agent and gateway, and why it is not there; "" for those that are."""
        return {name: watch.fault if watch.remote is None else "" for name, watch in self._watches.items()}

    async def prefetch(
        self,
        target: ReplicaId,
        label: str,
        session: SessionKey,
        sources: Sequence[ReplicaId],
        deadline_s: float,
    ) -> Fetched:
        """Have an agent bring a session's KV beside its replica. Never raises for what the agent does."""
        wish = m.Prefetch(label, session, [str(source) for source in sources], int(deadline_s * 1000))
        done = await self._call(target, Type.PREFETCH, wish, deadline_s + _ANSWER_S)
        return Fetched(done.blocks, done.size, done.reason)

    def release(self, label: str, session: SessionKey, holders: Iterable[ReplicaId]) -> None:
        """A session is over: these need not keep its KV."""
        for name in holders:
            self._tasks.spawn(
                self._call(name, Type.RELEASE, m.OfSession(label, session), _ANSWER_S), name="kv release"
            )

    async def _call(self, name: ReplicaId, kind: Type, message: m.Message, timeout_s: float) -> m.Done:
        watch = self._watches.get(name)
        if watch is None or watch.remote is None:
            return m.Done(0, 0, "lost")
        try:
            return await watch.remote.call(kind, message, m.Done, timeout_s)
        except RemoteFault as fault:
            return m.Done(0, 0, fault.reason[:128])

    async def _listen(self, watch: _Watch) -> None:
        pause_s = _REDIAL_S
        while True:
            try:
                remote = await dial(
                    watch.address.host,
                    watch.address.port,
                    secret=self._secret,
                    name=_OWN_NAME,
                    role="router",
                    max_block=_MAX_BLOCK_BYTES,
                )
            except RemoteFault as fault:
                self._complain(watch, fault)
                await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
                pause_s = min(_REDIAL_MOST_S, 2.0 * pause_s)
                continue
            pause_s = _REDIAL_S
            try:
                await self._follow(watch, remote)
            except RemoteFault as fault:
                self._complain(watch, fault)
            finally:
                watch.remote = None
                remote.close()
                self._fleet.agent_lost(watch.name, False, self._clock.now())

    async def _follow(self, watch: _Watch, remote: Remote) -> None:
        """Ask for changes until it is lost. Raises `RemoteFault`."""
        if remote.name != watch.name:
            raise RemoteFault("name", f"it calls itself {remote.name!r}")
        if watch.life and remote.life != watch.life:
            self._fleet.agent_lost(watch.name, True, self._clock.now())
        watch.life, watch.number, watch.rates = remote.life, 0, {}
        while True:
            asked = m.Holdings(watch.life, watch.number)
            changes = await remote.call(Type.HOLDINGS, asked, m.Changes, _ANSWER_S)
            if changes.life != watch.life:
                raise RemoteFault("life", "it is another process, on the same connection")
            watch.number = changes.number
            self._fleet.agent_reported(watch.name, self._report(watch, remote, changes), self._clock.now())
            if watch.remote is None:
                watch.remote = remote
                _log.info("kv agent %s: holds %d blocks", watch.name, changes.blocks)
                watch.fault = ""
            await asyncio.sleep(_EVERY_S)

    def _report(self, watch: _Watch, remote: Remote, changes: m.Changes) -> AgentReport:
        tokens = changes.block_tokens
        assert watch.rates is not None
        rates = []
        for source in changes.sources:
            if source.bytes_per_s != watch.rates.get(source.name, 0.0):
                watch.rates[source.name] = source.bytes_per_s
                rates.append((ReplicaId(source.name), source.bytes_per_s))
        space = remote.spaces[0] if remote.spaces else None
        return AgentReport(
            changes.complete,
            tuple((SessionKey(one.session), one.blocks * tokens) for one in changes.held if one.session),
            tuple(SessionKey(session) for _, session in changes.gone),
            changes.blocks * tokens,
            changes.capacity_blocks * tokens if tokens else None,
            space.block_bytes / space.block_size if space is not None else None,
            tuple(rates),
        )

    def _complain(self, watch: _Watch, fault: RemoteFault) -> None:
        """Log when it goes, and when the reason changes: pulls do without it."""
        what = str(fault)
        if what != watch.fault:
            watch.fault = what
            _log.warning("kv agent %s: %s; nothing is pulled from it", watch.name, what)
