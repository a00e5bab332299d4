"""The admin port of a router with workers: asks all of them, and answers as one router would.

What is read is merged, what is ordered goes to all. With `?worker=N` one of them answers alone. Knows of the
calls only which of them is for one worker, and which must succeed in all.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
import msgspec
from aiohttp import web

from router.controlplane.admin import READ_ONLY
from router.controlplane.admin_port import AdminPort
from router.controlplane.answers import Problem, json_answer, read_body, read_limit
from router.controlplane.merge_answers import merge_answers
from router.controlplane.merge_metrics import merge_metrics
from router.controlplane.pages import Pages

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0
_RELOAD_S: Final = 60.0

_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
_JSON: Final = "application/json"


class Crewed(Protocol):
    """What is asked of those who start the workers."""

    @property
    def stopping(self) -> bool: ...

    @property
    def restarts(self) -> int:
        """Workers that took the place of one that had ended unasked."""
        ...

    def __len__(self) -> int:
        """Workers that there should be."""
        ...

    def admins(self) -> Mapping[int, Path]:
        """The sockets of the workers that serve, by number."""
        ...


class _Answer(NamedTuple):
    worker: int
    status: int
    kind: str
    """Its media type."""
    body: bytes


class Front:
    """Serves what `AdminServer` serves: `start` before use, `close` after."""

    def __init__(self, crew: Crewed, *, token: str | None = None, allowed_hosts: Iterable[str] = ()) -> None:
        self._crew = crew
        self._pages = Pages()
        self._sessions: dict[Path, aiohttp.ClientSession] = {}
        self._listener = AdminPort(
            self.add_routes,
            token=token,
            allowed_hosts=allowed_hosts,
            read_only=READ_ONLY,
            pages=self._pages.paths,
        )
        self.check = self._listener.check
        self.start = self._listener.start
        self.listeners = self._listener.listeners

    @property
    def token(self) -> str:
        """What writes need: as configured, or as made up."""
        return self._listener.token

    @property
    def port(self) -> int:
        """The port it listens on, once started; 0 before."""
        return self._listener.port

    async def close(self) -> None:
        """May be called again."""
        await self._listener.close()
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def read(self, path: str) -> object:
        """What a `GET` answers that has a JSON answer. Raises `Problem`."""
        answers = await self._ask("GET", path, b"", self._crew.admins())
        return self._merged(path, answers, 100)

    async def policies(self) -> bytes | None:
        """Those in force, as YAML: of the first worker that answers."""
        for number, admin in self._crew.admins().items():
            answer = await self._ask_one(number, admin, "GET", "/api/policy", b"")
            if answer is not None and answer.status == 200:
                return answer.body
        return None

    def add_routes(self, routes: web.UrlDispatcher) -> None:
        """Have them lead here."""
        routes.add_get("/", self._pages.index)
        routes.add_get("/ui/{name}", self._pages.file)
        routes.add_get("/livez", self._livez)
        routes.add_get("/readyz", self._readyz)
        routes.add_get("/metrics", self._metrics)
        for method in _METHODS:
            routes.add_route(method, "/api/{call:.*}", self._call)

    async def _livez(self, _request: web.Request) -> web.Response:
        return json_answer({"live": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        """Ready while any worker is: each accepts what comes, so the others stand in for one that is not."""
        if self._crew.stopping:
            return json_answer({"ready": False, "reasons": ["the router is stopping"]}, status=503)
        reasons: list[str] = []
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(self._ask_one(number, admin, "GET", "/readyz", b""))
                for number, admin in self._crew.admins().items()
            ]
            for ended in asyncio.as_completed(asked):
                answer = await ended
                if answer is not None and answer.status == 200:
                    # One that hangs must not keep whoever asks from knowing of the others.
                    for task in asked:
                        task.cancel()
                    return json_answer({"ready": True, "reasons": []})
                reasons += _json(answer).get("reasons", ()) if answer is not None else ()
        return json_answer(
            {"ready": False, "reasons": list(dict.fromkeys(reasons)) or ["no worker serves"]}, status=503
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        answers = await self._ask("GET", "/metrics", b"", self._crew.admins())
        texts = [answer.body.decode() for answer in answers if answer.status == 200]
        text = merge_metrics(texts) + _own_metrics(self._crew, len(texts))
        return web.Response(
            body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _call(self, request: web.Request) -> web.Response:
        if request.path in READ_ONLY or request.path.startswith("/api/decisions/"):
            return await self._first_good(request)
        query = {name: value for name, value in request.query.items() if name != "worker"}
        path = str(request.rel_url.with_query(query))
        body = await read_body(request) if request.can_read_body else b""
        answers = await self._ask(request.method, path, body, self._asked(request))
        if not answers:
            raise Problem(503, "no_worker", "no worker serves at the moment; try again shortly")
        bad = [answer for answer in answers if answer.status >= 300]
        if len(bad) == len(answers) or (bad and request.method in ("PUT", "POST")):
            if len(bad) < len(answers):
                _log.error(
                    "admin API: %s %s: workers differ: %s",
                    request.method,
                    request.path,
                    ", ".join(f"{answer.worker} said {answer.status}" for answer in answers),
                )
            return _as_it_is(bad[0])
        good = [answer for answer in answers if answer.status < 300]
        if good[0].kind != _JSON or len(good) == 1:
            return _as_it_is(good[0])
        limit = read_limit(request) if "limit" in request.query else 100
        return json_answer(self._merged(request.path, good, limit))

    async def _first_good(self, request: web.Request) -> web.Response:
        """The answer of the first that knows: of one is enough, or only one can."""
        body = await read_body(request) if request.can_read_body else b""
        last: _Answer | None = None
        for number, admin in self._asked(request).items():
            for answer in await self._ask(request.method, request.path_qs, body, {number: admin}):
                if answer.status < 300 or request.path in READ_ONLY:
                    return _as_it_is(answer)
                last = answer
        if last is None:
            raise Problem(503, "no_worker", "no worker serves at the moment; try again shortly")
        return _as_it_is(last)

    def _asked(self, request: web.Request) -> Mapping[int, Path]:
        """Whom a call is for. Raises `Problem`."""
        admins = self._crew.admins()
        wanted = request.query.get("worker")
        if wanted is None:
            return admins
        if not (wanted.isascii() and wanted.isdecimal() and len(wanted) < 6 and int(wanted) in admins):
            numbers = ", ".join(map(str, admins)) or "none"
            raise Problem(400, "bad_worker", f"there is no worker {wanted!r}; those that serve: {numbers}")
        return {int(wanted): admins[int(wanted)]}

    def _merged(self, path: str, answers: list[_Answer], limit: int) -> object:
        endpoint = path.removeprefix("/api/").partition("/")[0].partition("?")[0]
        return merge_answers(endpoint, [_json(answer) for answer in answers], limit)

    async def _ask(self, method: str, path: str, body: bytes, admins: Mapping[int, Path]) -> list[_Answer]:
        """The answers of those that answer, in their order."""
        found = await asyncio.gather(
            *(self._ask_one(number, admin, method, path, body) for number, admin in admins.items())
        )
        return [answer for answer in found if answer is not None]

    async def _ask_one(self, number: int, admin: Path, method: str, path: str, body: bytes) -> _Answer | None:
        session = self._sessions.get(admin)
        if session is None:
            session = self._sessions[admin] = aiohttp.ClientSession(
                base_url="http://worker",
                connector=aiohttp.UnixConnector(str(admin)),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S if method == "GET" else _RELOAD_S)
        try:
            async with session.request(method, path, data=body or None, timeout=timeout) as answer:
                return _Answer(number, answer.status, answer.content_type, await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            _log.warning("admin API: worker %d did not answer: %s", number, error or type(error).__name__)
            return None


def _json(answer: _Answer) -> dict[str, Any]:
    found = msgspec.json.decode(answer.body)
    return found if isinstance(found, dict) else {}


def _as_it_is(answer: _Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type=answer.kind)


def _own_metrics(crew: Crewed, serving: int) -> str:
    return (
        "# HELP homing_workers Worker processes that there should be.\n"
        "# TYPE homing_workers gauge\n"
        f"homing_workers {len(crew)}\n"
        "# HELP homing_workers_serving Those that serve and answer.\n"
        "# TYPE homing_workers_serving gauge\n"
        f"homing_workers_serving {serving}\n"
        "# HELP homing_worker_restarts_total Workers that took the place of one that had ended unasked.\n"
        "# TYPE homing_worker_restarts_total counter\n"
        f"homing_worker_restarts_total {crew.restarts}\n"
    )
