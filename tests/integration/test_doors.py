"""Every route of the admin port, of a router and of one with workers: nobody gets in who should not.

The routes are those that the servers have, so that one that is added is tested as well.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.insight import insight
from support.reloads import Reloads
from support.turns import engine

from router.base.clock import SystemClock
from router.controlplane.admin import READ_ONLY, AdminServer, AdminSources
from router.controlplane.front import Front

TOKEN = "t0ken"
OPEN = {"/livez", "/readyz"}
FOREIGN = {"host": {"Host": "rebound.example"}, "origin": {"Origin": "http://evil.example"}}
LOCAL = ("127.0.0.1", "0.0.0.0")


class Crew:
    """Without workers: whoever gets past the doors is told that there are none."""

    stopping = False
    restarts = 0

    def __len__(self) -> int:
        return 2

    def admins(self) -> dict[int, Any]:
        return {}


def alone() -> AdminServer:
    sources = AdminSources(
        metrics=str,
        policy=str,
        explain=lambda *_: {},
        reloads=Reloads(),
        insight=insight(),
    )
    return AdminServer(engine("a"), SystemClock(), sources, token=TOKEN)


def crewed() -> Front:
    return Front(Crew(), token=TOKEN)


SERVERS: list[Callable[[], AdminServer | Front]] = [alone, crewed]


def routes(server: AdminServer | Front) -> list[tuple[str, str]]:
    """Method and a path of each route."""
    app = web.Application()
    server.add_routes(app.router)
    found = []
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        for name, value in (("{name}", "a"), ("{key}", "k"), ("{id}", "1"), ("{call}", "sessions")):
            path = path.replace(name, value)
        assert "{" not in path, path
        found.append((route.method, path))
    return found


@asynccontextmanager
async def asking(server: AdminServer | Front, host: str) -> AsyncIterator[Callable[..., Any]]:
    await server.start(host, 0)
    try:
        async with aiohttp.ClientSession() as http:

            async def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
                url = f"http://127.0.0.1:{server.port}{path}"
                async with http.request(method, url, headers=headers) as answer:
                    text = await answer.text()
                    said = await answer.json() if answer.content_type == "application/json" and text else {}
                    error = said.get("error", {})
                    return answer.status, error.get("code", "") if isinstance(error, dict) else ""

            yield ask
    finally:
        await server.close()


def test_the_routes_are_all_that_there_are() -> None:
    assert {"/", "/metrics", "/livez", "/readyz", "/ui/a", "/api/overview"} <= {
        path for _, path in routes(alone())
    }
    assert len(routes(alone())) > 35
    assert {method for method, path in routes(crewed()) if path.startswith("/api/")} == {
        "GET", "PUT", "POST", "DELETE"
    }  # fmt: skip


@pytest.mark.parametrize("host", LOCAL)
@pytest.mark.parametrize("made", SERVERS)
async def test_foreign_hosts_and_origins_are_refused_even_with_the_token(
    made: Callable[[], AdminServer | Front], host: str
) -> None:
    server = made()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with asking(server, host) as ask:
        for method, path in routes(server):
            for what, headers in FOREIGN.items():
                status, code = await ask(method, path, **headers, **bearer)
                if what == "host" and path in OPEN:
                    # Up or down is told by any name, to whoever balances.
                    assert status in (200, 503), (method, path)
                    continue
                assert status == 403, (method, path, what)
                assert method == "HEAD" or code == f"foreign_{what}", (method, path, code)


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer guessed"}, {"X-Homing-Token": "guessed"}])
@pytest.mark.parametrize("host", LOCAL)
@pytest.mark.parametrize("made", SERVERS)
async def test_without_the_token_nothing_is_changed_nor_read_from_elsewhere(
    made: Callable[[], AdminServer | Front], host: str, given: dict[str, str]
) -> None:
    server = made()
    refused = 0
    async with asking(server, host) as ask:
        for method, path in routes(server):
            reads = method in ("GET", "HEAD") or path in READ_ONLY
            status, code = await ask(method, path, **given)
            # The page's own files are read by a browser that has no token yet; `/ui/a` is none of them.
            if (path in (*OPEN, "/") and method in ("GET", "HEAD")) or (reads and host == "127.0.0.1"):
                assert status not in (401, 403), (method, path)
                continue
            refused += 1
            assert status == 401, (method, path)
            assert method == "HEAD" or code == "token_required", (method, path, code)
    assert refused >= (3 if host == "127.0.0.1" else 8)


@pytest.mark.parametrize("host", LOCAL)
@pytest.mark.parametrize("made", SERVERS)
async def test_with_the_token_every_route_is_reached(
    made: Callable[[], AdminServer | Front], host: str
) -> None:
    server = made()
    async with asking(server, host) as ask:
        for method, path in routes(server):
            status, _ = await ask(method, path, **{"X-Homing-Token": TOKEN})
            assert status not in (401, 403, 405, 500), (method, path)
