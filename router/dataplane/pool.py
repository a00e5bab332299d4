"""Connections to one replica: idle ones kept for a little, new ones made within a time limit."""

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import urlsplit

from router.base.ids import ReplicaId
from router.dataplane.answer_head import AnswerHeads
from router.dataplane.limits import Limits
from router.dataplane.outbox import Outbox
from router.dataplane.upstream import UpstreamConnection

# A host that has vanished sends nothing, not even a reset. The kernel asks after it, from 15 s of silence on,
# and ends the connection if neither that nor what was sent is acknowledged.
_WATCH: Final = tuple(
    (level, getattr(socket, option), value)
    for level, option, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 60_000),
    )
    if hasattr(socket, option)
)


class Pool:
    """Idle connections of one replica, last in first out, so that the spare ones age out."""

    __slots__ = (
        "_authority",
        "_closed",
        "_host",
        "_idle",
        "_limits",
        "_open",
        "_port",
        "_tls",
        "answer_heads",
        "answer_line",
        "has_agent",
        "head_suffix",
        "now",
        "outbox",
        "replica",
    )

    def __init__(
        self,
        replica: ReplicaId,
        url: str,
        limits: Limits,
        *,
        now: Callable[[], float],
        api_key: str | None,
        tls: ssl.SSLContext | None = None,
        has_agent: bool = False,
        outbox: Outbox | None = None,
    ) -> None:
        """`tls` = what an `https` replica is spoken to with; `None` for an `http` one. `has_agent`: a KV
        agent is beside it or a P2P tier in it, which hints are for. `outbox`: what its connections write by;
        `None` = at once."""
        parts = urlsplit(url)
        # Plain text must never go where TLS was asked for.
        assert (parts.scheme == "https") == (tls is not None)
        self.replica = replica
        self.now = now
        self.has_agent = has_agent
        self.outbox = outbox if outbox is not None else Outbox()
        self._authority = parts.netloc.lower().encode("latin-1")
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if tls is None else 443)
        self._tls = tls
        self._limits = limits
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._closed = False
        self.answer_heads = AnswerHeads()
        authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self.answer_line = f"x-homing-replica: {replica}\r\n".encode("latin-1")
        """What every answer from this replica says of it."""
        self.head_suffix = f" HTTP/1.1\r\nhost: {parts.netloc}\r\n{authorization}".encode("latin-1")
        """What follows the target in every request head to this replica."""

    def __len__(self) -> int:
        return len(self._open)

    def local_location(self, location: bytes) -> bytes:
        """A `Location` for the client: one that names this replica is cut to its path, which leads here."""
        scheme, _, rest = location.partition(b"//")
        authority, slash, path = rest.partition(b"/")
        if scheme.lower() in (b"http:", b"https:", b"") and authority.lower() == self._authority:
            return slash + path or b"/"
        return location

    def take(self) -> UpstreamConnection | None:
        """An idle connection that the replica has not had time to close, or `None`."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable and self.now() - connection.idle_since < self._limits.upstream_idle_s:
                return connection
            connection.abort()
        return None

    def put(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose exchange ended well."""
        if self._closed or len(self._idle) >= self._limits.upstream_idle_connections:
            connection.abort()
            return
        connection.idle_since = self.now()
        self._idle.append(connection)

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises `OSError` (`TimeoutError` included) where none can be made."""
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self, self._limits.head)
        async with asyncio.timeout(self._limits.connect_s):
            transport, _ = await loop.create_connection(
                lambda: cast(asyncio.Protocol, connection), self._host, self._port, ssl=self._tls
            )
        if not connection.usable:
            raise ConnectionResetError(errno.ECONNRESET, "lost as soon as it was made")
        watched = transport.get_extra_info("socket")
        for level, option, value in _WATCH:
            watched.setsockopt(level, option, value)
        # Counted here and not when it is made: uvloop closes one whose making is cancelled at that very
        # moment, and does not tell it of its end.
        self._open.add(connection)
        return connection

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection.idle_since:
            try:
                self._idle.remove(connection)
            except ValueError:
                return

    def sweep(self, now: float) -> None:
        """Close what has been idle too long, oldest first."""
        idle = self._idle
        while idle and now - idle[0].idle_since >= self._limits.upstream_idle_s:
            idle.popleft().abort()

    def set_limits(self, limits: Limits) -> None:
        """For the connections that are made from now on."""
        self._limits = limits

    def retire(self) -> None:
        """Close the idle connections, and each one in use when its exchange has ended."""
        self._closed = True
        while self._idle:
            self._idle.popleft().abort()

    def close(self) -> None:
        """Close every connection, those in use as well."""
        self.retire()
        for connection in tuple(self._open):
            connection.abort()
