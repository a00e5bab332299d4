"""The admin port: what the router knows, for people and monitors, and the few levers it has.

Speaks HTTP and JSON only; everything it shows or does is the engine's, or comes from the callables that it
is given. Who may call is decided by `guard`.
"""

import difflib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from aiohttp import web

from router import __version__
from router.base.build import kind_of_build
from router.base.clock import Clock
from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId, SessionKey
from router.controlplane.admin_port import AdminPort
from router.controlplane.answers import Problem, decode, json_answer, read_body, read_limit
from router.controlplane.discovery import SourceStatus
from router.controlplane.insight import Insight, InsightSources
from router.controlplane.kv_feed import FeedStatus
from router.controlplane.overview import NOT_LISTENING, fleet_totals, is_ready, notices, why_not_ready
from router.controlplane.pages import Pages
from router.controlplane.ports import AdministeredFleet
from router.controlplane.reload import Outcome, Reload
from router.core.fleet import ReplicaStatus
from router.core.session import Session

_log = logging.getLogger(__name__)

READ_ONLY: Final = ("/api/explain",)
"""Paths whose POST changes nothing."""

# Faults of the request that is to be explained. Any other refusal is the fleet's condition: 409.
_BAD_INPUT: Final = frozenset({ErrorKind.BAD_REQUEST, ErrorKind.NOT_FOUND})


class ExplainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A turn to be explained."""

    body: msgspec.Raw
    """The request's JSON body, byte for byte as written."""
    path: str = "/v1/chat/completions"
    session: str | None = None
    """The client's session id, as it would stand in the first session header."""
    tenant: str | None = None


class Explain(Protocol):
    """The bill of a turn that is not sent. Raises `Refused` where the turn would be."""

    def __call__(
        self, path: str, body: bytes, session: str | None, tenant: str | None
    ) -> Mapping[str, object]: ...


class Reloads(Protocol):
    """How other settings are put in force. What is refused changes nothing; neither call raises."""

    @property
    def last(self) -> Reload | None:
        """The latest attempt, whoever asked for it."""
        ...

    async def reload(self, cause: str) -> Reload:
        """Read the files anew."""
        ...

    async def put_policies(self, text: bytes, cause: str) -> Reload:
        """Take the policies of a YAML text until the files are read anew."""
        ...


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSources:
    """What the admin port shows besides the engine."""

    metrics: Callable[[], str]
    """Prometheus text."""
    policy: Callable[[], str]
    """The policy in force, as YAML."""
    explain: Explain
    reloads: Reloads
    insight: InsightSources
    discovery: Callable[[], Sequence[SourceStatus]] = tuple
    """The sources that replicas are found by."""
    feeds: Callable[[], Sequence[FeedStatus]] = tuple
    """The KV events that are followed."""
    ended: Callable[[Sequence[Session]], None] = lambda _sessions: None
    """Is told of sessions that were ended here."""
    agents: Callable[[], Mapping[ReplicaId, str]] = dict
    """KV agents and gateways, and why they are not there; "" for those that are."""
    breakers: Callable[[], Mapping[ReplicaId, str]] = dict
    """Sources of pulls, and the states of their breakers."""
    policies: Callable[[], Sequence[str]] = tuple
    """Names of the policies in force, the default first."""
    shadow: Callable[[int], Mapping[str, object]] | None = None
    """What the shadow policy would have done, with at most so many disagreements; `None` = there is none."""
    stopping: Callable[[], bool] = lambda: False
    """Whether the router is on its way out and takes no new connections."""
    listening: Callable[[], bool] = lambda: True
    """Whether clients can connect: not before the replicas have been looked at."""


