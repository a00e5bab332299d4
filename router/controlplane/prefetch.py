"""Moves a session's KV while its tool runs: at a turn's end, to where the next turn will go.

Looks only at sessions whose home will not have their next turn: it drains, or is over a limit. The same
prices that will decide then say where that turn goes and whether fetching its KV pays. And it lets agents
forget a session that is over.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from router.base.errors import Refused
from router.base.ids import ReplicaId, SessionKey, TenantId
from router.base.tasks import TaskOwner
from router.controlplane.kv_agents import Fetched
from router.core.decide import Decision
from router.core.observe import FAILURES, Ended
from router.core.observer import Silent
from router.core.request import Turn

_MOST: Final = 4096
"""Prefetches whose use is still to be seen."""

_LONGEST_S: Final = 30.0


class Foresight(Protocol):
    """The engine, as far as it is asked about turns to come."""

    def plan_of(self, policy: str) -> int:
        """The index of the policy of a name."""
        ...

    def will_leave(self, replica: ReplicaId, *, plan: int) -> bool:
        """Whether sessions that live there will have their next turns elsewhere."""
        ...

    def decide(self, turn: Turn, now: float, *, plan: int) -> Decision:
        """Raises `Refused`."""
        ...

    def holders(self, session: SessionKey) -> Iterable[ReplicaId]:
        """Agents that are known to hold KV of a session."""
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

    def release(self, label: str, session: SessionKey, holders: Iterable[ReplicaId]) -> None: ...


class _Ahead:
    """A session's KV on its way to where its next turn is expected."""

    __slots__ = ("size", "target", "used")

    def __init__(self, target: ReplicaId) -> None:
        self.target = target
        self.size: int | None = None
        """Bytes that came; `None` while they are on their way."""
        self.used: bool | None = None
        """Whether the next turn went there; `None` while there was none."""


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
        self._unused: OrderedDict[SessionKey, _Ahead] = OrderedDict()
        """Those whose next turn is still to come."""
        self.started = 0
        self.bytes = 0
        """Brought."""
        self.hits = 0
        """Next turns that went where KV of theirs had been brought, or came to be meanwhile."""
        self.wasted_bytes = 0
        """Brought to where the next turn did not go, or for a session that had none."""

    async def close(self) -> None:
        await self._tasks.close()

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        if self._unused and turn.session is not None:
            ahead = self._unused.pop(turn.session, None)
            if ahead is not None:
                self._settle(ahead, ahead.target == decision.replica)

    def on_ended(self, ended: Ended) -> None:
        turn, decision = ended.turn, ended.decision
        if turn.session is None or ended.outcome in FAILURES:
            return
        if turn.last:
            self._drop(turn.session)
            # What its last turn left behind may not have been heard of yet.
            holders = {*self._engine.holders(turn.session), decision.replica}
            self._agents.release(self._label_of(turn.tenant), turn.session, holders)
            return
        plan = self._engine.plan_of(decision.policy)
        if turn.session not in self._unused and self._engine.will_leave(decision.replica, plan=plan):
            self._look_ahead(turn, turn.session, decision.replica, plan, ended.now)

    def _look_ahead(self, turn: Turn, session: SessionKey, home: ReplicaId, plan: int, now: float) -> None:
        """The next turn's prompt begins with this one's, and its price is much the same."""
        try:
            following = self._engine.decide(turn, now, plan=plan)
        except Refused:
            return
        pull = following.pull
        if pull is None or following.replica == home:
            return
        self.started += 1
        ahead = self._unused[session] = _Ahead(following.replica)
        if len(self._unused) > _MOST:
            self._drop(next(iter(self._unused)))
        self._tasks.spawn(
            self._bring(
                ahead,
                self._label_of(turn.tenant),
                session,
                pull.source,
                min(_LONGEST_S, pull.deadline_s),
            ),
            name="kv prefetch",
        )

    async def _bring(
        self, ahead: _Ahead, label: str, session: SessionKey, source: ReplicaId, deadline_s: float
    ) -> None:
        fetched = await self._agents.prefetch(ahead.target, label, session, (source,), deadline_s)
        self.bytes += fetched.size
        ahead.size = fetched.size
        if ahead.used is not None:
            self._count(ahead)

    def _drop(self, session: SessionKey) -> None:
        ahead = self._unused.pop(session, None)
        if ahead is not None:
            self._settle(ahead, False)

    def _settle(self, ahead: _Ahead, used: bool) -> None:
        """What became of it is known. It counts as soon as its bytes are."""
        ahead.used = used
        if ahead.size is not None:
            self._count(ahead)

    def _count(self, ahead: _Ahead) -> None:
        """Where nothing came it was neither of use nor a waste."""
        if ahead.used:
            self.hits += bool(ahead.size)
        else:
            self.wasted_bytes += ahead.size or 0
