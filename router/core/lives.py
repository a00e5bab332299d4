"""The lives of replicas: one begins with each process, and what was known of it ends with it.

Says what a new life starts with and what an ended one takes along; that one has ended is found elsewhere.
"""

from collections.abc import Iterable
from itertools import count

from router.core.estimate.prefill import PrefillCurve
from router.core.fleet import ReplicaSpec, Role
from router.core.learned import Learned
from router.core.member import Member
from router.core.pairbook import PairBook
from router.core.policies import Policies
from router.core.pulling import Pulling
from router.core.session import SessionTable
from router.core.shelves import Shelves


class Lives:
    """Begins and ends them. `pulling` is `None` where nothing is pulled."""

    __slots__ = ("_curves", "_epochs", "_pairs", "_policies", "_pulling", "_sessions", "_shelves")

    def __init__(
        self,
        policies: Policies,
        sessions: SessionTable,
        shelves: Shelves,
        pairs: PairBook,
        pulling: Pulling | None,
    ) -> None:
        self._policies = policies
        self._sessions = sessions
        self._shelves = shelves
        self._pairs = pairs
        self._pulling = pulling
        self._epochs = count()
        self._curves: dict[tuple[str, Role], PrefillCurve] = {}
        """What replicas that serve the same are learned of together, by base model and role."""

    def begin(self, spec: ReplicaSpec, now: float) -> Member:
        """A replica comes to the fleet."""
        epoch = next(self._epochs)
        working_set = self._sessions.working_set(spec.id, epoch)
        pins = self._pairs.claims.pins(spec.id, epoch)
        member = Member(spec, self._shelves.open(), epoch, working_set, self._nothing_learned(), pins)
        member.placed_at = now
        self._shelves.fit(member)
        return member

    def end(self, member: Member) -> None:
        """It has left the fleet, or its process is another one."""
        self._shelves.close(member)
        if self._pulling is not None:
            # One whose URL changed keeps its name.
            self._pulling.book.forget(member.id)
        self._pairs.forget(member.id)
        self._sessions.forget_replica(member.id)

    def begin_again(self, member: Member) -> None:
        """Its process is another one."""
        self.end(member)
        epoch = next(self._epochs)
        working_set = self._sessions.working_set(member.id, epoch)
        pins = self._pairs.claims.pins(member.id, epoch)
        member.begin_again(epoch, self._shelves.open(), working_set, self._nothing_learned(), pins)
        self.learn_together(member)
        self._shelves.fit(member)

    def learn_together(self, member: Member) -> None:
        """With those that serve the same base model, which a replica lists first, in the same role."""
        if member.cards:
            key = (member.cards[0].id, member.spec.role)
            curve = self._curves.get(key)
            if curve is None:
                curve = PrefillCurve(self._policies.default.prefill_tokens_per_s)
                self._curves[key] = curve
            member.learned.share(curve)

    def keep_only(self, members: Iterable[Member]) -> None:
        """The fleet is these: what was learned of others together is forgotten."""
        served = {(member.cards[0].id, member.spec.role) for member in members if member.cards}
        self._curves = {key: curve for key, curve in self._curves.items() if key in served}

    def _nothing_learned(self) -> Learned:
        return Learned(self._policies.default.prefill_tokens_per_s)
