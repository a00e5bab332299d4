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
from router.base.values import maker
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
    free_tokens: float | None = None
    """KV that is neither in use nor spoken for by turns on their way there, below 0 where more is; `None` if
    unknown."""
    held_tokens: int = 0
    """Missing tokens of the turns that wait in the router to go there."""
    ahead_tokens: int = 0
    """Those of them that are of turns which would go before this one."""
    held: int = 0
    """How many turns wait in the router to go there."""
    host_tokens: int = 0
    """How many of `cached_tokens` lie only in its host tier."""
    reach_tokens: int | None = None
    """KV capacity of device and host together; `None` where the replica has not told."""
    wait_s: float = 0.0
    """Until it has prefilled what goes before this turn: what was sent there, and what waits to be."""
    slot_s: float = 0.0
    """Until it has a place and KV blocks for this turn. 0 where its capacity is unknown."""
    curve: Curve = _SEED_CURVE
    """What a first token takes there, as learned."""
    waiting: float = 0.0
    """Turns that wait for this replica, here or there, where it is short of blocks or places; else 0."""
    holding_s: float = 0.0
    """How long a turn there holds its KV after the first token, on average."""
    arriving_tokens: int = 0
    """KV on its way there from other replicas."""


make_candidate: Final = maker(Candidate)


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
    pulls: Pulls | None = None
    """`None` where nothing can be pulled."""


make_view: Final = maker(FleetView)


class Choice(NamedTuple):
    """A strategy's answer."""

    candidate: Candidate
    reason: str
    """Few words, lower case, for a person: `owner on the ring`, `least in flight`."""
    prices: tuple[float, ...] | None = None
    """A figure for each candidate, in their order, in the strategy's own unit (less is better); `None`
    where it compared none. Never infinite, never negative."""
    pull: "Pull | None" = None
    """What the replica is to fetch from another one first; `None` = nothing."""
    price_list: "Prices | None" = None
    """What the candidates were priced by, for a strategy that prices in milliseconds: whoever wants the bill
    makes it of this and the candidates."""


make_choice: Final = maker(Choice)


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
    pull: "Pull | None" = None
    """What it is to fetch from another replica first."""
    price_list: "Prices | None" = None
    pulls: Pulls | None = None
    """As they stood; with the price list and the candidates they make the bill."""
    pair: "Pairing | None" = None
    """Who computes the prompt, where the replica does not itself."""

    @property
    def chosen(self) -> Candidate:
        """The replica as it stood."""
        return next(candidate for candidate in self.candidates if candidate.replica == self.replica)


make_decision: Final = maker(Decision)
