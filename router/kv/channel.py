"""Frames over a non-blocking socket, payloads straight from and to memory that the caller names.

Serves asyncio and uvloop alike by reader and writer callbacks: an event loop's own transports copy what they
cannot send at once. A callback moves a bounded number of bytes and returns, and goes on with what a full
socket did not take after all else that its turn of the loop has to do: a bulk transfer delays nobody for
long. Knows nothing of what messages mean.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum
from typing import Final, Protocol

from router.base.system import system_words
from router.kv.checksum import Running, checksum, running
from router.kv.messages import Message, Refused, pack
from router.kv.wire import (
    HEAD_BYTES,
    Head,
    Limits,
    Type,
    VersionFault,
    WireFault,
    decode_head,
    encode,
    verify,
)

_log = logging.getLogger(__name__)

_SCRATCH: Final = 64 << 10
_DIRECT: Final = 16 << 10
"""So many bytes to come are worth a system call of their own; fewer share one."""
_BURST: Final = 512 << 10
"""Bytes moved in one callback: about a quarter of a millisecond. In quarters they take half as long again."""
_UNREAD_MS: Final = 10_000
"""Milliseconds that sent bytes may stay unacknowledged before the system gives the connection up."""

Then = Callable[[], None]


class Sink(Protocol):
    """Who a channel's frames are for. A `WireFault` raised by any of these ends the connection."""

    def on_frame(self, kind: Type, ident: int, meta: bytes, /) -> None:
        """A frame without payload."""
        ...

    def on_payload(self, kind: Type, ident: int, meta: bytes, size: int, /) -> memoryview | None:
        """A payload follows: where to put it; `None`: nowhere."""
        ...

    def on_progress(self, ident: int, count: int, /) -> None:
        """So many bytes more of that payload have come."""
        ...

    def on_landed(self, kind: Type, ident: int, meta: bytes, total: int, /) -> None:
        """A payload is complete, with its checksum. Not called for what was put nowhere."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection is over. Called once, and last."""
        ...


class _Stage(Enum):
    HEAD = "head"
    META = "meta"
    PAYLOAD = "payload"


