"""A trace as values: sessions, their turns, and which blocks of a prompt are those of the turn before.

A block is named by a hash of itself and all before it, so equal hashes are equal beginnings, whoever's
turn they are in. Knows no file format and no fleet.
"""

from dataclasses import dataclass
from typing import NamedTuple

from router.core.request import Chain


class TraceTurn(NamedTuple):
    """One request. Its prompt's full blocks are the first `kept` of the turn before it, then `fresh`."""

    at_s: float
    """When it came, in seconds since its session began."""
    prompt_tokens: int
    output_tokens: int
    """0 where the trace has none."""
    think_s: float
    """From the end of the answer before it."""
    kept: int
    fresh: tuple[int, ...]
    chain: Chain | None = None
    """The prompt as the router saw it; `None` where the trace knows blocks only."""
    last: bool = False
    """The client said that it was its session's last."""


@dataclass(frozen=True, slots=True)
class SubAgent:
    """A session that another one starts, and that runs beside it."""

    at_s: float
    """When it begins, in seconds since its parent did."""
    after: int
    """How many of its parent's turns stand before it."""
    session: "TraceSession"


@dataclass(frozen=True, slots=True)
class TraceSession:
    """One session, in the order of its turns."""

    id: str
    at_s: float
    """When it begins, in seconds since the trace does. 0 for all where the trace does not say."""
    turns: tuple[TraceTurn, ...]
    lead_blocks: int
    """Leading full blocks that tools and system prompt take: what other sessions may begin with too."""
    agents: tuple[SubAgent, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file's contents."""

    name: str
    """The file's, for people."""
    block_tokens: int
    sessions: tuple[TraceSession, ...]
    timed: bool
    """Whether the trace says when each session began."""
    notes: tuple[str, ...] = ()
    """What of the file was not used or guessed at, in words."""
