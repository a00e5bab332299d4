"""What people look at: the reading calls of the admin API about turns, sessions and what moved.

Each answers from values that the engine or telemetry make for it, bounded by the `limit` asked for; nothing
is kept between calls.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from router.base.clock import Clock
from router.base.ids import ReplicaId, SessionKey
from router.controlplane.answers import Problem, json_answer, read_limit, read_number
from router.controlplane.ports import AdministeredFleet
from router.controlplane.session_search import ORDERS, Search, find_sessions
from router.core.queue import Held
from router.core.session import OWN_DIGITS, Session

_MOST_OFFSET: Final = 200_000


class Decisions(Protocol):
    """The last decisions, newest first, as plain fields: of one session, replica or kind where given."""

    def __call__(
        self, limit: int, *, brief: bool, session: str | None, replica: str | None, kind: str | None
    ) -> list[dict[str, object]]: ...


class Lately(Protocol):
    """What became of turns lately."""

    def lately(self) -> Mapping[str, object]: ...

    def replicas(self) -> Mapping[ReplicaId, Mapping[str, object]]: ...

    def series(self) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightSources:
    """What telemetry makes."""

    decisions: Decisions
    decision: Callable[[int], Mapping[str, object] | None]
    """One by its id, with its whole bill; `None` if it is not kept any more."""
    history: Lately
    timeline: Callable[[SessionKey], Mapping[str, object] | None]
    """Where a session lived; by its own key, without a model's."""
    moves: Callable[[int], Mapping[str, object]]
    breaks: Callable[[int, float], Mapping[str, object]]
    """Broken chains, with so many sessions at most, and at a time."""
    session: Callable[[SessionKey, float], Mapping[str, object]]
    """What else is known of a session, by its key in the table and at a time."""


class Insight:
    """The calls. `add_to` says where."""

    def __init__(self, fleet: AdministeredFleet, clock: Clock, sources: InsightSources) -> None:
        self._fleet = fleet
        self._clock = clock
        self._sources = sources

    def add_to(self, routes: web.UrlDispatcher) -> None:
        """Serve them."""
        routes.add_get("/api/history", self._history)
        routes.add_get("/api/sessions", self._sessions)
        routes.add_get("/api/sessions/{key:[^/]+}", self._session)
        routes.add_get("/api/decisions", self._decisions)
        routes.add_get("/api/decisions/{id}", self._decision)
        routes.add_get("/api/held", self._held)
        routes.add_get("/api/moves", self._moves)
        routes.add_get("/api/breaks", self._breaks)

    async def _history(self, _request: web.Request) -> web.Response:
        return json_answer(dict(self._sources.history.series()))

    async def _sessions(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        query = request.query
        order = query.get("order", "recent")
        if order not in ORDERS:
            raise Problem(400, "bad_order", f"`order` is one of {', '.join(ORDERS)}, not {order!r}")
        search = Search(
            query.get("find", ""),
            query.get("home") or None,
            order,
            read_number(request, "offset", 0, least=0, most=_MOST_OFFSET),
            read_limit(request),
        )
        found = find_sessions(self._fleet.sessions, search)
        return json_answer(
            {
                "sessions": [self._with_more(each, now) for each in found.sessions],
                "total": self._fleet.session_count(),
                "matching": found.matching,
                "searched": found.searched,
            }
        )

    async def _session(self, request: web.Request) -> web.Response:
        key = SessionKey(request.match_info["key"])
        now = self._clock.now()
        sessions = self._fleet.sessions_of(key)
        timeline = self._sources.timeline(SessionKey(key[:OWN_DIGITS]))
        if not sessions and timeline is None:
            raise Problem(
                404, "no_such_session", f"there is no session {key!r}; /api/sessions lists the latest keys"
            )
        return json_answer(
            {
                "key": key,
                "sessions": [self._with_more(each, now) for each in sessions],
                "whereabouts": [each._asdict() for each in self._fleet.whereabouts(key)],
                "timeline": timeline,
            }
        )

    def _with_more(self, session: Session, now: float) -> dict[str, object]:
        return {**session_fields(session, now), **self._sources.session(session.key, now)}

    async def _decisions(self, request: web.Request) -> web.Response:
        query = request.query
        brief = query.get("brief", "0")
        if brief not in ("0", "1"):
            raise Problem(400, "bad_brief", f"`brief` is 0 or 1, not {brief!r}")
        decisions = self._sources.decisions(
            read_limit(request),
            brief=brief == "1",
            session=query.get("session") or None,
            replica=query.get("replica") or None,
            kind=query.get("kind") or None,
        )
        return json_answer({"decisions": decisions})

    async def _decision(self, request: web.Request) -> web.Response:
        text = request.match_info["id"]
        is_number = text.isascii() and text.isdecimal() and len(text) < 20
        found = self._sources.decision(int(text)) if is_number else None
        if found is None:
            raise Problem(
                404, "no_such_decision", f"decision {text!r} is not kept; /api/decisions lists those that are"
            )
        return json_answer(dict(found))

    async def _held(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        held = self._fleet.held_turns(read_limit(request))
        total = sum(status.held for status in self._fleet.replicas(now))
        return json_answer({"held": [held_fields(each, now) for each in held], "total": total})

    async def _moves(self, request: web.Request) -> web.Response:
        return json_answer(dict(self._sources.moves(read_limit(request))))

    async def _breaks(self, request: web.Request) -> web.Response:
        return json_answer(dict(self._sources.breaks(read_limit(request), self._clock.now())))


def session_fields(session: Session, now: float) -> dict[str, object]:
    """A session without the hash of its prompt. `now` is monotonic."""
    return {
        "key": session.key,
        "model": session.model,
        "tenant": session.tenant,
        "home": session.home,
        "resident_tokens": session.resident_tokens,
        "turns": session.turns,
        "moves": session.moves,
        "source": session.source,
        "age_s": now - session.created_at,
        "idle_s": now - session.last_turn_at,
    }


def held_fields(held: Held, now: float) -> dict[str, object]:
    """A turn that waits, and where it would go now. `now` is monotonic."""
    decision = held.chosen[0]
    turn = held.turn
    return {
        "session": turn.session,
        "tenant": turn.tenant,
        "model": turn.model,
        "path": turn.path,
        "replica": decision.replica,
        "kind": decision.kind.value,
        "reason": decision.reason,
        "home": decision.home,
        "prompt_tokens": decision.prompt_tokens,
        "missing_tokens": decision.prompt_tokens - decision.cached_tokens,
        "body_bytes": held.size,
        "waited_s": now - held.arrived,
        "due_in_s": held.due - now,
        "deadline_in_s": held.deadline - now,
    }