class Channel:
    """A connection. Ends by `close` or by itself; either way `on_lost` is called once."""

    __slots__ = (
        "_discard", "_due", "_end", "_filled", "_head", "_limits", "_loop", "_meta", "_out", "_raw",
        "_scratch", "_sink", "_socket", "_stage", "_start", "_sum", "_target", "_want", "_writing",
        "bytes_in", "bytes_out", "unsent",
    )  # fmt: skip

    def __init__(self, connected: socket.socket, sink: Sink, limits: Limits) -> None:
        """`connected` is non-blocking, and the channel's from here on."""
        self._socket: socket.socket | None = connected
        self._sink = sink
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._out: deque[tuple[memoryview, Then | None]] = deque()
        self._writing = False
        self._due = False
        self.unsent = 0
        """Bytes queued and not handed to the system."""
        self.bytes_in = 0
        self.bytes_out = 0
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._discard = memoryview(bytearray(_SCRATCH))
        self._start = self._end = 0
        self._raw = bytes(HEAD_BYTES)
        self._meta = b""
        self._head: Head | None = None
        self._sum: Running | None = None
        self._stage = _Stage.HEAD
        self._target: memoryview | None = memoryview(bytearray(HEAD_BYTES))
        self._want = HEAD_BYTES
        self._filled = 0
        _tune(connected)
        self._loop.add_reader(connected.fileno(), self._readable)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def limit(self, limits: Limits) -> None:
        """What is taken from here on."""
        self._limits = limits

    def send(
        self,
        kind: Type,
        ident: int,
        message: Message,
        payload: memoryview | None = None,
        then: Then | None = None,
    ) -> None:
        """Send a frame after all those before it. `then` is called once the system has all of it, or the
        connection is lost: the payload's memory may be used for something else."""
        if self._socket is None:
            if then is not None:
                then()
            return
        size = 0 if payload is None else payload.nbytes
        frame = memoryview(encode(kind, ident, pack(message), payload_bytes=size, checksum=checksum))
        if payload is None:
            self._out.append((frame, then))
        else:
            self._out.append((frame, None))
            self._out.append((payload, then))
        self.unsent += frame.nbytes + size
        if not self._writing:
            self._flush()

    def redirect(self, ident: int) -> None:
        """Throw away the rest of the payload that is coming for `ident`, if one is: its memory is wanted."""
        if self._stage is _Stage.PAYLOAD and self._head is not None and self._head.ident == ident:
            self._target = None

    def close(self, reason: str) -> None:
        """End the connection. May be called again."""
        gone, self._socket = self._socket, None
        if gone is None:
            return
        self._loop.remove_reader(gone.fileno())
        self._loop.remove_writer(gone.fileno())
        gone.close()
        waiting, self._out = self._out, deque()
        self._target = None
        with ExitStack() as ending:  # in the opposite order, and all of it, whatever one of them raises
            ending.callback(self._sink.on_lost, reason)
            for _, then in reversed(waiting):
                if then is not None:
                    ending.callback(then)

    # Out.

    def _writable(self) -> None:
        # Not at once: the system names a connection that it named before ahead of one where a question has
        # come since, which waited for a burst already. (asyncio's own loop keeps to that order even so.)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        burst = 0
        try:
            while self._out and burst < _BURST and self._socket is not None:
                pieces: list[memoryview] = []
                room = _BURST - burst
                for data, _ in self._out:
                    pieces.append(data[:room])
                    room -= pieces[-1].nbytes
                    if room <= 0 or len(pieces) == 16:
                        break
                sent = self._socket.sendmsg(pieces)
                burst += sent
                self._sent(sent)
                if sent < sum(piece.nbytes for piece in pieces):
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(system_words(error))
        if self._socket is None or bool(self._out) == self._writing:
            return
        self._writing = bool(self._out)
        if self._writing:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _sent(self, count: int) -> None:
        self.unsent -= count
        self.bytes_out += count
        while count or (self._out and not self._out[0][0].nbytes):
            data, then = self._out[0]
            if data.nbytes > count:
                self._out[0] = (data[count:], then)
                return
            count -= data.nbytes
            self._out.popleft()
            if then is not None:
                then()

    # In.

    def _readable(self) -> None:
        burst = 0
        try:
            while self._socket is not None and burst < _BURST:
                missing = self._want - self._filled
                direct = missing >= _DIRECT
                if direct:
                    room = missing if self._target is not None else min(missing, _SCRATCH)
                    whole = self._discard if self._target is None else self._target[self._filled :]
                    space = whole[: min(room, _BURST)]
                else:
                    space = self._scratch
                count = self._socket.recv_into(space)
                if not count:
                    self.close("the other side hung up")
                    return
                burst += count
                self.bytes_in += count
                if direct:
                    self._fill(space[:count])
                    if self._filled == self._want:
                        self._complete()
                else:
                    self._start, self._end = 0, count
                    self._digest()
                if count < space.nbytes:
                    return
        except BlockingIOError:
            return
        except VersionFault as error:
            self.send(Type.REFUSED, 0, Refused("version", str(error)))
            self.close(str(error))
        except WireFault as error:
            self.close(str(error))
        except OSError as error:
            self.close(system_words(error))
        except Exception:  # noqa: BLE001  # whatever a sink does, the other connections go on
            _log.exception("a KV connection failed")
            self.close("internal")

    def _digest(self) -> None:
        """Take what is in the scratch buffer to where it belongs."""
        while self._start < self._end and self._socket is not None:
            take = min(self._want - self._filled, self._end - self._start)
            piece = self._scratch[self._start : self._start + take]
            self._start += take
            if self._target is not None:
                self._target[self._filled : self._filled + take] = piece
            self._fill(piece)
            if self._filled == self._want:
                self._complete()

    def _fill(self, piece: memoryview) -> None:
        self._filled += piece.nbytes
        if self._stage is _Stage.PAYLOAD and self._head is not None:
            if self._sum is not None:
                self._sum.update(piece)
            self._sink.on_progress(self._head.ident, piece.nbytes)

    def _complete(self) -> None:
        """What was waited for is there; on to what follows, over anything that is empty."""
        match self._stage:
            case _Stage.HEAD:
                assert self._target is not None
                self._raw = bytes(self._target)
                self._head = head = decode_head(self._raw, self._limits, summed=True)
                if head.meta_bytes:
                    self._expect(_Stage.META, memoryview(bytearray(head.meta_bytes)), head.meta_bytes)
                else:
                    self._described(b"")
            case _Stage.META:
                assert self._target is not None
                self._described(bytes(self._target))
            case _Stage.PAYLOAD:
                self._landed()

    def _described(self, meta: bytes) -> None:
        head = self._head
        assert head is not None
        verify(head, self._raw, meta, checksum)
        self._meta = meta
        if not head.payload_bytes:
            self._expect_head()
            self._sink.on_frame(head.type, head.ident, meta)
            return
        target = self._sink.on_payload(head.type, head.ident, meta, head.payload_bytes)
        if target is not None and target.nbytes != head.payload_bytes:
            raise WireFault(f"a payload of {head.payload_bytes} bytes where {target.nbytes} were due")
        self._sum = None if target is None else running()
        self._expect(_Stage.PAYLOAD, target, head.payload_bytes)

    def _landed(self) -> None:
        head, meta, target, total = self._head, self._meta, self._target, self._sum
        assert head is not None
        self._expect_head()
        if target is not None and total is not None:
            self._sink.on_landed(head.type, head.ident, meta, total.intdigest())

    def _expect_head(self) -> None:
        self._expect(_Stage.HEAD, memoryview(bytearray(HEAD_BYTES)), HEAD_BYTES)

    def _expect(self, stage: _Stage, target: memoryview | None, want: int) -> None:
        self._stage = stage
        self._target = target
        self._want = want
        self._filled = 0


def _tune(connected: socket.socket) -> None:
    with suppress(OSError):  # a socket that is not TCP has none of these
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
