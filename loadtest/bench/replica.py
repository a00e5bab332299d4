"""Replicas that answer at once from canned bytes, so that what is measured is the proxy before them.

One process is a whole fleet: `python -m loadtest.bench.replica COUNT` binds as many loopback ports, prints
them as one JSON list, and serves until it is stopped. A stream's chunks come as an engine makes them: every
replica takes a step each `STEP_S`, and in it all its streams get their next token.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import cast

import httptools
import uvloop

from loadtest.bench import answers
from loadtest.bench.loads import CHUNKS, STEP_S

# Where a request says whether it streams: before the messages or after them, as client and proxy write it.
_ENDS_BYTES = 1024


class Replica:
    """One replica: its answers, and the step that feeds its streams."""

    def __init__(self, number: int, phase_s: float) -> None:
        self.answers: Mapping[bytes, bytes] = {
            b"/v1/chat/completions": answers.plain(b"200 OK", b"application/json", answers.chat_body(number)),
            b"/health": answers.plain(b"200 OK", b"text/plain", b""),
            b"/metrics": answers.plain(
                b"200 OK", b"text/plain; version=0.0.4; charset=utf-8", answers.metrics_page()
            ),
            # A collector of traces takes them all, and says nothing.
            b"/v1/traces": answers.plain(b"200 OK", b"application/x-protobuf", b""),
            b"/v1/models": answers.plain(
                b"200 OK",
                b"application/json",
                b'{"object":"list","data":[{"id":"bench","object":"model","created":1795986000,'
                b'"owned_by":"vllm","root":"bench","parent":null,"max_model_len":131072}]}',
            ),
        }
        self.not_found = answers.plain(b"404 Not Found", b"application/json", b'{"detail":"Not Found"}')
        self.streams: dict[Connection, int] = {}
        """Chunks that each running stream still gets."""
        self._token = answers.chunked(answers.token_event(number, last=False))
        self._last = answers.chunked(answers.token_event(number, last=True))
        self._usage = answers.chunked(answers.usage_event(number))
        self._phase_s = phase_s
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: "Connection") -> None:
        self.streams[connection] = CHUNKS
        if self._timer is None:
            self._sleep(asyncio.get_running_loop())

    def _sleep(self, loop: asyncio.AbstractEventLoop) -> None:
        # On a fixed grid, so that a step that ran late does not delay those after it.
        steps = (loop.time() - self._phase_s) // STEP_S + 1
        self._timer = loop.call_at(self._phase_s + steps * STEP_S, self._step)

    def _step(self) -> None:
        for connection, left in list(self.streams.items()):
            stamp = time.monotonic_ns()
            if left > 1:
                self.streams[connection] = left - 1
                connection.transport.write(self._token % stamp)
                continue
            del self.streams[connection]
            end = self._usage if connection.wants_usage else b""
            connection.transport.write(
                self._last % stamp + end + answers.chunked(answers.DONE_EVENT) + answers.LAST_CHUNK
            )
        self._timer = None
        if self.streams:
            self._sleep(asyncio.get_running_loop())


class Connection(asyncio.Protocol):
    """One connection from a proxy."""

    transport: asyncio.Transport

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._first = b""
        self._last = b""
        self.wants_usage = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._replica.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_url(self, url: bytes) -> None:
        self._path = url.partition(b"?")[0]
        self._first = self._last = b""

    def on_body(self, piece: bytes) -> None:
        if len(self._first) < _ENDS_BYTES:
            self._first = (self._first + piece)[:_ENDS_BYTES]
        self._last = (piece if len(piece) >= _ENDS_BYTES else self._last + piece)[-_ENDS_BYTES:]

    def on_message_complete(self) -> None:
        replica = self._replica
        if self._path == b"/v1/chat/completions" and self._says(b'"stream":true'):
            self.wants_usage = self._says(b'"include_usage":true')
            # The head goes out before the first token, as uvicorn sends it.
            self.transport.write(answers.STREAM_HEAD)
            replica.add(self)
        else:
            self.transport.write(replica.answers.get(self._path, replica.not_found))

    def _says(self, field: bytes) -> bool:
        return field in self._last or field in self._first


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    ports = []
    for number in range(count):
        replica = Replica(number, number * STEP_S / count)
        server = await loop.create_server(_connections_of(replica), "127.0.0.1", 0, backlog=1024)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


def _connections_of(replica: Replica) -> Callable[[], Connection]:
    return lambda: Connection(replica)


if __name__ == "__main__":
    # A collection in mid-burst would show as the proxy's latency; what a request leaves is freed by count.
    gc.disable()
    uvloop.run(_serve(int(sys.argv[1])))
