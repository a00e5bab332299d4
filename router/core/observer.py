"""Who is told what the engine reports, one method a fact. Telemetry subscribes; the core knows no tool.

An observer must be quick and must not raise; one that raises is detached by the engine, and routing
goes on.
"""

from typing import Protocol

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.observe import Ended, HealthChange, Prefilled, WaitEnd
from router.core.request import Turn


class Observer(Protocol):
    """Receives every fact, in order, on the engine's thread."""

    def on_decision(self, turn: Turn, decision: Decision) -> None: ...

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None: ...

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None: ...

    def on_ended(self, ended: Ended) -> None: ...

    def on_prefilled(self, prefilled: Prefilled) -> None: ...

    def on_health(self, change: HealthChange) -> None: ...

    def on_restarted(self, replica: ReplicaId, now: float) -> None: ...

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None: ...


class Silent:
    """An observer that hears nothing: the base of those that listen for some facts only."""

    __slots__ = ()

    def on_decision(self, turn: Turn, decision: Decision) -> None: ...

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None: ...

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None: ...

    def on_ended(self, ended: Ended) -> None: ...

    def on_prefilled(self, prefilled: Prefilled) -> None: ...

    def on_health(self, change: HealthChange) -> None: ...

    def on_restarted(self, replica: ReplicaId, now: float) -> None: ...

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None: ...
