"""Writes a streamed body straight to its connection, and does to it what a fault wants.

aiohttp's own `write` is a coroutine for each chunk, which costs more than all else a token needs. Here a
step's chunks of one stream are one write, made from the engine's wake-up, without a task.
"""

import asyncio
from collections.abc import Iterable

from router.simulator.faults import Fault, Kind


class Body:
    """The body of one response whose head is on the wire."""

    def __init__(
        self, transport: asyncio.WriteTransport, *, chunked: bool, fault: Fault | None = None
    ) -> None:
        """`chunked` frames each chunk for HTTP/1.1; without it the connection's end is the body's."""
        self._transport = transport
        self._chunked = chunked
        self._chunks_left = int(fault.amount) if fault is not None and fault.kind is Kind.CUT else None
        self._delay_s = fault.amount if fault is not None and fault.kind is Kind.SLOW else 0.0
        self._due = 0.0
        self._late = 0
        """Chunks that wait for their time."""
        self._all_sent: asyncio.Future[None] | None = None

    def send(self, chunks: Iterable[bytes]) -> None:
        """Write what is not empty, in order. Never blocks: what the peer does not read is kept."""
        framed = [self._frame(chunk) for chunk in chunks if chunk]
        if self._transport.is_closing():
            return
        if self._delay_s > 0:
            self._send_slowly(framed)
            return
        if self._chunks_left is not None:
            framed = framed[: self._chunks_left]
            self._chunks_left -= len(framed)
        if framed:
            self._transport.write(b"".join(framed))
        if self._chunks_left == 0:
            self._transport.abort()

    async def sent(self) -> None:
        """Wait until what was delayed is written."""
        if self._late:
            self._all_sent = asyncio.get_running_loop().create_future()
            await self._all_sent

    def _send_slowly(self, framed: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        for chunk in framed:
            self._due = max(self._due, loop.time()) + self._delay_s
            self._late += 1
            loop.call_at(self._due, self._write_late, chunk)

    def _write_late(self, chunk: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(chunk)
        self._late -= 1
        if self._late == 0 and self._all_sent is not None and not self._all_sent.done():
            self._all_sent.set_result(None)

    def _frame(self, chunk: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk
