"""What connections cost the router in memory: `make bench-memory`. Linux only.

Starts `homing serve` in front of one replica that lives here, and looks at its resident memory while clients
idle, streams stand open, a client does not read, and bodies wait. Exit status 1 where a limit is not kept.
"""

import asyncio
import contextlib
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import httptools
import orjson
import uvloop

from loadtest.bench import answers
from loadtest.bench.errors import BenchError
from loadtest.bench.processes import Program, rss

IDLE: Final = 1000
STREAMS: Final = 1000
MOST_BYTES: Final = 100_000_000
"""Resident memory with all of them."""
UNREAD_MOST_BYTES: Final = 8 << 20
"""What one client that does not read a fast stream may add."""
BODY_BYTES: Final = 4 << 20
HELD_BYTES: Final = 64 << 20
"""The router's budget for bodies."""
HELD_MOST: Final = 1.3
"""What bodies may take, in budgets: their bytes, and one body's pieces while they are joined."""

_AT_ONCE: Final = 20
"""First turns of the clients that idle afterwards: what is measured is idling, not a crowd."""
_STEP_S: Final = 0.02
_DEADLINE_S: Final = 30.0

_PIECE: Final = answers.chunked(
    b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 8000 + b'"}}]}\n\n'
)
_EVENTS: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS: Final = orjson.dumps(
    {"object": "list", "data": [{"id": id_, "object": "model"} for id_ in ("plain", "open", "fast", "held")]}
)


class Replica:
    """What the router sends its turns to. A turn says in its model what becomes of it."""

    def __init__(self) -> None:
        self.streams = 0
        """Streams that have begun and stay open."""
        self.held: list[Connection] = []
        """Turns whose body is here and whose answer waits."""
        self.holding = True
        """Whether such a turn's answer waits."""
        self.fast_bytes = 0
        """What the fast stream could send so far."""


class Connection(asyncio.Protocol):
    """One connection from the router."""

    transport: asyncio.Transport

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._start = b""
        self._writable = True
        self._fast = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url
        self._start = b""

    def on_body(self, piece: bytes) -> None:
        if len(self._start) < 64:
            self._start += piece[:64]

    def on_message_complete(self) -> None:
        if b'"open"' in self._start:
            self._replica.streams += 1
            self.transport.write(_EVENTS + _PIECE)
        elif b'"fast"' in self._start:
            self._fast = True
            self.transport.write(_EVENTS)
            self._pour()
        elif b'"held"' in self._start and self._replica.holding:
            self._replica.held.append(self)
        else:
            self.answer()

    def answer(self) -> None:
        """A short answer to whatever was asked."""
        body = _MODELS if self._path == b"/v1/models" else answers.chat_body(0)
        self.transport.write(answers.plain(b"200 OK", b"application/json", body))

    def _pour(self) -> None:
        """As much as goes, again and again."""
        while self._writable and not self.transport.is_closing():
            self.transport.write(_PIECE)
            self._replica.fast_bytes += len(_PIECE)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._fast:
            self._pour()


class Client(asyncio.Protocol):
    """One connection to the router, and what came back on it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = b""
        """The beginning of it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if len(self.received) < 4096:
            self.received += data

    def post(self, model: str, content: str = "hi", session: str = "") -> None:
        """Send a streamed turn."""
        body = b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (
            model.encode(),
            content.encode(),
        )
        self.transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"x-session-id: %b\r\ncontent-length: %d\r\n\r\n" % (session.encode(), len(body))
        )
        self.transport.write(body)


class Measured:
    """The running router, and the lines that are printed of it."""

    def __init__(self, program: Program, port: int) -> None:
        self._program = program
        self._port = port
        self.kept = True
        """Whether every limit was kept."""

    async def connect(self, count: int) -> list[Client]:
        loop = asyncio.get_running_loop()
        clients = []
        for _ in range(count):
            _, client = await loop.create_connection(Client, "127.0.0.1", self._port)
            clients.append(client)
        return clients

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Raises `BenchError` where it does not come true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DEADLINE_S
        while not true():
            self._program.check()
            if loop.time() > deadline:
                raise BenchError(f"{what}: not within {_DEADLINE_S:g} s")
            await asyncio.sleep(_STEP_S)

    async def resident(self) -> int:
        """Its resident memory in bytes, once it stands still."""
        before, now = -1, rss(self._program.pid)
        while before != now:
            await asyncio.sleep(0.3)
            before, now = now, rss(self._program.pid)
        return now

    def line(self, what: str, figure: str, limit: str = "", *, kept: bool = True) -> None:
        print(f"{what:<44} {figure:>12}  {limit}{'' if kept else '  NOT KEPT'}", flush=True)
        self.kept = self.kept and kept


