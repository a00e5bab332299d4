"""Session keys, and the bounded table of sessions: who is at home where, and how much lives on a replica.

Knows nothing of requests: callers have found the id and the tenant. What a replica really holds is
learned elsewhere and handed in.
"""

import hmac
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from router.base.ids import ReplicaId, SessionKey, TenantId

OWN_DIGITS: Final = 32
"""Of a session's key; keys in the table go on with those of the model."""


def session_key(secret: bytes, tenant: TenantId, session_id: str | bytes) -> SessionKey:
    """The key of a tenant's session: what is stored, shown and sent upstream in place of the client's id.

    Keyed with `secret`, so that nobody who sees keys can guess ids. The tenant goes in with its length, so
    no choice of names makes two pairs of tenant and id the same text. A text id and its UTF-8 bytes are
    one id.
    """
    name = tenant.encode("utf-8", "surrogatepass")
    id_bytes = session_id.encode("utf-8", "surrogatepass") if isinstance(session_id, str) else session_id
    message = len(name).to_bytes(8, "big") + name + id_bytes
    return SessionKey(hmac.digest(secret, message, "sha256").hex()[:OWN_DIGITS])


@dataclass(slots=True)
class WorkingSet:
    """What the living sessions of one replica, in one life of it, add up to."""

    tokens: int = 0
    sessions: int = 0
    over: bool = False
    """The life has ended: nothing counts in it any more."""


@dataclass(slots=True)
class Session:
    """One session as the table holds it. The table's own: read it, and change it through `bind`."""

    key: SessionKey
    model: str
    tenant: TenantId
    home: ReplicaId
    """The replica that answered its last turn."""
    home_epoch: int
    """Which life of that replica: after a restart it is another, and the session is cold there."""
    resident_tokens: int
    """Prompt and reply of the last turn, as reported or estimated: what lies at home."""
    tail: int
    """Hash of the last prompt's last segment."""
    reply_tokens: int
    """Tokens of the last reply."""
    turns: int
    moves: int
    """How often it has changed its home."""
    created_at: float
    last_turn_at: float
    source: str
    """Where the id came from: a header or body field by name, or `derived`."""
    counted_in: WorkingSet = field(default_factory=WorkingSet, repr=False, compare=False)
    """The sum that includes this session; detached from the table once the replica was forgotten."""


