"""Facts that the engine reports, one method a fact. Telemetry subscribes; the core knows no tool.

An observer must be quick and must not raise; one that raises is detached by the engine, and routing
goes on.
"""

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.base.values import maker
from router.core.decide import Decision
from router.core.request import Turn


class Outcome(StrEnum):
    """How a turn on a replica ended."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    """The replica answered 4xx: the client's fault, the replica is well."""
    SERVER_ERROR = "server_error"
    """The replica answered 5xx."""
    CONNECT_FAILED = "connect_failed"
    """No connection could be made."""
    DIED = "died"
    """The connection ended without a complete answer, and the replica refuses a new one."""
    CUT = "cut"
    """The connection ended without a complete answer, or sent garbage."""
    TIMEOUT = "timeout"
    """No first byte, or no end, in time."""
    CANCELLED = "cancelled"
    """The client left, or the router stopped."""
    SHORTAGE = "shortage"
    """The router could not connect for want of something of its own: files, ports, memory, names."""
    OVER_LIMIT = "over_limit"
    """The answer took longer, or was larger, than the router allows any answer to be."""


FAILURES = frozenset(
    {Outcome.SERVER_ERROR, Outcome.CONNECT_FAILED, Outcome.DIED, Outcome.CUT, Outcome.TIMEOUT}
)
"""Outcomes that speak against the replica."""

NEUTRAL = frozenset({Outcome.CANCELLED, Outcome.SHORTAGE, Outcome.OVER_LIMIT})
"""Outcomes that say nothing of the replica."""


class WaitEnd(StrEnum):
    """How a wait in the queue ended."""

    DISPATCHED = "dispatched"
    EXPIRED = "expired"
    """Refused: it had waited as long as the policy, or its client, allows."""
    PUSHED_OUT = "pushed_out"
    """Refused: the queue was full, and another tenant had less in it."""
    NO_REPLICA = "no_replica"
    """Refused: no replica is left that could have it."""
    LEFT = "left"
    """The client went away."""


class Usage(NamedTuple):
    """Token counts as the replica reported them. `None` = not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


make_usage: Final = maker(Usage)


class Ended(NamedTuple):
    """One attempt of a turn, over."""

    turn: Turn
    decision: Decision
    outcome: Outcome
    usage: Usage | None
    ttft_s: float | None
    """From the first attempt's dispatch to the first answer byte; `None` where none came or where it says
    nothing of prefill."""
    duration_s: float
    now: float


make_ended: Final = maker(Ended)


class HealthChange(NamedTuple):
    """A replica's health moved."""

    replica: ReplicaId
    before: str
    after: str
    why: str
    now: float


class Observer(Protocol):
    """Receives every fact, in order, on the engine's thread."""

    def on_decision(self, turn: Turn, decision: Decision) -> None: ...

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None: ...

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None: ...

    def on_ended(self, ended: Ended) -> None: ...

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

    def on_health(self, change: HealthChange) -> None: ...

    def on_restarted(self, replica: ReplicaId, now: float) -> None: ...

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None: ...