async def measure(router: Measured, replica: Replica) -> None:
    """All of it, one after the other, on one router."""
    start = await router.resident()
    router.line("after the start", _mb(start))

    idle = await router.connect(IDLE)
    for number, client in enumerate(idle):
        client.post("plain", session=f"idle-{number}")
        if number % _AT_ONCE == 0:
            await router.until(_got(b"usage", client), "a turn")
    await router.until(_got(b"usage", *idle), "the first turns")
    with_idle = await router.resident()
    router.line(f"{IDLE} keep-alive clients, idle after a turn", _mb(with_idle))
    router.line("  each", _kb((with_idle - start) / IDLE))

    streams = await router.connect(STREAMS)
    for number, client in enumerate(streams):
        client.post("open", session=f"open-{number}")
    await router.until(_got(b"data: ", *streams), "open streams")
    full = await router.resident()
    router.line(f"and {STREAMS} open streams", _mb(full), f"< {_mb(MOST_BYTES)}", kept=full < MOST_BYTES)
    router.line("  each, with its connection to the replica", _kb((full - with_idle) / STREAMS))

    await _unread(router, replica)
    await _bodies(router, replica)
    for client in (*idle, *streams):
        client.transport.abort()


async def _unread(router: Measured, replica: Replica) -> None:
    before = await router.resident()
    [client] = await router.connect(1)
    client.post("fast")
    await router.until(_got(b"data: ", client), "the fast stream")
    client.transport.pause_reading()
    sent = -1
    while sent != replica.fast_bytes:
        sent = replica.fast_bytes
        await asyncio.sleep(0.5)
    added = await router.resident() - before
    router.line(
        "one client that does not read a fast stream",
        "+ " + _mb(max(added, 0)),
        f"< {_mb(UNREAD_MOST_BYTES)}",
        kept=added < UNREAD_MOST_BYTES,
    )
    router.line("  the replica was stopped after sending", _mb(sent))
    client.transport.abort()


async def _bodies(router: Measured, replica: Replica) -> None:
    before = await router.resident()
    fit = HELD_BYTES // (BODY_BYTES + 1024)
    most = int(HELD_BYTES * HELD_MOST)
    limit = f"< {_mb(most)}, with a budget of {_mb(HELD_BYTES)}"
    for what in (
        f"{fit} bodies of {_mb(BODY_BYTES)} that wait",
        "  the same again, after they were answered",
    ):
        clients = await router.connect(fit)
        for number, client in enumerate(clients):
            client.post("held", "x" * BODY_BYTES, session=f"held-{number}")
        # The first is at the replica, and the others wait in the router for its prompt to be computed.
        await router.until(lambda: len(replica.held) > 0, "a body that fits")
        await router.until(_sent(*clients), "the bodies that wait")
        added = await router.resident() - before
        router.line(what, "+ " + _mb(added), limit, kept=added < most)
        [late] = await router.connect(1)
        late.post("held", "x" * BODY_BYTES)
        await router.until(_got(b"\r\n\r\n", late), "the answer to one too many")
        refused = late.received.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: " in late.received
        router.line("  one more", late.received[9:12].decode(), "503 with Retry-After", kept=refused)
        replica.holding = False
        while replica.held:
            replica.held.pop().answer()
        await router.until(_got(b"200 OK", *clients), "held turns")
        replica.holding = True
        for client in (*clients, late):
            client.transport.abort()


def _sent(*clients: Client) -> Callable[[], bool]:
    """Whether all that they have sent is on its way, asked again and again."""
    return lambda: not any(client.transport.get_write_buffer_size() for client in clients)


def _got(mark: bytes, *clients: Client) -> Callable[[], bool]:
    """Whether all of them have received `mark`, asked again and again."""
    return lambda: all(mark in client.received for client in clients)


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _kb(size: float) -> str:
    return f"{size / 1e3:.1f} kB"


async def _run() -> bool:
    loop = asyncio.get_running_loop()
    replica = Replica()
    server = await loop.create_server(lambda: Connection(replica), "127.0.0.1", 0, backlog=4096)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "router.yaml"
        config.write_text(
            "version: 1\nlisten: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\n"
            f"limits: {{body: 16MiB, held_bytes: {HELD_BYTES}B}}\n"
            f"replicas: [{{name: a, url: http://127.0.0.1:{server.sockets[0].getsockname()[1]}}}]\n"
        )
        with Program(
            [sys.executable, "-m", "router.cli", "serve", "-c", str(config), "--log-level", "warning"],
            os.sched_getaffinity(0),
            log=folder / "log",
            stdout=subprocess.PIPE,
        ) as program:
            line = (await loop.run_in_executor(None, program.first_line)).decode()
            address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if address is None:
                program.check()
                raise BenchError(f"the router said {line!r}")
            router = Measured(program, int(address[1]))
            await measure(router, replica)
    server.close()
    return router.kept


def _allow_descriptors() -> None:
    """Clients and replica hold both far ends of every connection here; the router inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * (IDLE + STREAMS)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def main() -> int:
    """Exit status 0 where every limit was kept."""
    _allow_descriptors()
    try:
        return 0 if uvloop.run(_run()) else 1
    except BenchError as error:
        print(f"bench-memory: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
