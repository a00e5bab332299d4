"""What goes out in one turn of the event loop, written together at its end.

A write to a socket wakes whoever waits for it, and a wake-up costs the writer more than all else that the
write does: ten microseconds on a virtual machine. Whoever is being woken anyway, or works on what came just
before, costs none. A busy router finds many sockets ready at once; read, decided and written one after the
other, each write would wake a replica or a client that has just gone to sleep again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

_log = logging.getLogger(__name__)

# Nobody waits for more than so many others to be dealt with: some milliseconds.
_MOST: Final = 64

# Bytes of answers that are gathered: the loop reads a replica that sends fast many times over before it calls
# back, and only a write tells that the client is slower. Requests are held whole anyway.
_MOST_BYTES: Final = 256 * 1024

# A request whose body is no longer than this is copied behind its head and written as one: uvloop writes a
# single piece at once, and sets up a context for several.
_JOINED: Final = 16 * 1024


class Outbox:
    """Gathers writes until the loop has called back for all that was ready. Knows no connection: whoever
    closes a transport in order flushes before. What waits for one that is closing is dropped; that a request
    was, `forget` tells."""

    __slots__ = ("_bytes", "_call_soon", "_dropped", "_flush", "_parts", "_requests", "_transports")

    def __init__(self) -> None:
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        # Made once: a method that is looked up to be called later is a new object each time.
        self._flush = self.flush
        self._transports: list[asyncio.Transport] = []
        self._parts: list[list[bytes | memoryview]] = []
        """What each of them is to send, in order."""
        self._requests: list[bool] = []
        """Whether that is a request, or an answer."""
        self._dropped: set[asyncio.Transport] = set()
        """Those closing that a request was not sent to. Each is forgotten once it is lost."""
        self._bytes = 0
        """Of answers, since the last flush."""

    def gather(self, call_soon: Callable[[Callable[[], None]], object] | None) -> None:
        """Gather from now on, and have the loop flush; with `None`, as at first, all goes out at once."""
        self.flush()
        self._call_soon = call_soon

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send `data`, after what was sent there before."""
        transports = self._transports
        if not transports:
            if self._call_soon is None:
                transport.write(data)
                return
            self._call_soon(self._flush)
        if transports and transports[-1] is transport:
            # The events of a stream, which often come several at once.
            self._parts[-1].append(data)
        else:
            self._put(transport, [data], request=False)
        self._bytes += len(data)
        if len(transports) >= _MOST or self._bytes >= _MOST_BYTES:
            self.flush()

    def writelines(self, transport: asyncio.Transport, parts: Sequence[bytes | memoryview]) -> None:
        """Send the `parts` of a request one after the other."""
        transports = self._transports
        if not transports:
            if self._call_soon is None:
                transport.writelines(parts)
                return
            self._call_soon(self._flush)
        self._put(transport, list(parts), request=True)
        if len(transports) >= _MOST:
            self.flush()

    def _put(self, transport: asyncio.Transport, parts: list[bytes | memoryview], *, request: bool) -> None:
        self._transports.append(transport)
        self._parts.append(parts)
        self._requests.append(request)

    def forget(self, transport: asyncio.Transport) -> bool:
        """A transport that requests go to is lost. Whether one was not sent to it."""
        transports = self._transports
        if transport in transports:
            kept = [at for at in range(len(transports)) if transports[at] is not transport]
            self._parts = [self._parts[at] for at in kept]
            self._requests = [self._requests[at] for at in kept]
            # In place: whoever is in the midst of a write holds on to it.
            transports[:] = [transports[at] for at in kept]
            return True
        if transport in self._dropped:
            self._dropped.discard(transport)
            return True
        return False

    def flush(self) -> None:
        """Send what waits."""
        transports, waiting, requests = self._transports, self._parts, self._requests
        if not transports:
            return
        self._transports, self._parts, self._requests = [], [], []
        self._bytes = 0
        for at in range(len(transports)):
            transport, parts, request = transports[at], waiting[at], requests[at]
            try:
                if transport.is_closing():
                    if request:
                        self._dropped.add(transport)
                elif len(parts) == 1:
                    transport.write(parts[0])
                elif request and (len(parts) > 2 or len(parts[1]) > _JOINED):
                    transport.writelines(parts)
                else:
                    # Some of asyncio's releases tell nobody that a client is slow to whom lines are written.
                    transport.write(b"".join(parts))
            except Exception:  # noqa: BLE001 - one connection's fault must not cost the others what they wait for
                _log.exception("writing to a connection failed")
                transport.abort()
