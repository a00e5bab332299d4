"""Which replicas may be given a turn: those that serve its model and are well, or nearly so.

And, where there are none, why. Knows no load and no prices.
"""

from typing import Final, NoReturn

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId
from router.core.health import State
from router.core.member import Member
from router.core.members import Members
from router.core.model import MOST_MODELS
from router.core.request import Turn

# Replicas that a refusal describes, and models that it names.
_DESCRIBED: Final = 8
_NAMED: Final = 16


class Eligible:
    """Who may be given turns. To be told of every change, as answers are kept."""

    __slots__ = ("_members", "_most", "_ready")

    def __init__(self, members: Members, most: int = MOST_MODELS) -> None:
        """`most`: models that answers are kept for."""
        self._members = members
        self._most = most
        self._ready: dict[str, list[Member]] = {}

    def changed(self) -> None:
        """The fleet, or anybody's health, models or drain has changed."""
        self._ready.clear()

    def kept(self) -> tuple[str, ...]:
        """The models that answers are kept for."""
        return tuple(self._ready)

    def find(self, turn: Turn, now: float, failed: tuple[ReplicaId, ...]) -> list[Member]:
        """Replicas that a turn may go to; not those that `failed` it. Raises `Refused` with the reason there
        are none.

        A replica that has not said what it serves may be sent any model.
        """
        members = self._ready.get(turn.model)
        if members is None:
            members = self._find_ready(turn.model, now)
        if failed:
            members = [member for member in members if member.id not in failed]
        if not members:
            members = self._all_returning(turn.model, failed)
        if not members:
            self._refuse(turn, now, failed)
        return members

    def _find_ready(self, name: str, now: float) -> list[Member]:
        """Who may be given a turn for this model; kept until something changes."""
        fleet = self._members
        members = [
            member
            for member in fleet.answering
            if (member.well or member.returning(now))
            and (member.models is None or name in member.models or not name)
        ]
        # A returning replica's share depends on the moment. That there is nobody is not worth keeping: there
        # is no end of names that nobody serves.
        if members and not any(member.health.state is State.PROBATION for member in fleet.ordered):
            if len(self._ready) >= self._most:
                self._ready.clear()
            self._ready[name] = members
        return members

    def _all_returning(self, name: str, failed: tuple[ReplicaId, ...]) -> list[Member]:
        """Who is returning and has its share of turns already, where nobody serves this model that is well.

        The share spares a replica while others carry the load. After a restart of the whole fleet there are
        no others, and the turns would be refused.
        """
        serving = [
            member
            for member in self._members.answering
            if member.takes_turns() and (member.models is None or name in member.models or not name)
        ]
        if any(member.health.state is State.HEALTHY for member in serving):
            return []
        return [member for member in serving if member.id not in failed]

    def _refuse(self, turn: Turn, now: float, failed: tuple[ReplicaId, ...]) -> NoReturn:
        """Say why no replica may have the turn."""
        answering = self._members.answering
        if not self._members.ordered:
            raise Refused(
                ErrorKind.NO_REPLICAS, "no replicas are configured: add them to the config, or pass --replica"
            )
        if failed:
            raise Refused(
                ErrorKind.UPSTREAM_FAILED, f"no further replica to try: {', '.join(failed)} failed this turn"
            )
        if not answering:
            raise Refused(
                ErrorKind.NONE_HEALTHY,
                "no replica can take this turn: all that there are only prefill; one with role decode or both"
                " must answer",
                retry_after_s=1.0,
            )
        well = [member for member in answering if member.well or member.returning(now)]
        if not well:
            states = ", ".join(f"{member.id} {member.describe()}" for member in answering[:_DESCRIBED])
            more = len(answering) - _DESCRIBED
            raise Refused(
                ErrorKind.NONE_HEALTHY,
                f"no replica can take this turn: {states}" + (f" and {more} more" if more > 0 else ""),
                retry_after_s=1.0,
            )
        served = sorted({model for member in well for model in member.models or ()})
        named = ", ".join(served[:_NAMED]) or "none"
        raise Refused(
            ErrorKind.NO_SUCH_MODEL, f"no live replica serves the model {turn.model!r}; served: {named}"
        )
