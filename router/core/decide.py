"""The decision: what a strategy is given, what it answers, and the bill that anyone can read.

A strategy sees a frozen `FleetView`, made for this one decision, and picks one of its candidates. It
cannot reach anything that changes, so the same view, turn and random source give the same answer.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from router.base.ids import ReplicaId
from router.core.request import Turn
from router.core.ring import Ring


class Kind(StrEnum):
    """What a decision means for the session's KV."""

    NEW = "new"
    """Nobody holds it; placed."""
    HOME = "home"
    """To the replica that holds most of it."""
    SPILL = "spill"
    """Away from home, computing again."""
    PULL = "pull"
    """Away from home, the KV fetched."""
    FAILOVER = "failover"
    """Home is gone, down, or failed this very turn."""
    PASS = "pass"
    """No session to route by: to where its prompt is cached, or to whoever has the least to do."""


class Candidate(NamedTuple):
    """One eligible replica as it stood when the decision was made. Immutable."""

    replica: ReplicaId
    cached_tokens: int
    """Leading prompt tokens expected to be found there: what is believed to lie there, times what the replica
    delivers of such beliefs."""
    in_flight: int
    """Turns that this router has there."""
    pending_tokens: int
    """Uncached prompt tokens that this router sent there and that are not yet prefilled."""
    working_set_tokens: int
    """Tokens of the living sessions whose home it is."""
    capacity_tokens: int | None
    """KV capacity in tokens; `None` where the replica has not told."""
    foreign: float | None
    """Requests running and waiting there that were not ours when it last reported; `None` if unknown."""
    recent_failures: float
    """Failures lately, halved every ten seconds: a replica that fails fast must not look idle."""
    placed_at: float
    """When a new session was last placed there; breaks ties so that paced sessions spread."""
    over: str | None
    """Which limit of the policy it exceeds, in words; `None` if none."""
    free_tokens: int | None = None
    """KV that is neither in use nor spoken for by turns on their way there, below 0 where more is; `None` if
    unknown."""
    held_tokens: int = 0
    """Missing tokens of the turns that wait in the router to go there."""
    ahead_tokens: int = 0
    """Those of them that are of turns which would go before this one."""


make_candidate: "partial[Candidate]" = partial(tuple.__new__, Candidate)
"""A candidate from the tuple of its fields, in half the time: one is made for every replica and turn."""


class FleetView(NamedTuple):
    """The fleet at one instant, for one turn. Candidates are in a stable order, by name."""

    now: float
    """Monotonic seconds."""
    candidates: tuple[Candidate, ...]
    """Eligible replicas: healthy, serving the model, not draining, not excluded. Never empty."""
    home: ReplicaId | None
    """The session's home, whether or not it is among the candidates; `None` if nobody holds it."""
    prompt_tokens: int
    """Estimated length of the whole prompt."""
    ring: Ring
    """All replicas that may own sessions, the unhealthy ones included: skip those not in `candidates`."""
    serial: int
    """How many decisions this policy made before this one: whose turn it is, for a strategy that rotates."""
    parent: ReplicaId | None = None
    """Where the session lives that started this one, for a session without a home; `None` if nobody knows."""


class Choice(NamedTuple):
    """A strategy's answer."""

    candidate: Candidate
    reason: str
    """Few words, lower case, for a person: `owner on the ring`, `least in flight`."""
    prices: tuple[float, ...] | None = None
    """A figure for each candidate, in their order, in the strategy's own unit (less is better); `None`
    where it compared none. Never infinite, never negative."""


class Strategy(Protocol):
    """Picks a replica. Built with a plain constructor call from its own `Params`.

    It may keep nothing between calls but its parameters: state lives in the engine, and arrives in the
    view.
    """

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice: ...


BUILT_IN: Mapping[str, str] = {
    "priced": "router.core.strategies.priced:Priced",
    "ring": "router.core.strategies.ring:RingOnly",
    "bounded-ring": "router.core.strategies.bounded_ring:BoundedRing",
    "prefix": "router.core.strategies.prefix:MostCached",
    "least-loaded": "router.core.strategies.least_loaded:LeastLoaded",
    "two-choices": "router.core.strategies.two_choices:TwoChoices",
    "round-robin": "router.core.strategies.round_robin:RoundRobin",
}
"""Strategy name in a policy → `module:Class`, imported when used."""


class Decision(NamedTuple):
    """Where a turn goes and why. The candidates and prices are the bill."""

    replica: ReplicaId
    kind: Kind
    reason: str
    policy: str
    """Name of the policy that decided."""
    candidates: tuple[Candidate, ...]
    prices: tuple[float, ...] | None
    home: ReplicaId | None
    prompt_tokens: int
    cached_tokens: int
    """Predicted for the chosen replica."""
    attempt: int
    """0 for the first, 1 and up when an earlier replica failed this turn."""
    at: float
    """Monotonic seconds."""
    waited_s: float = 0.0
    """For how long the router had held the turn."""
