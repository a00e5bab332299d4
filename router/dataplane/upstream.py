"""One connection to a replica: sends a request, parses the answer, tells the exchange what came.

Knows nothing of routing, retries or clients.
"""

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

import httptools

from router.dataplane.answer_head import ResponseHead, is_dropped
from router.dataplane.departure import unacknowledged
from router.dataplane.head import MAX_DIGITS, listed_in

if TYPE_CHECKING:
    from router.dataplane.pool import Pool


class Receiver:
    """What an exchange hears from its connection. Nothing follows `on_end` or `on_broken`."""

    __slots__ = ()

    def on_head(self, head: ResponseHead) -> None:
        """The head of the answer."""
        raise NotImplementedError

    def on_piece(self, piece: bytes) -> None:
        """Some of its body."""
        raise NotImplementedError

    def on_chunk(self, data: bytes, begin: int, start: int, end: int) -> None:  # noqa: ARG002 - overriders use it
        """Some of its body, `data[start:end]`, in a plain chunk: with its frame `data[begin : end + 2]`."""
        self.on_piece(data[start:end])

    def on_end(self) -> None:
        """It is complete."""
        raise NotImplementedError

    def on_broken(self, why: str, *, answered: bool, taken: bool) -> None:
        """The connection ended or turned to garbage; `answered` = some byte of an answer had come, `taken` =
        the replica's host had acknowledged the whole request, as far as the platform can tell."""
        raise NotImplementedError


# How the answer in progress is read.
_FRESH: Final = 0
"""Nothing of it has come."""
_PARSED: Final = 1
"""By the parser."""
_LENGTH: Final = 2
"""Its head was known: what it misses is counted."""
_CHUNKS: Final = 3
"""Its head was known, and everything so far came in whole chunks."""

_LAST_CHUNK: Final = b"0\r\n\r\n"
_SIZE_DIGITS: Final = 8
_QUICKACK: Final[int] = getattr(socket, "TCP_QUICKACK", -1)
"""An option of Linux; below 0 elsewhere."""
_ZERO: Final = ord("0")
_NINE: Final = ord("9")
_LOWER: Final = ord("a")
_UPPER: Final = ord("A")


def _said_farewell(tls: ssl.SSLObject) -> bool:
    """Whether the other side ended the connection itself. The loops report a cut one in the same way; only
    there, more could still come."""
    try:
        return not tls.read(1)
    except ssl.SSLError:
        return False


def _chunk_at(data: bytes, at: int) -> tuple[int, int]:
    """Of the chunk whose frame begins at `at`: where its bytes begin, and how many they are, by its first
    line; whether they are there is not looked at. 0 bytes where that line is not whole and plain (zeros in
    front, extensions): it is for the parser to read."""
    length, place = 0, at
    stop = min(len(data), at + _SIZE_DIGITS)
    while place < stop:
        sign = data[place]
        if _ZERO <= sign <= _NINE:
            digit = sign - _ZERO
        elif _LOWER <= sign < _LOWER + 6:
            digit = sign - _LOWER + 10
        elif _UPPER <= sign < _UPPER + 6:
            digit = sign - _UPPER + 10
        else:
            break
        length = 16 * length + digit
        place += 1
    if not length or data[at] == _ZERO or data[place : place + 2] != b"\r\n":
        return place, 0
    return place + 2, length


_NONE: Final[frozenset[bytes]] = frozenset()


class _GarbledError(Exception):
    """What the replica sent is not the answer to the request."""


class _EnoughError(_GarbledError):
    """The answer is whole. Whatever follows is no part of it, so the connection is not used again."""


