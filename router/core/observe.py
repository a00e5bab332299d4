"""Facts that the engine reports of turns and replicas: values only."""

from enum import StrEnum
from typing import Final, NamedTuple

from router.base.ids import ReplicaId
from router.base.values import Value
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


class Usage(Value):
    """Token counts as the replica reported them. `None` = not reported."""

    __match_args__ = (
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.completion_tokens: Final = completion_tokens
        self.cached_tokens: Final = cached_tokens


class Ended(Value):
    """One attempt of a turn, over."""

    __match_args__ = (
        "turn",
        "decision",
        "outcome",
        "usage",
        "ttft_s",
        "duration_s",
        "now",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        turn: Turn,
        decision: Decision,
        outcome: Outcome,
        usage: Usage | None,
        ttft_s: float | None,
        duration_s: float,
        now: float,
    ) -> None:
        self.turn: Final = turn
        self.decision: Final = decision
        self.outcome: Final = outcome
        self.usage: Final = usage
        self.ttft_s: Final = ttft_s
        """From the first attempt's dispatch to the first answer byte; `None` where none came or where it says
        nothing of prefill."""
        self.duration_s: Final = duration_s
        self.now: Final = now


class Prefilled(NamedTuple):
    """A prefill replica has computed the prompt of a paired turn, or has not."""

    turn: Turn
    decision: Decision
    """The decode replica's."""
    replica: ReplicaId
    number: int
    """From 0, over all that had the turn's prompt."""
    prompt_tokens: int
    """Expected, as the next."""
    cached_tokens: int
    source: ReplicaId | None
    """Whom it was told to fetch from first; `None` = nobody."""
    outcome: Outcome
    usage: Usage | None
    duration_s: float
    now: float


class HealthChange(NamedTuple):
    """A replica's health moved."""

    replica: ReplicaId
    before: str
    after: str
    why: str
    now: float
