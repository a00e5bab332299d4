"""The books of pairs: what decode replicas offer, what transfers take, and what became of pairs.

The engine's. Knows no turns: it is told of each and answers with values.
"""

from enum import StrEnum

from router.base.ids import ReplicaId
from router.core.claims import Claims
from router.core.plan import PullRules
from router.core.pullbook import PullBook


class PairEnd(StrEnum):
    """What became of the prompt of a turn that was to be computed by a prefill replica."""

    ONE_WAY = "one_way"
    """It was, with nothing fetched from a decode replica."""
    PULLED = "pulled"
    """It was, and what decode held of the last turn was fetched."""
    ALONE = "alone"
    """Decode computed it: no prefill replica did."""
    FAILED = "failed"
    """Nobody did, and the turn moved on or was refused."""
    CANCELLED = "cancelled"
    """The client left meanwhile."""


class Unreturned(StrEnum):
    """Why a pair's prompt was computed without what decode held of the session's last turn."""

    NONE = "none"
    """Nothing was on offer: a first turn, or one whose claim has expired or is used."""
    CHEAPER = "cheaper"
    """The prefill replica has it, or computing costs less."""
    OTHER_TOKENS = "other_tokens"
    """The prompt does not begin with the tokens that decode holds, or with too few of them."""
    UNKNOWN_TOKENS = "unknown_tokens"
    """What tokens the prompt is made of is not known for sure."""
    DECLINED = "declined"
    """The prefill replica could not fetch it, and computed."""


class Unclaimed(StrEnum):
    """Why a pair's answer left nothing to fetch for the next turn."""

    STREAMED = "streamed"
    """This engine's streams do not say what decode holds."""
    NOT_OFFERED = "not_offered"
    """The decode replica offered nothing: it is not set up for it."""
    NO_SESSION = "no_session"
    NOT_COMPARABLE = "not_comparable"
    """What the next prompt's tokens are could not be told: images, another endpoint, other fields."""
    NOT_UNDERSTOOD = "not_understood"
    """The offer is not as known, or its blocks do not add up."""


class PairBook:
    """All pairs of one fleet."""

    __slots__ = ("claims", "ends", "transfers", "unclaimed", "unreturned")

    def __init__(self, rules: PullRules) -> None:
        self.claims = Claims()
        self.transfers = PullBook(rules)
        """KV on its way from decode to prefill, and what such paths carry."""
        self.ends: dict[PairEnd, int] = dict.fromkeys(PairEnd, 0)
        self.unreturned: dict[Unreturned, int] = dict.fromkeys(Unreturned, 0)
        self.unclaimed: dict[Unclaimed, int] = dict.fromkeys(Unclaimed, 0)

    def forget(self, replica: ReplicaId) -> None:
        """It left the fleet, or is another process."""
        self.claims.forget_replica(replica)
        self.transfers.forget(replica)