class UpstreamConnection:
    """Carries one exchange at a time. An `asyncio.Protocol` in all but name, as `ClientConnection` is.

    An answer whose head is known line by line and whose body is counted, or comes in whole and plain chunks,
    goes past the parser. At the first thing that is otherwise the parser gets it: from the start, or, in the
    middle of a stream of chunks, from the head and the chunk that is not plain.
    """

    __slots__ = (
        "_answered",
        "_chunked",
        "_clogged",
        "_complete",
        "_content_encoding",
        "_content_type",
        "_eof",
        "_forward",
        "_head_limit",
        "_head_only",
        "_in_head",
        "_interim",
        "_keep",
        "_length",
        "_listed",
        "_missing",
        "_mode",
        "_muted",
        "_parser",
        "_paused",
        "_pool",
        "_raw_head",
        "_receiver",
        "_transport",
        "_unused_bytes",
        "idle_since",
    )

    def __init__(self, pool: "Pool", head_limit: int) -> None:
        self._pool = pool
        self._head_limit = head_limit
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        self._eof = False
        self._head_only = False
        self._paused = False
        self._clogged = False
        self._muted = False
        self._raw_head = b""
        self._reset()

    def _reset(self) -> None:
        self._mode = _FRESH
        self._missing = 0
        self._answered = False
        self._complete = False
        self._keep = False
        self._in_head = True
        self._interim = False
        self._unused_bytes = 0
        self._forward: list[bytes] = []
        self._content_type = b""
        self._content_encoding = b""
        self._length: int | None = None
        self._chunked = False
        self._listed = _NONE

    @property
    def usable(self) -> bool:
        """Whether it is open and carries nothing."""
        return self._receiver is None and self._transport is not None and not self._transport.is_closing()

    def send(self, receiver: Receiver, parts: tuple[bytes | memoryview, ...], *, head_only: bool) -> None:
        """Send a request; what comes back goes to `receiver`. `head_only` = the answer has no body."""
        assert self._transport is not None
        self._receiver = receiver
        self._head_only = head_only
        self.idle_since = 0.0
        self._pool.outbox.writelines(self._transport, parts)

    def abort(self) -> None:
        """Close at once and say nothing more to the receiver."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the client is slower than the replica."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # --- asyncio ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment] # uvloop's own class, same interface

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            # Nothing was asked: whatever this is, the next exchange must not take it for its answer.
            self.abort()
            return
        self._answered = True
        mode = self._mode
        if mode == _FRESH:
            if self._take(data):
                return
            self._mode = _PARSED
        elif mode == _CHUNKS:
            data = self._take_chunks(data)
            if not data:
                return
            self._parse_from_here()
        elif mode == _LENGTH:
            self._take_counted(data)
            return
        self._parse(data)

    # --- plain answers ------------------------------------------------------------------------------

    def _take(self, data: bytes) -> bool:
        """Take the beginning of a plain answer. False, and nothing done, where it is for the parser."""
        if self._head_only:
            return False
        recognised = self._pool.answer_heads.recognise(data, self._head_limit)
        if recognised is None:
            return False
        head, chunked = recognised
        length, begins = head.length, head.size
        if length is not None and len(data) - begins > length:
            return False
        receiver = self._receiver
        assert receiver is not None
        self._in_head = False
        self._content_type = head.content_type
        self._length = length
        self._chunked = chunked
        if chunked:
            self._mode = _CHUNKS
            self._raw_head = data[:begins]
            self._acknowledge_less()
            receiver.on_head(head)
            rest = self._take_chunks(data[begins:]) if len(data) > begins else b""
            if rest:
                self._parse_from_here()
                self._parse(rest)
            return True
        assert length is not None
        self._mode = _LENGTH
        self._missing = length
        receiver.on_head(head)
        self._take_counted(data[begins:])
        return True

    def _acknowledge_less(self) -> None:
        """Have the kernel acknowledge every other event that follows, and not each by itself, which takes it
        as long as half of the reading. It goes back to that at the first hole of 40 ms, at the latest at the
        stream's end, so each stream says it. (A replica that sends with Nagle's algorithm on may wait these
        40 ms once; the servers of Python and the usual proxies have it off.)"""
        watched = self._transport.get_extra_info("socket") if self._transport is not None else None
        if _QUICKACK >= 0 and watched is not None:
            with contextlib.suppress(OSError):  # not TCP, or closed meanwhile
                watched.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 0)

    def _take_counted(self, data: bytes) -> None:
        """Some more of a body whose length is known."""
        receiver = self._receiver
        if receiver is None:
            return  # it gave this answer up
        size, missing = len(data), self._missing
        whole = size <= missing
        if not whole:
            # Something follows that nobody asked for.
            data = data[:missing]
        self._missing = missing - len(data)
        if data:
            receiver.on_piece(data)
        if not self._missing and self._receiver is not None:
            self._finish(keep=whole)

    def _take_chunks(self, data: bytes) -> bytes:
        """Whole chunks, as many as there are; the answer is what is left for the parser."""
        at, size = 0, len(data)
        while at < size:
            receiver = self._receiver
            if receiver is None:
                return b""  # it gave this answer up
            start, length = _chunk_at(data, at)
            end = start + length
            if not length or data[end : end + 2] != b"\r\n":
                break
            begin, at = at, end + 2
            receiver.on_chunk(data, begin, start, end)
        if self._receiver is None:
            return b""
        rest = data[at:] if at else data
        if rest == _LAST_CHUNK:
            self._finish(keep=True)
            return b""
        return rest

    def _parse_from_here(self) -> None:
        """Have the parser go on between two chunks: it is told of the head, and tells nobody."""
        self._mode = _PARSED
        self._muted = True
        self._parser.feed_data(self._raw_head)
        self._muted = False
        self._raw_head = b""

    # --- all others ---------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, _GarbledError):
                # A fault of the router's own: the loop reports it and closes the connection, and the
                # exchange hears of it through `connection_lost`.
                raise
            if self._complete:
                self._finish(keep=False)
            else:
                self._break(str(cause))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._complete:
                # The answer was whole and something follows it that nobody asked for.
                self._finish(keep=False)
            else:
                self._break(f"sent what is not HTTP: {error}")
        else:
            if self._complete:
                self._finish(keep=self._keep)
            elif self._unused_bytes > self._head_limit:
                # A head without end, or interim ones; then chunk extensions, or trailers.
                self._break(f"sent more than {self._head_limit} bytes without any of a body (limits.head)")

    def _finish(self, *, keep: bool) -> None:
        receiver, self._receiver = self._receiver, None
        self._reset()
        self._raw_head = b""
        if keep and not self._clogged:
            self.resume()
            self._pool.put(self)
        else:
            self.abort()
        if receiver is not None:
            receiver.on_end()

    def pause_writing(self) -> None:
        # An answer that comes before the replica has read the request leaves the connection in doubt.
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False

    def eof_received(self) -> bool:
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        self._eof = tls is None or _said_farewell(tls)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        self._pool.lost(self)
        # Also where nobody waits for the answer any more: else it would be remembered for ever.
        unsent = transport is not None and self._pool.outbox.forget(transport)
        if self._receiver is None:
            return
        if self._eof and exc is None and not self._in_head and not self._chunked and self._length is None:
            # Neither a length nor chunks: the end of the connection is the end of the body. Over TLS only an
            # end that the replica itself declared is one: anybody on the way can cut a connection.
            receiver, self._receiver = self._receiver, None
            receiver.on_end()
            return
        where = "its answer" if self._answered else "any answer"
        when = "in the middle of" if self._answered else "before"
        taken = self._answered or transport is None
        if transport is not None and not taken and not unsent:
            taken = not unacknowledged(transport.get_extra_info("socket"))
        self._break(f"closed the connection {when} {where}", taken=taken)

    def _break(self, why: str, *, taken: bool = True) -> None:
        receiver, self._receiver = self._receiver, None
        if self._transport is not None:
            self._transport.abort()
        if receiver is not None:
            receiver.on_broken(why, answered=self._answered, taken=taken)

    # --- httptools ----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, or a head that is known already
        name = name.lower()
        if not is_dropped(name):
            if name == b"content-type":
                self._content_type = value
            elif name == b"content-encoding":
                self._content_encoding = value
            elif name == b"location":
                value = self._pool.local_location(value)
            self._forward.append(name + b": " + value + b"\r\n")
            self._pool.answer_heads.note(name)
        elif name == b"content-length":
            if len(value) > MAX_DIGITS:
                raise _GarbledError("sent a Content-Length of too many digits")
            self._length = int(value)
        elif name == b"transfer-encoding":
            if self._chunked or value.rstrip(b" ").lower() != b"chunked":
                raise _GarbledError("sent its answer in a transfer encoding that was not asked for")
            self._chunked = True
        elif name == b"connection":
            self._listed |= listed_in(value)

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        if self._complete:
            raise _GarbledError("sent a second answer to one request")
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise _GarbledError(f"answered with status {status}")
            unused = self._unused_bytes
            self._reset()
            self._mode = _PARSED
            self._answered = self._interim = True
            self._unused_bytes = unused
            return
        if status > 599:
            raise _GarbledError(f"answered with status {status}")
        if self._unused_bytes > self._head_limit and sum(map(len, self._forward)) > self._head_limit:
            # One read can hold more than the head, so it is measured before it is refused.
            raise _GarbledError(f"sent a head of more than {self._head_limit} bytes (limits.head)")
        if self._listed:
            self._forward = [line for line in self._forward if line[: line.index(b":")] not in self._listed]
        self._in_head = False
        self._unused_bytes = 0
        receiver = self._receiver
        if receiver is None:
            return
        receiver.on_head(
            ResponseHead(
                status,
                self._forward,
                self._content_type,
                self._content_encoding,
                None if self._chunked else self._length,
            )
        )
        if self._head_only:
            # llhttp would wait for the body that the length announces and that must not come.
            self._complete = True
            raise _EnoughError

    def on_body(self, piece: bytes) -> None:
        self._unused_bytes = 0
        if self._receiver is not None:
            self._receiver.on_piece(piece)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            return
        if self._complete:
            raise _GarbledError("sent a second answer to one request")
        self._keep = self._parser.should_keep_alive()
        self._complete = True
