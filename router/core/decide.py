"""The decision: what a strategy is given, what it answers, and the bill that anyone can read.

A strategy sees a frozen `FleetView`, made for this one decision, and picks one of its candidates. It
cannot reach anything that changes, so the same view, turn and random source give the same answer.
"""

from collections.abc import Mapping
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from router.base.ids import ReplicaId
from router.base.values import Value
from router.core.estimate.prefill import Curve, PrefillCurve
from router.core.learned import SEED_TOKENS_PER_S
from router.core.request import Turn
from router.core.ring import Ring

if TYPE_CHECKING:
    from router.core.pairing import Pairing
    from router.core.price import Pull
    from router.core.prices import Prices

_SEED_CURVE: Final = PrefillCurve(SEED_TOKENS_PER_S).curve


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
    PAIR = "pair"
    """A prefill replica computes the prompt, a decode replica answers."""
    PAIR_PULL = "pair-pull"
    """The same, and prefill first fetches what decode holds of the session's last turn."""


class Candidate(Value):
    """One eligible replica as it stood when the decision was made. Immutable."""

    __match_args__ = (
        "replica",
        "cached_tokens",
        "in_flight",
        "pending_tokens",
        "working_set_tokens",
        "capacity_tokens",
        "foreign",
        "recent_failures",
        "placed_at",
        "over",
        "free_tokens",
        "held_tokens",
        "ahead_tokens",
        "held",
        "host_tokens",
        "reach_tokens",
        "wait_s",
        "slot_s",
        "curve",
        "waiting",
        "holding_s",
        "arriving_tokens",
        "link_s",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        replica: ReplicaId,
        cached_tokens: int,
        in_flight: int,
        pending_tokens: int,
        working_set_tokens: int,
        capacity_tokens: int | None,
        foreign: float | None,
        recent_failures: float,
        placed_at: float,
        over: str | None,
        free_tokens: float | None = None,
        held_tokens: int = 0,
        ahead_tokens: int = 0,
        held: int = 0,
        host_tokens: int = 0,
        reach_tokens: int | None = None,
        wait_s: float = 0.0,
        slot_s: float = 0.0,
        curve: Curve = _SEED_CURVE,
        waiting: float = 0.0,
        holding_s: float = 0.0,
        arriving_tokens: int = 0,
        link_s: float = 0.0,
    ) -> None:
        self.replica: Final = replica
        self.cached_tokens: Final = cached_tokens
        """Leading prompt tokens expected to be found there: what is believed to lie there, times what the
        replica delivers of such beliefs."""
        self.in_flight: Final = in_flight
        """Turns that this router has there."""
        self.pending_tokens: Final = pending_tokens
        """Uncached prompt tokens that this router sent there and that are not yet prefilled."""
        self.working_set_tokens: Final = working_set_tokens
        """Tokens of the living sessions whose home it is."""
        self.capacity_tokens: Final = capacity_tokens
        """KV capacity in tokens; `None` where the replica has not told."""
        self.foreign: Final = foreign
        """Requests running and waiting there that were not ours when it last reported; `None` if unknown."""
        self.recent_failures: Final = recent_failures
        """Failures lately, halved every ten seconds: a replica that fails fast must not look idle."""
        self.placed_at: Final = placed_at
        """When a new session was last placed there; breaks ties so that paced sessions spread."""
        self.over: Final = over
        """Which limit of the policy it exceeds, in words; `None` if none."""
        self.free_tokens: Final = free_tokens
        """KV that is neither in use nor spoken for by turns on their way there, below 0 where more is; `None`
        if unknown."""
        self.held_tokens: Final = held_tokens
        """Missing tokens of the turns that wait in the router to go there."""
        self.ahead_tokens: Final = ahead_tokens
        """Those of them that are of turns which would go before this one."""
        self.held: Final = held
        """How many turns wait in the router to go there."""
        self.host_tokens: Final = host_tokens
        """How many of `cached_tokens` lie only in its host tier."""
        self.reach_tokens: Final = reach_tokens
        """KV capacity of device and host together; `None` where the replica has not told."""
        self.wait_s: Final = wait_s
        """Until it has prefilled what goes before this turn: what was sent there, and what waits to be."""
        self.slot_s: Final = slot_s
        """Until it has a place and KV blocks for this turn. 0 where its capacity is unknown."""
        self.curve: Final = curve
        """What a first token takes there, as learned."""
        self.waiting: Final = waiting
        """Turns that wait for this replica, here or there, where it is short of blocks or places; else 0."""
        self.holding_s: Final = holding_s
        """How long a turn there holds its KV after the first token, on average."""
        self.arriving_tokens: Final = arriving_tokens
        """KV on its way there from other replicas."""
        self.link_s: Final = link_s
        """Until what lies on its host for turns before this one is on the device, their waits for a place
        included. 0 where nothing lies there for this one."""


class Source(NamedTuple):
    """A replica, or a pool, that KV of this prompt could be pulled from."""

    replica: ReplicaId
    cached_tokens: int
    """Leading prompt tokens expected there."""
    pulls: int
    """Under way from it."""
    chance: float
    """That a pull from it brings what it was sent for, 0 … 1."""