class SessionTable:
    """At most `max_sessions` sessions; the one whose last turn is longest ago goes first.

    A session idle for more than `idle_s` is as good as absent: `get` does not find it and `bind` starts it
    anew. It counts in its home's working set until `expire` drops it, so call that regularly.
    """

    __slots__ = ("_latest", "_max_sessions", "_sessions", "_working_sets", "idle_s")

    def __init__(self, *, max_sessions: int = 200_000, idle_s: float = 1800.0) -> None:
        if max_sessions < 1:
            raise ValueError(f"a session table holds at least 1 session, not {max_sessions}")
        self._max_sessions = max_sessions
        self.idle_s = idle_s
        """Seconds without a turn after which a session is forgotten. May be set at any time."""
        # In order of last turn, oldest first.
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()
        self._latest = float("-inf")
        # Grows with the lives of replicas, and shrinks with `forget_replica`, which ends them.
        self._working_sets: dict[ReplicaId, dict[int, WorkingSet]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey, now: float) -> Session | None:
        """The session; `None` if unknown or idle for too long. Looking is not a turn."""
        session = self._sessions.get(key)
        if session is None or self._is_idle(session, now):
            return None
        return session

    def find(self, key: SessionKey) -> Session | None:
        """The session, however long idle, while it is kept: for people."""
        return self._sessions.get(key)

    def bind(
        self,
        key: SessionKey,
        *,
        home: ReplicaId,
        epoch: int,
        resident_tokens: int,
        tail: int,
        reply_tokens: int,
        model: str,
        tenant: TenantId,
        source: str,
        now: float,
    ) -> tuple[Session, ReplicaId | None]:
        """Record a turn that `home` answered. The second value is the previous home, if it moved."""
        # A turn told late counts as of the latest one, which keeps the order by age true.
        now = self._latest = max(self._latest, now)
        session = self._sessions.get(key)
        if session is not None and self._is_idle(session, now):
            self._drop(key)
            session = None
        moved_from: ReplicaId | None = None
        if session is None:
            session = Session(
                key=key,
                model=model,
                tenant=tenant,
                home=home,
                home_epoch=epoch,
                resident_tokens=resident_tokens,
                tail=tail,
                reply_tokens=reply_tokens,
                turns=1,
                moves=0,
                created_at=now,
                last_turn_at=now,
                source=source,
            )
            self._sessions[key] = session
            self._count(session)
        else:
            if session.home != home:
                moved_from = session.home
                session.moves += 1
            if session.home_epoch == epoch and moved_from is None and not session.counted_in.over:
                session.counted_in.tokens += resident_tokens - session.resident_tokens
                session.resident_tokens = resident_tokens
            else:
                self._discount(session)
                session.home = home
                session.home_epoch = epoch
                session.resident_tokens = resident_tokens
                self._count(session)
            session.model = model
            session.tenant = tenant
            session.tail = tail
            session.reply_tokens = reply_tokens
            session.turns += 1
            session.last_turn_at = now
            session.source = source
            self._sessions.move_to_end(key)
        if len(self._sessions) > self._max_sessions:
            self._drop(next(iter(self._sessions)))
        return session, moved_from

    def credit(
        self,
        key: SessionKey,
        *,
        home: ReplicaId,
        epoch: int,
        tail: int,
        resident_tokens: int,
        reply_tokens: int,
    ) -> bool:
        """What the session's last turn left at home, as reported at its end; it was an estimate till then.

        False, and nothing changes, where a later turn or another home has taken its place.
        """
        session = self._sessions.get(key)
        if session is None or (session.home, session.home_epoch, session.tail) != (home, epoch, tail):
            return False
        session.counted_in.tokens += resident_tokens - session.resident_tokens
        session.resident_tokens = resident_tokens
        session.reply_tokens = reply_tokens
        return True

    def forget(self, key: SessionKey) -> Session | None:
        """Drop a session and return it. `None` if there was none."""
        return self._drop(key) if key in self._sessions else None

    def forget_all(self, session: SessionKey, of: Callable[[SessionKey], SessionKey]) -> list[Session]:
        """Drop those whose key is `of` this session, and return them. Looks at every key: for people."""
        return [self._drop(key) for key in tuple(self._sessions) if of(key) == session]

    def expire(self, now: float, limit: int = 64) -> int:
        """Drop up to `limit` sessions that have been idle for too long, and return how many."""
        dropped = 0
        while dropped < limit and self._sessions:
            key, oldest = next(iter(self._sessions.items()))
            if not self._is_idle(oldest, now):
                break
            self._drop(key)
            dropped += 1
        return dropped

    def forget_replica(self, replica: ReplicaId) -> None:
        """Its working set, in every life, is empty from now on. O(1).

        The sessions stay and still name it as their home; each counts again with its next turn.
        """
        for working_set in self._working_sets.pop(replica, {}).values():
            working_set.over = True

    def working_set(self, replica: ReplicaId, epoch: int) -> WorkingSet:
        """The sum over the sessions that live on this replica in this life of it, kept up to date.

        The same object until `forget_replica`, so that whoever asks at every turn may hold on to it.
        """
        lives = self._working_sets.get(replica)
        if lives is None:
            lives = self._working_sets[replica] = {}
        working_set = lives.get(epoch)
        if working_set is None:
            working_set = lives[epoch] = WorkingSet()
        return working_set

    def __iter__(self) -> Iterator[Session]:
        """All of them, the one with the oldest turn first."""
        return iter(self._sessions.values())

    def restore(self, session: Session, now: float) -> None:
        """Take in a session that a table of another process held, as its latest. One that is known stays."""
        if session.key in self._sessions or self._is_idle(session, now):
            return
        self._latest = max(self._latest, session.last_turn_at)
        self._sessions[session.key] = session
        self._count(session)
        if len(self._sessions) > self._max_sessions:
            self._drop(next(iter(self._sessions)))

    def recent(self, limit: int) -> list[Session]:
        """Up to `limit` sessions, the one with the latest turn first."""
        return list(islice(reversed(self._sessions.values()), limit))

    def _is_idle(self, session: Session, now: float) -> bool:
        return now - session.last_turn_at > self.idle_s

    def _drop(self, key: SessionKey) -> Session:
        session = self._sessions.pop(key)
        self._discount(session)
        return session

    def _count(self, session: Session) -> None:
        working_set = self.working_set(session.home, session.home_epoch)
        working_set.tokens += session.resident_tokens
        working_set.sessions += 1
        session.counted_in = working_set

    def _discount(self, session: Session) -> None:
        working_set = session.counted_in
        working_set.tokens -= session.resident_tokens
        working_set.sessions -= 1
