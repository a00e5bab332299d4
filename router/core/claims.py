"""Claims: what decode replicas hold of their sessions' last turns, and offer to be fetched once.

A decode replica keeps the blocks of a turn that it has answered until somebody fetches them, or until its own
time for that is up. Whoever fetches them after that, or a second time, reads blocks that are somebody else's
by then. So a claim is taken, never looked up and kept; it ends earlier here than there; and it ends with its
replica's life. Knows neither prompts nor how KV is fetched.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from router.base.ids import ReplicaId, SessionKey
from router.core.token_ids import TokenIds

# Of the token ids of all claims, some six for each: about 45 million tokens.
_MOST_BYTES: Final = 256 * 1024 * 1024

# For how long after its time a claim is let go of: its replica's own time for it is longer, often by minutes
# in which nobody else could have the blocks.
_LET_GO_S: Final = 10.0

# Claims that wait to be let go of. Beyond it the replicas' own time ends them.
_MOST_DROPPED: Final = 1024


@dataclass(frozen=True, slots=True)
class Claim:
    """What one decode replica holds of one turn."""

    replica: ReplicaId
    epoch: int
    """Which life of it."""
    model: str
    tokens: TokenIds
    """The ids whose KV lies there, from the prompt's first on, as far as they are known."""
    block_tokens: int
    offer: bytes
    """What the replica said of it, for whoever fetches it: a JSON object."""
    expires_at: float
    """Monotonic seconds, and before the replica's own time is up."""
    held_tokens: int
    """KV that the replica keeps for it, in whole blocks."""


class Pins:
    """The KV that one life of a replica keeps for claims: until it is fetched, let go of or out of time."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0


class Claims:
    """At most one claim for each session and model. What is dropped unused is kept to be let go of."""

    __slots__ = ("_bytes", "_claims", "_dropped", "_most_bytes", "_pins", "_tokens")

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._tokens = 0
        # In order of age: the oldest goes first where there are too many.
        self._claims: OrderedDict[SessionKey, Claim] = OrderedDict()
        self._dropped: deque[Claim] = deque()
        self._pins: dict[ReplicaId, tuple[int, Pins]] = {}
        """Of each replica's present life, which is named beside it."""

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def tokens(self) -> int:
        """Of all claims."""
        return self._tokens

    def pins(self, replica: ReplicaId, epoch: int) -> Pins:
        """What that life of a replica, which begins, will keep for claims."""
        pins = Pins()
        self._pins[replica] = epoch, pins
        return pins

    def put(self, key: SessionKey, claim: Claim) -> None:
        """A session's turn has left this; what an earlier one left is dropped."""
        self._pin(claim, claim.held_tokens)
        self._enter(key, claim)

    def peek(self, key: SessionKey, now: float) -> Claim | None:
        """What could be taken now."""
        claim = self._claims.get(key)
        return claim if claim is not None and now < claim.expires_at else None

    def take(self, key: SessionKey, now: float) -> Claim | None:
        """The claim, which is nobody's from now on. One whose time is up is dropped."""
        claim = self._pop(key)
        if claim is None or now < claim.expires_at:
            return claim
        self.drop(claim)
        return None

    def fetched(self, claim: Claim) -> None:
        """What was taken was sent to be fetched, and that is over."""
        self._unpin(claim)

    def restore(self, key: SessionKey, claim: Claim) -> None:
        """Put back what was taken and not used, unless a later turn has left another one."""
        if key in self._claims:
            self.drop(claim)
            return
        self._enter(key, claim)

    def drop(self, claim: Claim) -> None:
        """One that was taken is of no use."""
        if len(self._dropped) >= _MOST_DROPPED:
            self._unpin(self._dropped.popleft())
        self._dropped.append(claim)

    def refuse(self, claim: Claim) -> None:
        """A turn has left this, and nobody is to fetch it."""
        self._pin(claim, claim.held_tokens)
        self.drop(claim)

    def end_session(self, key: SessionKey) -> bool:
        """The session goes on no further. Whether there was a claim."""
        if (claim := self._pop(key)) is None:
            return False
        self.drop(claim)
        return True

    def end_sessions(self, is_one: Callable[[SessionKey], bool]) -> None:
        """All sessions whose key is one of those go on no further. Looks at every key: for people."""
        for key in [key for key in self._claims if is_one(key)]:
            self.end_session(key)

    def forget_replica(self, replica: ReplicaId) -> None:
        """Its process is another one, or it has left: there is nothing to fetch, and nothing to let go of."""
        for key in [key for key, claim in self._claims.items() if claim.replica == replica]:
            self._pop(key)
        self._dropped = deque([claim for claim in self._dropped if claim.replica != replica])
        self._pins.pop(replica, None)

    def shed(self, replica: ReplicaId, tokens: float) -> int:
        """The replica needs the blocks of so many tokens: drop its oldest claims until they have as many,
        with those that are dropped and not yet let go of; one at least. The answer is how many claims went.
        """
        oldest: list[tuple[SessionKey, Claim]] = []
        freed = 0
        for claim in self._dropped:
            if claim.replica == replica:
                freed += claim.held_tokens
        if freed and freed >= tokens:
            return 0
        for key, claim in self._claims.items():
            if claim.replica == replica:
                oldest.append((key, claim))
                freed += claim.held_tokens
                if freed >= tokens:
                    break
        for key, claim in oldest:
            self._pop(key)
            self.drop(claim)
        return len(oldest)

    def expire(self, now: float) -> None:
        """Drop claims whose time is up. Looks at every one."""
        for key in [key for key, claim in self._claims.items() if claim.expires_at <= now]:
            self.end_session(key)

    def next_dropped(self, now: float) -> Claim | None:
        """What is to be let go of at its replica, the first that was dropped; each once, and none whose time
        was up long ago: its replica may have used the blocks for others."""
        while self._dropped:
            claim = self._dropped.popleft()
            self._unpin(claim)
            if now < claim.expires_at + _LET_GO_S:
                return claim
        return None

    def _enter(self, key: SessionKey, claim: Claim) -> None:
        if (before := self._pop(key)) is not None:
            self.drop(before)
        self._claims[key] = claim
        self._tokens += len(claim.tokens)
        self._bytes += claim.tokens.size
        while self._bytes > self._most_bytes and self._claims:
            oldest = next(iter(self._claims))
            gone = self._pop(oldest)
            assert gone is not None
            self.drop(gone)

    def _pop(self, key: SessionKey) -> Claim | None:
        claim = self._claims.pop(key, None)
        if claim is not None:
            self._tokens -= len(claim.tokens)
            self._bytes -= claim.tokens.size
        return claim

    def _unpin(self, claim: Claim) -> None:
        self._pin(claim, -claim.held_tokens)

    def _pin(self, claim: Claim, tokens: int) -> None:
        life = self._pins.get(claim.replica)
        if life is not None and life[0] == claim.epoch:
            life[1].tokens += tokens
