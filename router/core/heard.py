"""What one engine tells another that serves the same clients: what a turn has left behind, and where.

Values only. A replica is meant in the life in which the turn was answered: its start time says which that is.
"""

from typing import NamedTuple

from router.base.ids import ReplicaId, SessionKey, TenantId


class HeardTurn(NamedTuple):
    """A turn that a replica has answered."""

    replica: ReplicaId
    start_time: float | None
    """Of the replica, in Unix seconds; `None` where it does not tell."""
    tenant: TenantId
    session: SessionKey | None
    source: str
    """Where the session's id came from."""
    model: str
    hashes: tuple[int, ...]
    """The prompt's segments."""
    ends: tuple[int, ...]
    prompt_tokens: int
    reply_tokens: int
    last: bool
    """The session is over."""


class HeardResponse(NamedTuple):
    """A response that a replica stores."""

    replica: ReplicaId
    start_time: float | None
    tenant: TenantId
    id: str
    session: SessionKey | None
    model: str
    tail: int
    """The last segment of the turn that it answers; 0 for an empty one."""
