"""Moves a session's KV while its tool runs: at a turn's end, to where the next turn will go.

Looks only at sessions whose home will not have their next turn: it drains, or is over a limit. The same
prices that will decide then say where that turn goes and whether fetching its KV pays. And it lets agents
forget a session that is over.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from router.base.errors import Refused
from router.base.ids import ReplicaId, SessionKey, TenantId
from router.base.tasks import TaskOwner
from router.controlplane.kv_agents import Fetched
from router.core.decide import Decision
from router.core.observe import FAILURES, Ended, Silent
from router.core.request import Turn

_MOST: Final = 4096
"""Prefetches whose use is still to be seen."""

_LONGEST_S: Final = 30.0


class Foresight(Protocol):
    """The engine, as far as it is asked about turns to come."""

    def will_leave(self, replica: ReplicaId) -> bool:
        """Whether sessions that live there will have their next turns elsewhere."""
        ...

    def decide(self, turn: Turn, now: float) -> Decision:
        """Raises `Refused`."""
        ...


class Agents(Protocol):
    """Those who do it."""

    async def prefetch(
        self,
        target: ReplicaId,
        label: str,
        session: SessionKey,
        sources: tuple[ReplicaId, ...],
        deadline_s: float,
    ) -> Fetched: ...

    def release(self, label: str, session: SessionKey) -> None: ...


class Prefetcher(Silent):
    """Listens to turns. Counts what its prefetches were good for."""

    __slots__ = (
        "_agents",
        "_engine",
        "_label_of",
        "_tasks",
        "_unused",
        "bytes",
        "hits",
        "started",
        "wasted_bytes",
    )

    def __init__(self, engine: Foresight, agents: Agents, label_of: Callable[[TenantId], str]) -> None:
        """`label_of`: what agents call a tenant."""
        self._engine = engine
        self._agents = agents
        self._label_of = label_of
        self._tasks = TaskOwner()
        self._unused: OrderedDict[SessionKey, tuple[ReplicaId, int]] = OrderedDict()
        """Where a session's KV was brought, and how many bytes; 0 while they are on their way."""
        self.started = 0
        self.bytes = 0
        """Brought."""
        self.hits = 0
        """Next turns that went where their KV had been brought."""
        self.wasted_bytes = 0
        """Brought to where the next turn did not go, or for a session that had none."""

    async def close(self) -> None:
        await self._tasks.close()

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        if not self._unused or turn.session is None:
            return
        found = self._unused.pop(turn.session, None)
        if found is not None:
            target, size = found
            if target == decision.replica:
                self.hits += 1
            else:
                self.wasted_bytes += size

    def on_ended(self, ended: Ended) -> None:
        turn = ended.turn
        if turn.session is None or ended.outcome in FAILURES:
            return
        if turn.last:
            self._drop(turn.session)
            self._agents.release(self._label_of(turn.tenant), turn.session)
        elif turn.session not in self._unused and self._engine.will_leave(ended.decision.replica):
            self._look_ahead(turn, turn.session, ended.decision.replica, ended.now)

    def _look_ahead(self, turn: Turn, session: SessionKey, home: ReplicaId, now: float) -> None:
        """The next turn's prompt begins with this one's, and its price is much the same."""
        try:
            following = self._engine.decide(turn, now)
        except Refused:
            return
        pull = following.pull
        if pull is None or following.replica == home:
            return
        self.started += 1
        self._unused[session] = following.replica, 0
        if len(self._unused) > _MOST:
            self._drop(next(iter(self._unused)))
        self._tasks.spawn(
            self._bring(
                following.replica,
                self._label_of(turn.tenant),
                session,
                pull.source,
                min(_LONGEST_S, pull.deadline_s),
            ),
            name="kv prefetch",
        )

    async def _bring(
        self, target: ReplicaId, label: str, session: SessionKey, source: ReplicaId, deadline_s: float
    ) -> None:
        fetched = await self._agents.prefetch(target, label, session, (source,), deadline_s)
        self.bytes += fetched.size
        if session in self._unused:
            self._unused[session] = target, fetched.size

    def _drop(self, session: SessionKey) -> None:
        found = self._unused.pop(session, None)
        if found is not None:
            self.wasted_bytes += found[1]