class Flight(NamedTuple):
    """KV of this prompt on its way to a replica, for a turn that was sent there before."""

    source: ReplicaId
    cached_tokens: int
    """Leading prompt tokens that will lie there when it has come."""
    seconds: float
    """Until then, as expected."""
    chance: float
    """That it comes."""


class Pulls(NamedTuple):
    """What there is to know of pulling this prompt's KV."""

    sources: tuple[Source, ...]
    """Those within their budget whose breaker is closed, whether or not they are candidates."""
    targets: frozenset[ReplicaId]
    """Who can pull."""
    inbound: Mapping[ReplicaId, int]
    """Pulls under way to a replica; none where it is not named."""
    links: Mapping[tuple[ReplicaId, ReplicaId], tuple[float, float]]
    """Seconds to begin and seconds a byte from the first to the second, as learned, for one pull alone."""
    seed: tuple[float, float]
    """The same for two replicas of which nothing is known."""
    token_bytes: float
    """KV bytes of a token."""
    flights: Mapping[ReplicaId, Flight] = MappingProxyType({})
    """What of this prompt is on its way to a replica already: who asks for it there, too, waits for the same
    bytes."""


class FleetView(Value):
    """The fleet at one instant, for one turn. Candidates are in a stable order, by name."""

    __match_args__ = (
        "now",
        "candidates",
        "home",
        "prompt_tokens",
        "ring",
        "serial",
        "parent",
        "pulls",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        now: float,
        candidates: tuple[Candidate, ...],
        home: ReplicaId | None,
        prompt_tokens: int,
        ring: Ring,
        serial: int,
        parent: ReplicaId | None = None,
        pulls: Pulls | None = None,
    ) -> None:
        self.now: Final = now
        """Monotonic seconds."""
        self.candidates: Final = candidates
        """Eligible replicas: healthy, serving the model, not draining, not excluded. Never empty."""
        self.home: Final = home
        """The session's home, whether or not it is among the candidates; `None` if nobody holds it."""
        self.prompt_tokens: Final = prompt_tokens
        """Estimated length of the whole prompt."""
        self.ring: Final = ring
        """All replicas that may own sessions, the unhealthy ones included: skip those not in `candidates`."""
        self.serial: Final = serial
        """How many decisions this policy made before this one: whose turn it is, for a strategy that
        rotates."""
        self.parent: Final = parent
        """Where the session lives that started this one, for a session without a home; `None` if nobody
        knows."""
        self.pulls: Final = pulls
        """`None` where nothing can be pulled."""


class Choice(Value):
    """A strategy's answer."""

    __match_args__ = (
        "candidate",
        "reason",
        "prices",
        "pull",
        "price_list",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        candidate: Candidate,
        reason: str,
        prices: tuple[float, ...] | None = None,
        pull: "Pull | None" = None,
        price_list: "Prices | None" = None,
    ) -> None:
        self.candidate: Final = candidate
        self.reason: Final = reason
        """Few words, lower case, for a person: `owner on the ring`, `least in flight`."""
        self.prices: Final = prices
        """A figure for each candidate, in their order, in the strategy's own unit (less is better); `None`
        where it compared none. Never infinite, never negative."""
        self.pull: Final = pull
        """What the replica is to fetch from another one first; `None` = nothing."""
        self.price_list: Final = price_list
        """What the candidates were priced by, for a strategy that prices in milliseconds: whoever wants the
        bill makes it of this and the candidates."""


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


class Decision(Value):
    """Where a turn goes and why. The candidates and prices are the bill."""

    __match_args__ = (
        "replica",
        "kind",
        "reason",
        "policy",
        "candidates",
        "prices",
        "home",
        "prompt_tokens",
        "cached_tokens",
        "attempt",
        "at",
        "waited_s",
        "pull",
        "price_list",
        "pulls",
        "pair",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        replica: ReplicaId,
        kind: Kind,
        reason: str,
        policy: str,
        candidates: tuple[Candidate, ...],
        prices: tuple[float, ...] | None,
        home: ReplicaId | None,
        prompt_tokens: int,
        cached_tokens: int,
        attempt: int,
        at: float,
        waited_s: float = 0.0,
        pull: "Pull | None" = None,
        price_list: "Prices | None" = None,
        pulls: Pulls | None = None,
        pair: "Pairing | None" = None,
    ) -> None:
        self.replica: Final = replica
        self.kind: Final = kind
        self.reason: Final = reason
        self.policy: Final = policy
        """Name of the policy that decided."""
        self.candidates: Final = candidates
        self.prices: Final = prices
        self.home: Final = home
        self.prompt_tokens: Final = prompt_tokens
        self.cached_tokens: Final = cached_tokens
        """Predicted for the chosen replica."""
        self.attempt: Final = attempt
        """0 for the first, 1 and up when an earlier replica failed this turn."""
        self.at: Final = at
        """Monotonic seconds."""
        self.waited_s: Final = waited_s
        """For how long the router had held the turn."""
        self.pull: Final = pull
        """What it is to fetch from another replica first."""
        self.price_list: Final = price_list
        self.pulls: Final = pulls
        """As they stood; with the price list and the candidates they make the bill."""
        self.pair: Final = pair
        """Who computes the prompt, where the replica does not itself."""

    @property
    def chosen(self) -> Candidate:
        """The replica as it stood."""
        return next(candidate for candidate in self.candidates if candidate.replica == self.replica)