class AdminServer:
    """The endpoints, and the `AdminPort` that serves them: `start` before use, `close` after."""

    def __init__(
        self,
        fleet: AdministeredFleet,
        clock: Clock,
        sources: AdminSources,
        *,
        token: str | None = None,
        allowed_hosts: Iterable[str] = (),
        max_body_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._sources = sources
        self._pages = Pages()
        self._insight = Insight(fleet, clock, sources.insight)
        self._started_at = clock.now()
        self._instance = secrets.token_hex(8)
        self._listener = AdminPort(
            self.add_routes,
            token=token,
            allowed_hosts=allowed_hosts,
            read_only=READ_ONLY,
            pages=self._pages.paths,
            max_body_bytes=max_body_bytes,
        )
        self.check = self._listener.check
        self.start = self._listener.start
        self.start_private = self._listener.start_private
        self.listeners = self._listener.listeners
        self.close = self._listener.close

    @property
    def token(self) -> str:
        """What writes need: as configured, or as made up."""
        return self._listener.token

    @property
    def port(self) -> int:
        """The port it listens on, once started; 0 before."""
        return self._listener.port

    def add_routes(self, routes: web.UrlDispatcher) -> None:
        """Have them lead here."""
        routes.add_get("/", self._pages.index)
        routes.add_get("/ui/{name}", self._pages.file)
        routes.add_get("/api/overview", self._overview)
        routes.add_get("/livez", self._livez)
        routes.add_get("/readyz", self._readyz)
        routes.add_get("/metrics", self._metrics)
        routes.add_get("/api/replicas", self._replicas)
        routes.add_post("/api/replicas/{name:[^/]+}/drain", self._drain)
        routes.add_get("/api/discovery", self._discovery)
        routes.add_get("/api/kv-events", self._kv_events)
        routes.add_get("/api/kv-agents", self._kv_agents)
        routes.add_delete("/api/sessions/{key:[^/]+}", self._end_session)
        routes.add_get("/api/policy", self._policy)
        routes.add_get("/api/shadow", self._shadow)
        routes.add_put("/api/policy", self._put_policy)
        routes.add_get("/api/reload", self._last_reload)
        routes.add_post("/api/reload", self._reload)
        routes.add_post("/api/explain", self._explain)
        self._insight.add_to(routes)

    async def _overview(self, _request: web.Request) -> web.Response:
        now = self._clock.now()
        sources = self._sources
        statuses = self._fleet.replicas(now)
        stopping, listening = sources.stopping(), sources.listening()
        found = notices(
            statuses,
            sources.reloads.last,
            sources.discovery(),
            sources.feeds(),
            sources.agents(),
            sources.breakers(),
            stopping=stopping,
            listening=listening,
        )
        return json_answer(
            {
                "router": {
                    "version": __version__,
                    "build": kind_of_build(),
                    "instance": self._instance,
                    "up_s": now - self._started_at,
                },
                "ready": is_ready(statuses) and listening and not stopping,
                "policies": list(sources.policies()),
                "shadow": sources.shadow is not None,
                "notices": [notice._asdict() for notice in found],
                "fleet": {
                    **fleet_totals(statuses),
                    "held": sum(status.held for status in statuses),
                    "sessions_known": self._fleet.session_count(),
                },
                "lately": sources.insight.history.lately(),
            }
        )

    async def _livez(self, _request: web.Request) -> web.Response:
        return json_answer({"live": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._sources.stopping():
            return json_answer({"ready": False, "reasons": ["the router is stopping"]}, status=503)
        replicas = self._fleet.replicas(self._clock.now())
        listening = self._sources.listening()
        if listening and is_ready(replicas):
            return json_answer({"ready": True, "reasons": []})
        reasons = [] if listening else [NOT_LISTENING]
        if not is_ready(replicas):
            reasons += [why_not_ready(status) for status in replicas] or ["there are no replicas"]
        return json_answer({"ready": False, "reasons": reasons}, status=503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._sources.metrics().encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _replicas(self, _request: web.Request) -> web.Response:
        replicas = self._fleet.replicas(self._clock.now())
        lately = self._sources.insight.history.replicas()
        return json_answer(
            {"replicas": [_replica_fields(status) | {"lately": lately.get(status.id)} for status in replicas]}
        )

    async def _discovery(self, _request: web.Request) -> web.Response:
        return json_answer({"sources": [status._asdict() for status in self._sources.discovery()]})

    async def _kv_events(self, _request: web.Request) -> web.Response:
        return json_answer({"feeds": [status._asdict() for status in self._sources.feeds()]})

    async def _kv_agents(self, _request: web.Request) -> web.Response:
        agents = self._sources.agents()
        return json_answer(
            {
                "agents": [{"agent": name, "up": not fault, "why": fault} for name, fault in agents.items()],
                "breakers": [
                    {"source": name, "state": state} for name, state in self._sources.breakers().items()
                ],
            }
        )

    async def _drain(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = await read_body(request)
        order = decode(body, _Drain) if body else _Drain()
        try:
            self._fleet.drain(ReplicaId(name), order.on)
        except KeyError:
            near = difflib.get_close_matches(name, self._fleet.replica_ids(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; /api/replicas lists them"
            raise Problem(404, "no_such_replica", f"there is no replica {name!r}{hint}") from None
        _log.info("replica %s: %s by the admin API", name, "drained" if order.on else "given turns again")
        return json_answer({"replica": name, "draining": order.on})

    async def _end_session(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        ended = self._fleet.end_session(SessionKey(key))
        if not ended:
            raise Problem(
                404, "no_such_session", f"there is no session {key!r}; /api/sessions lists the latest keys"
            )
        self._sources.ended(ended)
        return json_answer({"ended": key})

    async def _shadow(self, request: web.Request) -> web.Response:
        shadow = self._sources.shadow
        if shadow is None:
            raise Problem(
                404, "no_shadow", "no policy decides in the shadow; name one with 'shadow:' in the config"
            )
        return json_answer(dict(shadow(read_limit(request))))

    async def _policy(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._sources.policy(), content_type="application/yaml")

    async def _put_policy(self, request: web.Request) -> web.Response:
        text = await read_body(request)
        return self._reload_answer(await self._sources.reloads.put_policies(text, "PUT /api/policy"))

    async def _reload(self, _request: web.Request) -> web.Response:
        return self._reload_answer(await self._sources.reloads.reload("POST /api/reload"))

    async def _last_reload(self, _request: web.Request) -> web.Response:
        last = self._sources.reloads.last
        return json_answer({"last": None if last is None else self._reload_fields(last)})

    def _reload_answer(self, reload: Reload) -> web.Response:
        if reload.outcome is Outcome.REFUSED:
            raise Problem(400, "refused", "\n".join(reload.faults))
        return json_answer(self._reload_fields(reload))

    def _reload_fields(self, reload: Reload) -> dict[str, object]:
        return {
            "outcome": reload.outcome.value,
            "cause": reload.cause,
            "age_s": self._clock.now() - reload.at,
            "changes": reload.changes,
            "faults": reload.faults,
        }

    async def _explain(self, request: web.Request) -> web.Response:
        asked = decode(await read_body(request), ExplainRequest)
        try:
            bill = self._sources.explain(asked.path, bytes(asked.body), asked.session, asked.tenant)
        except Refused as refusal:
            if refusal.kind in _BAD_INPUT:
                raise Problem(400, refusal.kind.value, refusal.message) from None
            raise Problem(409, refusal.kind.value, refusal.message) from None
        return json_answer(dict(bill))


def _replica_fields(status: ReplicaStatus) -> dict[str, object]:
    fields: dict[str, object] = status._asdict()
    fields["name"] = fields.pop("id")
    fields["report"] = status.report._asdict() if status.report is not None else None
    return fields
