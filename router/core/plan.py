"""A policy, resolved: what the engine runs. Built by `settings/build.py`, or by hand in tests.

All durations are seconds, all sizes tokens or bytes as named. Nothing here is optional-by-absence: `None`
has the meaning that its line gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from router.core.decide import Strategy
from router.core.learned import SEED_TOKENS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Where a turn's session id is looked for, in order: headers, then body fields, then the opening."""

    headers: tuple[str, ...] = (
        "x-session-id",
        "x-claude-code-session-id",
        "session-id",
        "x-litellm-session-id",
    )
    """Lower case, `-` for `_`: the data plane compares them so."""
    parents: tuple[str, ...] = ("x-parent-session-id", "x-codex-parent-thread-id")
    """Headers that name the session which started this one, likewise."""
    body: tuple[str, ...] = ("prompt_cache_key", "metadata.session_id", "session_id")
    derive: bool = True
    """Derive a session from the conversation's opening where no id is given."""
    idle_s: float = 1800.0
    """A session without a turn for this long is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """When a replica is passed over. Each limit applies to one replica."""

    in_flight: int | None = None
    """Turns of ours at once, a hard limit: with all replicas over it a turn is refused. `None` = auto:
    over twice the fleet's mean plus 32, a soft limit."""
    kv_usage: float | None = 0.98
    """Share of KV blocks in use, a soft limit; `None` = no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What happens when a replica fails before the first byte of its answer."""

    attempts: int = 2
    """Further attempts at most."""
    after_death: int = 1
    """Further attempts after a replica died holding the turn: a prompt that fells one engine must not
    fell them all."""
    budget: float = 0.2
    """Retries across the fleet as a share of requests, on top of a small constant rate. What had a replica
    that is gone takes nothing from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How turns wait in the router."""

    ageing: float = 0.02
    """Seconds of work that a second of waiting makes up for, above 0."""
    horizon_s: float | None = None
    """Seconds of prefill that may be on their way to a replica; `None` = learned."""
    in_flight: int | None = None
    """Turns of ours at one replica at once; `None` = no limit."""
    most: int = 4096
    """Turns held at once."""
    most_bytes: int = 2**30
    """Bytes of the bodies of all turns held."""
    wait_s: float = 300.0
    """A turn that was held for this long is refused."""
    leads_s: Mapping[str, float] = field(default_factory=dict)
    """Priorities that a client may ask for: by how many seconds longer such a turn counts as having waited,
    below 0 for less long."""
    engine_priorities: bool = False
    """Whether replicas order by priority as well, and are told it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRules:
    """What the fleet's books of pulls go by. What a pull costs is the strategy's to say."""

    per_source: int = 4
    """Pulls from one replica at a time."""
    seed_gbps: float = 25.0
    """Gigabits a second between two replicas, until it is learned."""
    stall_s: float = 0.15
    """A pull that gets nothing for so long is given up."""
    deadline_s: float = 2.0
    """What a pull may take that nobody priced: from a pool that turns out to have the KV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRules:
    """How prefill and decode replicas work together."""

    ttl_s: float = 60.0
    """What decode holds of a turn may be fetched for so long: less than the engines' own time for it."""
    least_tokens: int = 256
    """A shorter beginning is computed rather than fetched back from decode."""
    deadline_s: float = 10.0
    """What a prefill that fetches may take beyond what computing all would: then it is given up, and all is
    computed."""
    whole_streams: bool = False
    """Ask decode for whole answers to streamed turns and stream those, where its streams do not say what it
    holds: the next turn's prefill is then short, and this turn's first token comes last."""
    kv_usage: float = 0.5
    """Above this share of its KV blocks in use, a decode replica's oldest claims are let go of: turns that
    run there want blocks too. `docs/prefill-decode.md` has what other shares came to in a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One policy in force."""

    name: str
    strategy: Strategy
    session: SessionRules = field(default_factory=SessionRules)
    overload: Overload = field(default_factory=Overload)
    retry: Retry = field(default_factory=Retry)
    queue: QueueRules | None = None
    """`None` = turns are dispatched at once and wait in the replica."""
    prefill_tokens_per_s: float = SEED_TOKENS_PER_S
    """What is assumed of a replica's prefill until it is learned; the default policy's counts."""
    pull: PullRules = field(default_factory=PullRules)
    """The default policy's counts."""
    pair: PairRules = field(default_factory=PairRules)
    vnodes: int = 160
    """Virtual nodes a replica on the ring."""
    refuse_reserved: bool = False
    """Refuse a request whose body carries a field that is the router's to set, instead of cutting it."""
