"""The admin port itself: who listens there, and who is let in. Knows no endpoint."""

import asyncio
import errno
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.base.errors import HomingError
from router.base.system import system_words
from router.controlplane.answers import Problem, proper_answers
from router.controlplane.guard import Caller, Guard, is_loopback

_SHUTDOWN_S: Final = 1.0

# Who has connected just before may yet ask: looks, and seconds from one to the next.
_LOOKS: Final = 5
_LOOK_S: Final = 0.05


class AdminPort:
    """Serves one address. `start` or `start_private` before use, `close` after.

    Without a `token` a random one is made, which is right for loopback only: `start` raises `HomingError`
    elsewhere. It is the `token` property.
    """

    def __init__(
        self,
        add_routes: Callable[[web.UrlDispatcher], None],
        *,
        token: str | None = None,
        allowed_hosts: Iterable[str] = (),
        read_only: Iterable[str] = (),
        pages: Iterable[str] = (),
        max_body_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """`read_only`: paths whose POST changes nothing. `pages`: paths that need no token to be read."""
        self._add_routes = add_routes
        self._configured = bool(token)
        self._token = token or secrets.token_urlsafe(32)
        self._allowed_hosts = tuple(allowed_hosts)
        self._read_only = tuple(read_only)
        self._pages = tuple(pages)
        self._max_body_bytes = max_body_bytes
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def token(self) -> str:
        """What writes need: as configured, or as made up."""
        return self._token

    @property
    def port(self) -> int:
        """The port it listens on, once started; 0 before."""
        return self._port

    def check(self, host: str) -> None:
        """Raises `HomingError` where `start` would, whatever the port."""
        if not self._configured and not is_loopback(host):
            raise HomingError(
                f"the admin API on {host} can be reached from other machines and has no token: give "
                "one (admin.token_file or HOMING_ADMIN_TOKEN), or listen on 127.0.0.1"
            )

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on `sockets` where there are any: they listen already. Port 0 takes any free one.

        Raises `HomingError` with what to do where it cannot.
        """
        self.check(host)
        guard = Guard(
            host,
            token=self._token,
            allowed_hosts=self._allowed_hosts,
            read_only=self._read_only,
            pages=self._pages,
        )
        runner = await self._run(_guarded_by(guard))
        try:
            for each in sockets:
                await web.SockSite(runner, each).start()
            if not sockets:
                await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise _cannot_listen(error, host, port) from error
        self._runner = runner
        self._port = runner.addresses[0][1]

    async def start_private(self, listener: socket.socket) -> None:
        """Listen on a socket that nobody can reach who might not see and do everything: all are let in."""
        runner = self._runner = await self._run()
        await web.SockSite(runner, listener).start()

    def listeners(self) -> list[int]:
        """The file numbers of the sockets that are listened on."""
        sites = self._runner.sites if self._runner is not None else ()
        servers = [server for site in sites if (server := getattr(site, "_server", None)) is not None]
        return [each.fileno() for server in servers for each in server.sockets]

    async def close(self) -> None:
        """Stop listening, answer who has connected and asks at once, then close. May be called again."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        # The server closes at once what is idle, and a connection is so until it has been read from.
        for _ in range(_LOOKS):
            if runner.server is None or not runner.server.connections:
                break
            await asyncio.sleep(_LOOK_S)
        await runner.cleanup()

    async def _run(self, *doors: Middleware) -> web.AppRunner:
        app = web.Application(middlewares=[proper_answers, *doors], client_max_size=self._max_body_bytes)
        self._add_routes(app.router)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S, handle_signals=False)
        await runner.setup()
        return runner


def _guarded_by(guard: Guard) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers
        sockname = request.get_extra_info("sockname")
        rejection = guard.check(
            Caller(
                request.method,
                request.path,
                headers.get("Host"),
                headers.get("Origin"),
                headers.get("Authorization"),
                headers.get("X-Homing-Token"),
                sockname[0] if sockname else None,
            )
        )
        if rejection is not None:
            raise Problem(*rejection)
        return await handler(request)

    return guarded


def _cannot_listen(error: OSError, host: str, port: int) -> HomingError:
    why = system_words(error)
    if error.errno == errno.EADDRINUSE:
        why = "the address is in use; stop what listens there, or choose another with --admin HOST:PORT"
    elif error.errno == errno.EACCES:
        why = "no permission; choose a port above 1023 with --admin HOST:PORT"
    return HomingError(f"the admin API cannot listen on {host}:{port}: {why}")
