"""Builds a router of several workers: the process that starts them, listens for people, and hands over.

The workers are routers of their own (`router.wiring`), in processes of their own. What they share is the
address that clients connect to, and what they tell one another.
"""

import asyncio
import signal
import socket
from collections.abc import Sequence

from router.base.errors import HomingError
from router.base.system import system_words
from router.controlplane.crew import Crew
from router.controlplane.crew_folder import CrewFolder
from router.controlplane.front import Front
from router.controlplane.succession import ADMIN, DATA, Succession
from router.settings.advice import notices_of
from router.settings.compare import Settings


class Supervisor:
    """The whole of it. `start`, then `close`.

    `command` starts a worker, but for its place, which is the last argument.
    """

    def __init__(self, settings: Settings, count: int, command: Sequence[str]) -> None:
        loaded, secrets = settings.loaded, settings.secrets
        self.config = loaded.value
        self.secrets = secrets
        self.notices = notices_of(loaded, secrets)
        self.policy = loaded.policies[0].value.policy
        # Only its owner can reach what lies in it, such as the workers' unguarded admin sockets.
        self._folder = CrewFolder.make()
        self.crew = Crew(count, command, self._folder, lambda: self.admin.policies())
        self.admin = Front(self.crew, token=secrets.admin_token, allowed_hosts=self.config.admin.hosts)
        restart = self.config.restart
        snapshot = loaded.folder / restart.snapshot if restart.snapshot is not None else None
        self.succession = Succession(
            self.crew,
            recall_from=snapshot,
            leave_at=snapshot,
            handover_path=loaded.folder / restart.handover if restart.handover is not None else None,
            addresses={DATA: str(self.config.listen), ADMIN: str(self.config.admin.listen)},
            listeners=lambda: {DATA: self.crew.listeners(), ADMIN: self.admin.listeners()},
        )

    async def start(self) -> None:
        """Listen, and start the workers. Raises `HomingError` where an address cannot be had, or a worker
        cannot start."""
        listen, admin = self.config.listen, self.config.admin.listen
        await self.succession.begin()
        # Whoever asks there is answered by the predecessor, which is ready, until this one is.
        shares_admin = self.succession.takes_over(ADMIN)
        if shares_admin:
            self.admin.check(admin.host)
        else:
            await self.admin.start(admin.host, admin.port)
        sockets = self.succession.sockets(DATA) or await _bound(listen.host, listen.port)
        await self.succession.recall()
        await self.crew.start(sockets)
        if shares_admin:
            await self.admin.start(admin.host, admin.port, self.succession.sockets(ADMIN))
        self.succession.established()

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop, giving running turns `grace_s` seconds. May be called again, and after a failed start."""
        if self.succession.handed_over.is_set():
            # First, or it would say of the address that it is not ready, where the successor is.
            await self.admin.close()
        else:
            self.crew.stopping = True
        await self.succession.close()
        await self.crew.stop(grace_s, succeeded=self.succession.handed_over.is_set())
        await self.succession.leave()
        await self.admin.close()
        self._folder.remove()

    def reload(self) -> None:
        """Have every worker read its files anew."""
        self.crew.tell_all(signal.SIGHUP)

    async def fleet(self) -> list[dict[str, object]]:
        """The replicas as workers see them."""
        found = await self.admin.read("/api/replicas")
        replicas: list[dict[str, object]] = found.get("replicas", []) if isinstance(found, dict) else []
        return replicas


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Sockets that are bound to all addresses of a host, and listen as soon as a worker is ready."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
    except (OSError, OverflowError) as error:
        for made in sockets:
            made.close()
        raise HomingError(
            f"cannot listen on {host}:{port}: {system_words(error)};"
            " choose another with --listen or 'listen:'"
        ) from error
    return sockets
