"""Replicas as configured, and what they report of themselves: values only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from router.base.ids import ReplicaId


class Role(StrEnum):
    """What of a turn a replica does."""

    BOTH = "both"
    """All of it."""
    PREFILL = "prefill"
    """Computes prompts, whose KV a decode replica fetches. Never answers a client."""
    DECODE = "decode"
    """Answers, with KV that a prefill replica has computed; all by itself where there is none."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica as the configuration or discovery names it."""

    id: ReplicaId
    url: str
    """`http://host:port` or `https://host:port`, no path, no trailing slash."""
    kv_tokens: int | None = None
    """KV capacity where the operator knows better than `/metrics`."""
    host_kv_tokens: int | None = None
    """What its host tier holds beyond the device, where the operator knows better than `/metrics`."""
    kv_agent: str | None = None
    """`host:port` of its KV agent: others can pull from it, and it from them. `None` = it has none."""
    kv_p2p: str | None = None
    """`host:port` of vLLM's own P2P tier in it: others that have one can pull from it, and it from them.
    `None` = it has none."""
    kv_events: str | None = None
    """Where it publishes KV events, `tcp://host:port`; `None` = it does not."""
    kv_replay: str | None = None
    """Where it replays them."""
    role: Role = Role.BOTH
    two_way: bool = False
    """Of a prefill replica: it may be sent what a decode replica offers, and fetches KV from there. One that
    is not set up for it hangs on that."""


class Report(NamedTuple):
    """One look at a replica's `/metrics`. A missing figure is `None`, never zero."""

    start_time: float | None = None
    """Unix seconds at which its process started."""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """0 … 1."""
    kv_capacity_tokens: int | None = None
    host_kv_tokens: int | None = None
    """KV that its host tier holds beyond the device's."""
    block_tokens: int | None = None
    """Tokens of a KV block, where all of its engines have the same."""


class ModelCard(NamedTuple):
    """A model as a replica lists it in `/v1/models`."""

    id: str
    raw: bytes
    """The card as the replica sent it: one JSON object."""


class ReplicaStatus(NamedTuple):
    """Everything the engine knows of one replica, for people and metrics. A copy: never changes."""

    id: ReplicaId
    url: str
    health: str
    why: str
    draining: bool
    models: tuple[str, ...] | None
    in_flight: int
    pending_tokens: int
    working_set_tokens: int
    sessions: int
    index_segments: int
    report: Report | None
    report_age_s: float | None
    capacity_tokens: int | None
    recent_failures: float
    restarts: int
    trust: float
    """Cached tokens that it delivers for each one that it is believed to hold, 0 … 1 in eighths."""
    held: int
    """Turns that wait in the router to go there."""
    free_tokens: int | None
    """KV neither in use nor spoken for."""
    horizon_tokens: int
    """Prefill that may be on its way there before turns wait, as learned."""
    leaving: bool = False
    """No source names it any longer: it is gone once its turns have ended."""
    role: Role = Role.BOTH


class Resident(NamedTuple):
    """What of a session lies at one place, and who says so."""

    place: ReplicaId
    """A replica, or a KV gateway."""
    tokens: int
    told_by: Literal["events", "agent"]
    """`events`: the replica's own, of its cache. `agent`: the KV agent beside it, or the gateway."""
