"""What an engine knows that cannot be asked for again: sessions, prefixes, stored responses, token ratios.

Values only, so that one engine's memory can be another's, in another process. It holds for a replica as long
as that is the same process: its start time says so. Whatever cannot be checked is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from router.base.ids import ReplicaId, SessionKey, TenantId

# Clocks of replica and scrape round differently: a start time that moved by less is the same process.
SAME_START_S: Final = 1.0


class ShelfMemory(NamedTuple):
    """What one shelf of the prefix index lists, in runs of segments that follow one another, the least recent
    run first: 64-bit numbers as they are here."""

    hashes: bytes
    sizes: bytes
    """Prompt bytes of each segment."""
    lengths: bytes
    """Segments of each run."""
    parents: bytes
    """The first segment of the run that precedes each; 0 for none."""


class ReplicaMemory(NamedTuple):
    """One replica, in one life of it."""

    id: ReplicaId
    url: str
    start_time: float | None
    """Unix seconds; `None` where it does not tell, and so nothing of it can be checked."""
    epoch: int
    """What sessions and responses mean it by."""
    drained: bool
    """By an operator, which holds for every life."""
    shelf: ShelfMemory
    reach: ShelfMemory | None
    """Device and host together, where it has a host tier."""


class SessionMemory(NamedTuple):
    """A session, with ages in the place of times."""

    key: SessionKey
    model: str
    tenant: TenantId
    home: ReplicaId
    home_epoch: int
    resident_tokens: int
    tail: int
    reply_tokens: int
    turns: int
    moves: int
    age_s: float
    idle_s: float
    source: str


class ResponseMemory(NamedTuple):
    """A stored response."""

    id: str
    tenant: TenantId
    replica: ReplicaId
    epoch: int
    session: SessionKey | None
    model: str
    tail: int


class Memory(NamedTuple):
    """All of it. Sessions and responses are in the order of their last use, oldest first."""

    replicas: tuple[ReplicaMemory, ...] = ()
    sessions: tuple[SessionMemory, ...] = ()
    responses: tuple[ResponseMemory, ...] = ()
    ratios: tuple[tuple[str, float], ...] = ()
    """Tokens a prompt byte, by model."""


def why_cold(kept: ReplicaMemory, url: str, start_time: float | None) -> str:
    """Why what is remembered of a replica does not hold for the one that is there; "" where it does."""
    if kept.url != url:
        return f"is at {url}, and was at {kept.url}"
    if kept.start_time is None or start_time is None:
        return "does not tell when it started, so nothing can be checked"
    if abs(kept.start_time - start_time) > SAME_START_S:
        return "has restarted"
    return ""


def lives(warm: Iterable[tuple[ReplicaMemory, int]]) -> Mapping[tuple[ReplicaId, int], int]:
    """From a replica and its epoch in the memory to its epoch now."""
    return {(kept.id, kept.epoch): epoch for kept, epoch in warm}
