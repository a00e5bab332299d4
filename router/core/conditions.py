"""What turns and probes say of replicas' health: which of it counts against whom, and who is told.

How health follows from it is the tracker's to say (`health`).
"""

from router.core.eligible import Eligible
from router.core.health import Event, ProbePassed, State, TurnFailed, TurnSucceeded
from router.core.member import Member
from router.core.members import Members
from router.core.observe import HealthChange, Outcome
from router.core.teller import Teller


class Conditions:
    """The health of one fleet's replicas."""

    __slots__ = ("_eligible", "_members", "_teller")

    def __init__(self, members: Members, eligible: Eligible, teller: Teller) -> None:
        self._members = members
        self._eligible = eligible
        self._teller = teller

    def observe(self, member: Member, event: Event, now: float) -> None:
        """Feed one event to a replica's health, and tell of what it changed."""
        transitions = member.observe(event, now)
        if transitions:
            self._eligible.changed()
        for before, after, why in transitions:
            change = HealthChange(member.id, before.value, after.value, why, now)
            self._teller.tell(lambda o, change=change: o.on_health(change))  # type: ignore[misc] # bound per turn of the loop

    def succeeded(self, member: Member, epoch: int, now: float) -> None:
        """A turn, or the prefill of one, went well there, in the life `epoch`. Where there is nothing to
        recover from it changes nothing: spare the call."""
        if self._members.has(member, epoch):
            self.observe(member, TurnSucceeded(), now)

    def probe_passed(self, member: Member, now: float) -> None:
        """Its health endpoint answered well."""
        needed = member.health.state is State.DOWN and not any(
            other.takes_turns() for other in self._members.peers(member)
        )
        self.observe(member, ProbePassed(needed), now)

    def failed(self, member: Member, epoch: int, outcome: Outcome, attempt: int, now: float) -> None:
        """Hold a failure against the replica that had the turn, in the life `epoch`, where it is the
        replica's. `attempt`: how many had failed that very turn before."""
        if not self._members.has(member, epoch):
            return
        if outcome is Outcome.SERVER_ERROR and attempt:
            # Another replica failed this very turn. One prompt that no engine can serve counts once, or it
            # would speak against each replica that it was tried on.
            return
        member.failing = True
        decisive = outcome is Outcome.CONNECT_FAILED or outcome is Outcome.DIED
        if decisive:
            member.lost = True
        spared = not decisive and not self._can_spare(member)
        self.observe(member, TurnFailed(outcome.value.replace("_", " "), decisive, spared), now)

    def _can_spare(self, member: Member) -> bool:
        """Whether half of the replicas that serve what it serves would take turns without it.

        Failed turns may be the clients' doing: they never take out more of the fleet than that.
        """
        peers = self._members.peers(member)
        others = sum(other.takes_turns() for other in peers if other is not member)
        return 2 * others >= len(peers)
