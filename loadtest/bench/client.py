"""The load: keep-alive connections, each sending its next request as soon as the last is answered.

Cheap, so that the proxy and not the load is what takes the time: requests are bytes made beforehand, and an
answer is followed by the next request in the same callback, with no task and no future in between. Each
session's turns go on from one another, as an agent's do. Every
answer is checked: status, length, and whether the session's turn went to the replica that it went to before.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools

from loadtest.bench import answers
from loadtest.bench.loads import SESSIONS, Load, Parts

ROUTER_HEADER = b"x-homing-replica"
"""The answer header in which our router names the replica."""


@dataclass(slots=True)
class Homes:
    """Where the sessions of one load went through one proxy, over the whole run."""

    replicas: dict[int, bytes] = field(default_factory=dict)
    """Session → mark of the replica that answered it first."""
    moved: set[int] = field(default_factory=set)
    """Sessions that more than one replica answered."""
    names: dict[bytes, bytes] = field(default_factory=dict)
    """Replica's name in the router's header → mark of the replica that answered."""
    turns: dict[int, int] = field(default_factory=dict)
    """Session → how many turns it has begun."""
    misnamed: int = 0
    """Answers whose header named another replica than the one that answered, or none."""

    def next_turn(self, session: int) -> int:
        """The number of the session's next turn, from 0."""
        turn = self.turns.get(session, 0)
        self.turns[session] = turn + 1
        return turn

    def saw(self, session: int, mark: bytes) -> None:
        if self.replicas.setdefault(session, mark) != mark:
            self.moved.add(session)

    def named(self, name: bytes, mark: bytes) -> None:
        if not name or self.names.setdefault(name, mark) != mark:
            self.misnamed += 1


@dataclass(slots=True)
class Answers:
    """What one run brought."""

    failed: int = 0
    """Requests without the right answer."""
    elapsed_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    """Of each request answered right, from sending to the last byte."""
    delays_s: list[float] = field(default_factory=list)
    """Of each streamed chunk, from the replica's sending to the client's reading."""


class Clients:
    """The connections to one proxy. `open`, `run` as often as wanted, `close`."""

    def __init__(
        self, port: int, load: Load, requests: Sequence[Sequence[Parts]], homes: Homes, *, named: bool
    ) -> None:
        """`named`: whether the proxy is ours, and has to name the replica in each answer."""
        self.requests = requests
        self.homes = homes
        self.streams = load.streams
        self.mark_at = answers.STREAM_MARK_AT if load.streams else answers.CHAT_MARK_AT
        self.expected_bytes = answers.stream_bytes() if load.streams else len(answers.chat_body(0))
        self.answers = Answers()
        self.unsent = 0
        self.next_session = 0
        self._load = load
        self._port = port
        self._kind = _NamedConnection if named else _Connection
        self._connections: set[_Connection] = set()
        self._waiting = 0
        self._done: asyncio.Future[None] | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._connections) < self._load.connections:
            await loop.create_connection(lambda: self._kind(self), "127.0.0.1", self._port)

    async def run(self, count: int) -> Answers:
        """Send `count` requests. What is not answered by the load's deadline has failed."""
        await self.open()
        self.answers = Answers()
        self.unsent = count
        self._waiting = len(self._connections)
        self._done = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        for connection in tuple(self._connections):
            connection.send()
        try:
            async with asyncio.timeout(self._load.deadline_s):
                await self._done
        except TimeoutError:
            self.close()
        self.answers.elapsed_s = time.perf_counter() - started
        self.answers.failed = count - len(self.answers.latencies_s)
        return self.answers

    def close(self) -> None:
        for connection in tuple(self._connections):
            connection.transport.abort()
        self._connections.clear()

    def joined(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def rests(self) -> None:
        """A connection has nothing left to send, or is gone."""
        self._waiting -= 1
        if self._waiting == 0 and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def left(self, connection: "_Connection") -> None:
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One connection. Called back by the parser for the parts of an answer."""

    transport: asyncio.Transport

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._parser = httptools.HttpResponseParser(self)
        self._session = 0
        self._sent_at = 0.0
        self._sending = False
        self._length = 0
        self._mark = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._clients.joined(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._clients.left(self)
        if self._sending:
            self._sending = False
            self._clients.rests()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def send(self) -> None:
        """The next request, if any is left."""
        clients = self._clients
        self._sending = clients.unsent > 0
        if not self._sending:
            clients.rests()
            return
        clients.unsent -= 1
        self._session = session = clients.next_session
        clients.next_session = (session + 1) % SESSIONS
        self._length = 0
        self._sent_at = time.perf_counter()
        turns = clients.requests[session]
        self.transport.writelines(turns[clients.homes.next_turn(session) % len(turns)])

    def on_body(self, piece: bytes) -> None:
        clients = self._clients
        if not self._length:
            self._mark = piece[clients.mark_at : clients.mark_at + answers.MARK_BYTES]
        self._length += len(piece)
        if clients.streams:
            now = time.monotonic_ns()
            clients.answers.delays_s.extend((now - stamp) / 1e9 for stamp in answers.stamps(piece))

    def on_message_complete(self) -> None:
        clients = self._clients
        if self._parser.get_status_code() == 200 and self._length == clients.expected_bytes:
            clients.answers.latencies_s.append(time.perf_counter() - self._sent_at)
            clients.homes.saw(self._session, self._mark)
        self.send()


class _NamedConnection(_Connection):
    """A connection to our router, whose answers say which replica gave them."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._name = b""

    def on_message_begin(self) -> None:
        self._name = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == ROUTER_HEADER:
            self._name = value

    def on_message_complete(self) -> None:
        self._clients.homes.named(self._name, self._mark)
        super().on_message_complete()
