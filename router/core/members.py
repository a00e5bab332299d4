"""Who is in the fleet: its replicas by name, by what of a turn they do, and on the rings.

Knows whether a replica is there, not whether it should be given a turn.
"""

from collections.abc import Collection, ValuesView

from router.base.ids import ReplicaId
from router.core.fleet import Role
from router.core.member import Member
from router.core.ring import Ring


class Members:
    """All replicas of one fleet. Read its attributes; they are replaced whole when the fleet changes."""

    __slots__ = (
        "_by_id",
        "_rings",
        "_vnodes",
        "answering",
        "decodes",
        "followed",
        "ordered",
        "prefill_ring",
        "prefills",
        "two_way",
    )

    def __init__(self, vnodes: Collection[int]) -> None:
        """`vnodes`: virtual nodes a replica, of each ring that is asked for."""
        self._by_id: dict[ReplicaId, Member] = {}
        self._vnodes = vnodes
        self._rings: dict[int, Ring] = {}
        self.ordered: tuple[Member, ...] = ()
        """All, by name."""
        self.answering: tuple[Member, ...] = ()
        """Those that answer turns: all but the prefill replicas."""
        self.prefills: tuple[Member, ...] = ()
        self.two_way: frozenset[ReplicaId] = frozenset()
        """Prefill replicas that may fetch what decode holds."""
        self.decodes: frozenset[ReplicaId] = frozenset()
        self.prefill_ring = Ring(())
        self.followed = 0
        """Replicas whose KV events are followed."""
        self.arrange(())

    def __contains__(self, replica: ReplicaId) -> bool:
        return replica in self._by_id

    def __getitem__(self, replica: ReplicaId) -> Member:
        return self._by_id[replica]

    def get(self, replica: ReplicaId) -> Member | None:
        """The replica of this name, if there is one."""
        return self._by_id.get(replica)

    def values(self) -> ValuesView[Member]:
        """All, in the order in which they came."""
        return self._by_id.values()

    def has(self, member: Member, epoch: int) -> bool:
        """Whether a replica is still in the fleet, in the same life."""
        return member.epoch == epoch and self._by_id.get(member.id) is member

    def is_open(self, member: Member) -> bool:
        """Whether it is in the fleet and given turns."""
        return self._by_id.get(member.id) is member and member.takes_turns()

    def has_idle(self) -> bool:
        """Whether a replica that is given turns has nothing to prefill, and none that wait for it."""
        return any(
            member.line is None and not member.pending_tokens and member.takes_turns()
            for member in self.answering
        )

    def peers(self, member: Member) -> list[Member]:
        """Those that serve what it serves, itself included."""
        return [other for other in self.ordered if other.shares_a_model_with(member)]

    def ring(self, vnodes: int) -> Ring:
        """Those that answer and are not leaving, with so many virtual nodes each."""
        return self._rings[vnodes]

    # --- changing -----------------------------------------------------------------------------------

    def arrange(self, members: Collection[Member]) -> None:
        """The fleet is these from now on."""
        self._by_id = {member.id: member for member in members}
        self.ordered = tuple(self._by_id[replica] for replica in sorted(self._by_id))
        self.prefills = tuple(member for member in self.ordered if member.spec.role is Role.PREFILL)
        self.answering = tuple(member for member in self.ordered if member.spec.role is not Role.PREFILL)
        self.two_way = frozenset(member.id for member in self.prefills if member.spec.two_way)
        self.decodes = frozenset(member.id for member in self.ordered if member.spec.role is Role.DECODE)
        self.prefill_ring = Ring(member.id for member in self.prefills)
        self.count_followed()
        self.set_rings(self._vnodes)

    def set_rings(self, vnodes: Collection[int]) -> None:
        """Have these rings, and no others."""
        self._vnodes = vnodes
        names = tuple(member.id for member in self.answering if not member.leaving)
        self._rings = {each: Ring(names, each) for each in vnodes}

    def count_followed(self) -> None:
        """A replica's events are followed, or no longer."""
        self.followed = sum(member.residency is not None for member in self._by_id.values())
