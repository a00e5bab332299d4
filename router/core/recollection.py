"""One engine's memory becomes another's: what is known is put into values, and taken in from them.

What the values are, and what holds of a replica, is said in `memory`.
"""

from router.base.ids import ReplicaId
from router.core.members import Members
from router.core.memory import (
    Memory,
    ReplicaMemory,
    ResponseMemory,
    SessionMemory,
    lives,
    why_cold,
)
from router.core.model import Models
from router.core.session import Session, SessionTable
from router.core.shelves import Shelves
from router.core.stored import Stored, StoredResponses
from router.core.upkeep import Upkeep


class Recollection:
    """Remembers and recalls for one engine."""

    __slots__ = ("_members", "_models", "_responses", "_sessions", "_shelves", "_upkeep")

    def __init__(
        self,
        members: Members,
        models: Models,
        sessions: SessionTable,
        shelves: Shelves,
        responses: StoredResponses,
        upkeep: Upkeep,
    ) -> None:
        self._members = members
        self._models = models
        self._sessions = sessions
        self._shelves = shelves
        self._responses = responses
        self._upkeep = upkeep

    def memory(self, now: float) -> Memory:
        """What is known that cannot be asked for again. Takes some tenths of a second for a large fleet."""
        return Memory(
            tuple(
                ReplicaMemory(
                    member.id,
                    member.spec.url,
                    member.report.start_time if member.report is not None else None,
                    member.epoch,
                    member.drained,
                    *self._shelves.dump(member),
                )
                for member in self._members.ordered
            ),
            tuple(
                SessionMemory(
                    session.key,
                    session.model,
                    session.tenant,
                    session.home,
                    session.home_epoch,
                    session.resident_tokens,
                    session.tail,
                    session.reply_tokens,
                    session.turns,
                    session.moves,
                    now - session.created_at,
                    now - session.last_turn_at,
                    session.source,
                )
                for session in self._sessions
            ),
            tuple(
                ResponseMemory(response_id, tenant, *stored)
                for response_id, tenant, stored in self._responses
            ),
            self._models.ratios(),
        )

    def recall(self, memory: Memory, now: float, passed_s: float) -> dict[ReplicaId, str]:
        """Take in what an engine knew `passed_s` seconds ago, for an engine that has had no turn yet.

        It is held against what the replicas have reported since: only what concerns a replica that is the
        same process is taken. Answers for each replica of the memory why it is cold, or "" where it is warm.
        """
        self._models.recall(memory.ratios)
        verdicts: dict[ReplicaId, str] = {}
        warm: list[tuple[ReplicaMemory, int]] = []
        for kept in memory.replicas:
            member = self._members.get(kept.id)
            if member is None:
                verdicts[kept.id] = "is not in the fleet"
                continue
            if kept.drained:
                self._upkeep.drain(kept.id, True)
            started = member.report.start_time if member.report is not None else None
            verdicts[kept.id] = why_cold(kept, member.spec.url, started)
            if not verdicts[kept.id]:
                warm.append((kept, member.epoch))
                self._shelves.load(member, kept.shelf, kept.reach)
        epochs = lives(warm)
        for session in memory.sessions:
            epoch = epochs.get((session.home, session.home_epoch))
            if epoch is None:
                continue
            created, last = now - session.age_s - passed_s, now - session.idle_s - passed_s
            fields = session._asdict()
            del fields["age_s"], fields["idle_s"]
            fields["home_epoch"] = epoch
            self._sessions.restore(Session(**fields, created_at=created, last_turn_at=last), now)
        for response in memory.responses:
            epoch = epochs.get((response.replica, response.epoch))
            if epoch is not None:
                stored = Stored(response.replica, epoch, response.session, response.model, response.tail)
                self._responses.keep(response.tenant, response.id, stored)
        return verdicts
