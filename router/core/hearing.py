"""What engines tell one another that serve the same clients: what turns have left behind, and where.

A replica is meant in one life of it, which its start time tells. What a turn says of speed, tokens a byte and
health stays its own engine's.
"""

from router.base.ids import ReplicaId
from router.core.heard import HeardResponse, HeardTurn
from router.core.member import Member
from router.core.members import Members
from router.core.memory import SAME_START_S
from router.core.model import Models
from router.core.session import SessionTable
from router.core.shelves import Shelves
from router.core.stored import Stored, StoredResponses


class Hearing:
    """Takes what is heard for known."""

    __slots__ = ("_members", "_models", "_responses", "_sessions", "_shelves")

    def __init__(
        self,
        members: Members,
        models: Models,
        sessions: SessionTable,
        shelves: Shelves,
        responses: StoredResponses,
    ) -> None:
        self._members = members
        self._models = models
        self._sessions = sessions
        self._shelves = shelves
        self._responses = responses

    def start_time(self, replica: ReplicaId) -> float | None:
        """When the replica's process began, in Unix seconds; `None` where it does not tell or is unknown."""
        member = self._members.get(replica)
        return member.report.start_time if member is not None and member.report is not None else None

    def hear_turn(self, heard: HeardTurn, now: float) -> bool:
        """Another engine's turn has been answered: take it for known as if it had been one of ours.

        False, and nothing changes, where the replica is unknown here, or is another process here than there.
        """
        member = self._heard_of(heard.replica, heard.start_time)
        if member is None:
            return False
        if heard.hashes:
            self._shelves.touch(member, heard.hashes, heard.ends)
        if heard.session is None:
            return True
        key = self._models.of(heard.model).key(heard.session)
        if heard.last:
            self._sessions.forget(key)
            return True
        self._sessions.bind(
            key,
            home=member.id,
            epoch=member.epoch,
            resident_tokens=heard.prompt_tokens + heard.reply_tokens,
            tail=heard.hashes[-1] if heard.hashes else 0,
            reply_tokens=heard.reply_tokens,
            model=heard.model,
            tenant=heard.tenant,
            source=heard.source,
            now=now,
        )
        return True

    def hear_response(self, heard: HeardResponse) -> bool:
        """Another engine knows where a response is stored. False where the replica is unknown here, or is
        another process here than there."""
        member = self._heard_of(heard.replica, heard.start_time)
        if member is None:
            return False
        stored = Stored(member.id, member.epoch, heard.session, heard.model, heard.tail)
        self._responses.keep(heard.tenant, heard.id, stored)
        return True

    def _heard_of(self, replica: ReplicaId, start_time: float | None) -> Member | None:
        """The replica that another engine means; `None` if it is not the one that is known here."""
        ours = self.start_time(replica)
        if (ours is None) is not (start_time is None):
            return None
        if ours is not None and start_time is not None and abs(ours - start_time) > SAME_START_S:
            return None
        return self._members.get(replica)
