"""What KV agents and pools say that they hold, and whether they are there at all.

The engine's. Told by whoever listens to them; a session is known by the key that goes upstream.
"""

from collections.abc import Iterable
from typing import NamedTuple

from router.base.ids import ReplicaId, SessionKey


class AgentReport(NamedTuple):
    """What an agent or a pool says at one time."""

    complete: bool
    """`held` is all that it holds; otherwise what has changed."""
    held: tuple[tuple[SessionKey, int], ...] = ()
    """Sessions, and for how many tokens of each the KV is there, from the first on."""
    gone: tuple[SessionKey, ...] = ()
    """Sessions of which nothing is there any more."""
    tokens: int = 0
    """For how many tokens it has KV, of whatever session."""
    capacity_tokens: int | None = None
    """What it can hold; `None` while no engine has told it how large its blocks are."""
    token_bytes: float | None = None
    """KV bytes of a token, likewise."""
    bytes_per_s: tuple[tuple[ReplicaId, float], ...] = ()
    """From whom it has pulled, and how fast that was."""


class _Held:
    __slots__ = ("capacity_tokens", "sessions", "tokens")

    def __init__(self) -> None:
        self.sessions: dict[SessionKey, int] = {}
        self.tokens = 0
        self.capacity_tokens: int | None = None


class Holdings:
    """All agents of a fleet, and its pools. One that was never heard of is taken for absent."""

    def __init__(self, pools: Iterable[ReplicaId] = (), *, agents_tell: bool = True) -> None:
        """Without `agents_tell`, only pools are heard of: each agent is taken to be there, and to hold what
        its replica is believed to."""
        self._held: dict[ReplicaId, _Held] = {}
        self.agents_tell = agents_tell
        self.pools = tuple(pools)
        """KV gateways: they hold KV and run no turns."""

    def report(self, name: ReplicaId, report: AgentReport) -> None:
        """It is there, and holds this."""
        held = self._held.setdefault(name, _Held())
        held.tokens = report.tokens
        held.capacity_tokens = report.capacity_tokens
        if report.complete:
            held.sessions = dict(report.held)
            return
        held.sessions.update(report.held)
        for session in report.gone:
            held.sessions.pop(session, None)

    def lost(self, name: ReplicaId) -> None:
        """It does not answer. What it holds is asked for anew once it does."""
        self._held.pop(name, None)

    def is_up(self, name: ReplicaId) -> bool:
        return name in self._held

    def all_tokens(self, name: ReplicaId) -> int:
        """For how many tokens it has KV."""
        held = self._held.get(name)
        return 0 if held is None else held.tokens

    def tokens(self, name: ReplicaId, session: SessionKey | None) -> int | None:
        """For how many tokens of a session it has the KV; `None` if it does not name the session."""
        held = self._held.get(name)
        return None if held is None or session is None else held.sessions.get(session)

    def holders(self, session: SessionKey) -> tuple[ReplicaId, ...]:
        """Those that name the session."""
        return tuple(name for name, held in self._held.items() if session in held.sessions)

    def capacity_tokens(self, name: ReplicaId) -> int | None:
        held = self._held.get(name)
        return None if held is None else held.capacity_tokens

    def sessions(self, name: ReplicaId) -> int:
        """How many sessions it has something of."""
        held = self._held.get(name)
        return 0 if held is None else len(held.sessions)
