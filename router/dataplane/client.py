"""One client connection: parses requests, runs them one after the other, writes what they answer.

Requests that a client sends ahead (pipelining) wait their turn and are answered in order.
"""

import asyncio
import logging
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

import httptools

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId, TenantId
from router.core.observe import Outcome
from router.dataplane.departure import (
    CHECK_AFTER_S,
    INTERIM,
    WATCH_S,
    SocketInfo,
    has_ended,
    has_left,
    unacknowledged,
)
from router.dataplane.exchange import Exchange, Phase
from router.dataplane.head import Head
from router.dataplane.last_head import LastHead
from router.dataplane.problems import HttpRefused, body_of, headers_of, status_line, status_of
from router.dataplane.target import MAX_TARGET, target_too_long

if TYPE_CHECKING:
    from router.dataplane.server import DataPlane

_log = logging.getLogger(__name__)

# What a client may send ahead of the answer it waits for, in bytes, before it is no longer read.
_AHEAD: Final = 64 * 1024

# Bytes a second that a body must bring in the long run, beyond `limits.idle` to begin with.
_LEAST_RATE: Final = 16 * 1024

# Pieces of a body at most before they are joined: each costs some fifty bytes beyond those that it holds.
_PIECES: Final = 1024

# Bytes of chunk sizes that a byte of body may cost, beyond a head's worth: five where each has its own chunk.
_CHUNKING: Final = 8

# After a refusal that leaves the request unread: how much more is read and thrown away, and for how long,
# so that the client sees the answer instead of a reset.
_LINGER_BYTES: Final = 1 << 20
_LINGER_S: Final = 1.0

_NEVER: Final = float("inf")


class _StopError(Exception):
    """Ends the parsing of a request that is refused; the refusal is kept on the connection."""


class Reading(Enum):
    """What the connection is being read for."""

    IDLE = 1
    """The next request."""
    HEAD = 2
    BODY = 3
    NOTHING = 4
    """The last answer is out, or going out; what still comes is thrown away."""


# A member looked up on its class costs as much as the comparison, and these are asked for at every read.
_IDLE: Final = Reading.IDLE
_HEAD: Final = Reading.HEAD
_BODY: Final = Reading.BODY


class ClientConnection:
    """Reads requests and owns the one exchange in progress. An `asyncio.Protocol` in all but name: a compiled
    class inherits from none that is not compiled.

    Two ways lead from bytes to a request. A plain one on a fresh connection, with a head whose every line is
    known, is taken as it lies there; all else goes through the parser, which is asked anew for each message.
    """

    __slots__ = (
        "_ahead",
        "_body",
        "_body_began",
        "_body_bytes",
        "_closing",
        "_counted",
        "_eof",
        "_exchange",
        "_head",
        "_head_bytes",
        "_head_shared",
        "_headers",
        "_joined",
        "_last_head",
        "_latest",
        "_lingered",
        "_looping",
        "_missing",
        "_parser",
        "_plane",
        "_progress_seen",
        "_queue",
        "_read_paused",
        "_reading",
        "_refusal",
        "_socket",
        "_spare",
        "_tenant",
        "_transport",
        "_unsent",
        "_unsent_since",
        "_url",
        "deadline",
        "keep_alive",
        "progress",
        "write_paused",
    )

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self._transport: asyncio.Transport | None = None
        self._socket: SocketInfo | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._last_head = LastHead()
        self._exchange: Exchange | None = None
        self._queue: deque[tuple[Head, TenantId | None, bytes, bool]] = deque()
        self._ahead = bytearray()
        self._read_paused = False
        self._reading = Reading.IDLE
        self._head_shared = 0
        self._missing = 0
        """Bytes of body that are yet to come to a request that went past the parser."""
        self._spare = 0
        self._counted = 0
        self._joined = 0
        self._refusal: Refused | None = None
        self._eof = False
        self._closing = False
        self._unsent = -1
        self._unsent_since = 0.0
        self._body_began = 0.0
        self._lingered = 0
        self._looping = False
        self.keep_alive = True
        """Whether the request in progress lets the connection live on."""
        self.progress = 0
        """Counts pieces of the answer, so that the sweep can tell a slow one from one that stands still."""
        self._progress_seen = 0
        self.write_paused = False
        """Whether the client reads slower than it is written to."""
        self.deadline = _NEVER
        """When the sweep is to act, in the plane's seconds."""
        self._latest = _NEVER
        self._begin_head()

    def _begin_head(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._head: Head | None = None
        self._tenant: TenantId | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0

    # --- asyncio ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's own class, same interface
        self._socket = transport.get_extra_info("socket")
        self.deadline = self._plane.now() + self._plane.limits.idle_s
        connections = self._plane.connections
        connections.add(self)
        if len(connections) > self._plane.limits.clients:
            self._turn_away()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._plane.connections.discard(self)
        self._plane.give_back(self._body_bytes)
        self._drop_queue()
        self._body_bytes = 0
        self._transport = None
        self._reading = Reading.NOTHING
        if self._exchange is not None:
            self._exchange.client_left()

    def data_received(self, data: bytes) -> None:
        if self._reading is Reading.NOTHING:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES and self._exchange is None:
                self._close()
            return
        if self._exchange is not None:
            self._ahead += data
            if len(self._ahead) > _AHEAD and self._transport is not None:
                self._read_paused = True
                self._transport.pause_reading()
                self._watch(probed=False)
            return
        if self._missing:
            self._take_body(data)
        elif self._reading is not _IDLE or not self._take(data):
            self._feed(data)
        if self._queue or self._refusal is not None:
            self._next()

    def eof_received(self) -> bool:
        self._eof = True
        if self._exchange is None or self._exchange.phase is Phase.OVER:
            self._plane.outbox.flush()
            self._begin_close()
            return False
        if self._transport is not None and not self._transport.can_write_eof():
            # Over TLS nobody can close one side alone: the end of the input is a departure.
            self._transport.abort()
            return False
        self._probe()
        return True

    def pause_writing(self) -> None:
        self.write_paused = True
        self._unsent = -1
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        # The replica was not read meanwhile, so its silence is not its own.
        self.progress += 1
        if self._exchange is not None:
            self._exchange.resume()

    # --- has the client left? -----------------------------------------------------------------------

    def _probe(self) -> None:
        assert self._exchange is not None
        if probe := self._exchange.probe:
            self.write(probe)
        loop = asyncio.get_running_loop()
        for delay in CHECK_AFTER_S:
            loop.call_later(delay, self._check_departure)

    def _check_departure(self) -> None:
        if self._transport is not None and self._exchange is not None and has_left(self._socket):
            self._transport.abort()

    def _watch(self, *, probed: bool) -> None:
        """Look after a client that has sent so much ahead that it is not read: its end would go unseen."""
        if not self._read_paused or self._transport is None or self._exchange is None:
            return
        if has_left(self._socket):
            self._transport.abort()
            return
        if not probed and has_ended(self._socket):
            probed = True
            if not self._transport.can_write_eof():
                self._transport.abort()
                return
            self._probe()
        asyncio.get_running_loop().call_later(WATCH_S, lambda: self._watch(probed=probed))

    # --- reading plain requests ---------------------------------------------------------------------

    def _take(self, data: bytes) -> bool:
        """Take a request with a known head and a body of known length. False, and nothing done, where `data`
        holds anything else, more, or what is to be refused."""
        plane = self._plane
        limits = plane.limits
        head = plane.heads.recognise(data, limits.head, self._last_head)
        if head is None:
            return False
        begins, length = head.size, head.length
        size = len(data) - begins
        if not 0 < length <= limits.body or size > length or plane.held_bytes + size > limits.held_bytes:
            return False
        try:
            tenant = plane.tenant_of(head)
        except Refused:
            return False
        plane.held_bytes += size
        if size == length:
            self._run(head, tenant, data[begins:], True)
            return True
        self._url = head.target
        self._head = head
        self._tenant = tenant
        self._missing = length - size
        self._body_bytes = size
        self._joined = 0
        if size:
            self._body.append(data[begins:])
        self._reading = _BODY
        self._body_began = now = plane.now()
        self.deadline = now + limits.idle_s
        return True

    def _take_body(self, data: bytes) -> None:
        """More of the body of such a request, and perhaps what the client sent ahead after it."""
        plane, size, missing = self._plane, len(data), self._missing
        if size > missing:
            self._ahead += data[missing:]
            data, size = data[:missing], missing
        try:
            plane.hold(size)
        except Refused as refusal:
            self._refusal = refusal
            self._stop_reading()
            return
        self._body.append(data)
        self._body_bytes += size
        self._missing = missing - size
        if size < missing:
            self._bound_body(plane.now())
            return
        head, tenant, content = self._head, self._tenant, b"".join(self._body)
        assert head is not None
        self._begin_head()
        self._reading = _IDLE
        self._run(head, tenant, content, True)
        if self._ahead:
            self._next()

    def _bound_body(self, now: float) -> None:
        """Neither a body that stands still nor one that trickles may be held for ever, nor one in crumbs cost
        more than its bytes."""
        latest = self._body_began + self._body_bytes / _LEAST_RATE
        self.deadline = self._plane.limits.idle_s + (now if now < latest else latest)
        if len(self._body) - self._joined > _PIECES:
            self._body[self._joined :] = [b"".join(self._body[self._joined :])]
            self._joined += 1

    # --- reading all others, with the parser --------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        before = self._reading
        if before is not _BODY:
            self._reading = _HEAD
            self._head_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _StopError):
                raise
        except httptools.HttpParserError as error:
            self._refusal = Refused(ErrorKind.BAD_REQUEST, f"malformed HTTP request: {error}")
        else:
            reading = self._reading
            if reading is _BODY:
                now = self._plane.now()
                first = before is not _BODY or bool(self._queue)
                if first:
                    self._body_began = now
                    self._joined = 0
                self._on_part_of_body(len(data), first=first)
                self._bound_body(now)
            elif reading is _HEAD:
                if before is not _HEAD:
                    self.deadline = self._plane.now() + self._plane.limits.head_s
                    self._head_shared = 0
                    if self._queue:
                        # How much of this read is the head's is not known before the head is whole.
                        self._head_bytes = self._head_shared = len(data)
                if self._head_bytes - self._head_shared > self._plane.limits.head:
                    self._refusal = self._head_too_large()
        if self._refusal is not None:
            self._stop_reading()

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                # An offer that is not taken up: the parser takes it that HTTP/1.1 is over, and it is not.
                self._parser = httptools.HttpRequestParser(self)
                rest = memoryview(rest)[upgrade.args[0] :]
            else:
                return

    def _stop_reading(self) -> None:
        """The request that is being read is refused."""
        self._reading = Reading.NOTHING
        self._plane.give_back(self._body_bytes)
        self._body = []
        self._body_bytes = 0
        self._missing = 0

    def _on_part_of_body(self, size: int, *, first: bool) -> None:
        """A read of `size` bytes ended within a body; `first` = the body began in it. Bounds what is no body
        and so counts against no other limit: endless chunk extensions and trailers."""
        gained = self._body_bytes - self._counted
        self._counted = self._body_bytes
        limit = self._plane.limits.head
        if first:
            self._spare = limit
        else:
            self._spare = min(limit, self._spare - (size - gained) + gained * _CHUNKING)
            if self._spare < 0:
                self._refusal = HttpRefused(
                    413,
                    f"chunk extensions or trailers are over {limit} bytes (limits.head)",
                    code="chunks_too_large",
                )

    def _head_too_large(self) -> Refused:
        if len(self._url) > MAX_TARGET:
            return target_too_long()
        return HttpRefused(
            431,
            f"the request head is over {self._plane.limits.head} bytes (limits.head)",
            code="head_too_large",
        )

    def on_message_begin(self) -> None:
        # Its first byte may come long before any of its target: the parser has begun, and must go on.
        self._reading = _HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is _BODY:
            return  # a trailer: nothing in it is for a router
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        plane = self._plane
        try:
            if self._head_bytes > plane.limits.head or self._queue:
                # One read can hold more than this head, so it is measured before it is refused.
                size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
                if size > plane.limits.head:
                    raise self._head_too_large()
            head = plane.heads.read(
                self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers
            )
            if head.has_body:
                # Before the body, which nobody without a key may make the router hold.
                self._tenant = plane.tenant_of(head)
                if head.length > plane.limits.body:
                    raise self._body_too_large()
                if head.expects_continue:
                    self._continue()
        except Refused as refusal:
            self._refusal = refusal
            raise _StopError from None
        self._head = head
        self._reading = _BODY

    def _body_too_large(self) -> Refused:
        return HttpRefused(
            413,
            f"the request body is over {self._plane.limits.body} bytes (limits.body)",
            code="body_too_large",
        )

    def _continue(self) -> None:
        if self._exchange is None and not self._queue and self._transport is not None:
            self.write(INTERIM)

    def on_body(self, piece: bytes) -> None:
        size = len(piece)
        try:
            if self._body_bytes + size > self._plane.limits.body:
                raise self._body_too_large()
            self._plane.hold(size)
        except Refused as refusal:
            self._refusal = refusal
            raise _StopError from None
        self._body_bytes += size
        self._body.append(piece)

    def on_message_complete(self) -> None:
        head = self._head
        if head is None:
            return  # refused at its head
        body = self._body
        content = body[0] if len(body) == 1 else b"".join(body)
        self._queue.append((head, self._tenant, content, self._parser.should_keep_alive()))
        self._begin_head()
        self._reading = _IDLE

    # --- running requests ---------------------------------------------------------------------------

    def _next(self) -> None:
        """Run the requests that are whole, one after the other; refuse once the good ones are done."""
        if self._looping:
            return
        self._looping = True
        try:
            self._run_queue()
        finally:
            self._looping = False

    def _run_queue(self) -> None:
        limits = self._plane.limits
        while self._exchange is None and self._transport is not None:
            if self._reading is Reading.NOTHING and self._refusal is None and not self._queue:
                return
            if self._queue:
                self._run(*self._queue.popleft())
            elif self._refusal is not None:
                self._refuse(self._refusal)
                return
            elif self._ahead:
                ahead, self._ahead = bytes(self._ahead), bytearray()
                if self._read_paused:
                    self._read_paused = False
                    self._transport.resume_reading()
                self._feed(ahead)
            elif self._eof:
                self._close()
                return
            else:
                limit = limits.head_s if self._reading is Reading.HEAD else limits.idle_s
                self.deadline = self._plane.now() + limit
                return

    def _run(self, head: Head, tenant: TenantId | None, content: bytes, keep_alive: bool) -> None:
        self.keep_alive = keep_alive and not self._plane.stopping
        self.deadline = _NEVER
        total_s = self._plane.limits.total_s
        if total_s is not None:
            self._latest = self._plane.now() + total_s
        exchange = self._exchange = Exchange(self._plane, self, head, tenant, content)
        try:
            exchange.start()
        except Exception:  # noqa: BLE001 - one request's fault must not cost the others their connection
            _log.exception("a request failed in the router itself")
            exchange.fault()

    def _turn_away(self) -> None:
        """One client too many: say so if it can still hear it, and close at once, since every open file is
        wanted for those who are being served."""
        self._reading = Reading.NOTHING
        self._write_refusal(
            Refused(
                ErrorKind.SHORTAGE,
                f"the router has {self._plane.limits.clients} clients, as many as its limit of open files"
                " lets it serve; try again shortly",
                retry_after_s=1.0,
            )
        )
        self._close()

    def _refuse(self, refusal: Refused) -> None:
        """Answer what could not be read as a request, and close: where it ends is in doubt."""
        self._refusal = None
        self._write_refusal(refusal)
        self._linger()

    def _write_refusal(self, refusal: Refused) -> None:
        self._plane.count_error(refusal)
        path = self._head.path if self._head is not None else self._url.decode("latin-1")
        body = body_of(refusal, anthropic=path.startswith("/v1/messages"))
        self.write(
            b"%bcontent-type: application/json\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status_line(status_of(refusal)), headers_of(refusal), len(body), body)
        )

    def _linger(self) -> None:
        """Say that no more will be sent, and read on for a moment so that the answer is not lost."""
        self._reading = Reading.NOTHING
        if self._transport is None:
            return
        self.deadline = self._plane.now() + _LINGER_S
        if self._transport.can_write_eof():
            self._plane.outbox.flush()
            self._transport.write_eof()
        # TLS cannot say it: there the answer's own end does, and the client or the deadline closes.

    def _close(self) -> None:
        """Close once the client has taken what it was sent; the sweep sees to it that it takes it."""
        if self._transport is not None and not self._closing:
            self._plane.outbox.flush()
            self._begin_close()
            # It may be closing already, at its client's farewell: closed once more, asyncio's TLS would come
            # apart before the connection is lost.
            if not self._transport.is_closing():
                self._transport.close()

    def _begin_close(self) -> None:
        self._closing = True
        self._unsent = -1

    def stop(self) -> None:
        """The router stops: close when nothing runs, or after the request that is arriving or in progress."""
        self.keep_alive = False
        if self._exchange is None and self._reading not in (_HEAD, _BODY):
            self._close()

    def cut_short(self) -> None:
        """The router waits no longer: answer a request that is still arriving, and end the answer in progress
        with what the client can understand."""
        if self._exchange is not None:
            self._exchange.cut_short()
        elif self._reading is _HEAD or self._reading is _BODY:
            message = "the router is stopping and cannot wait for the request; send it again"
            self._refusal = Refused(ErrorKind.STOPPING, message, retry_after_s=1.0)
            self._stop_reading()
            self._next()

    def given_up_on(self, replica: ReplicaId, why: str) -> None:
        """A replica answers nobody any more."""
        if self._exchange is not None:
            self._exchange.given_up_on(replica, why)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- for the exchange ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes to the client; dropped if it has gone."""
        if self._transport is not None:
            self._plane.outbox.write(self._transport, data)

    def await_answer(self) -> None:
        """A replica has the request: the time to its first byte runs."""
        self.deadline = self._plane.now() + self._plane.limits.first_byte_s
        self._progress_seen = self.progress

    def finished(self, *, keep: bool) -> None:
        """The exchange is over."""
        self._exchange = None
        if self._transport is None:
            return
        # The router may have begun to stop after the head went out and promised more.
        if not (keep and self.keep_alive):
            self._close_after_answer()
        elif self._queue or self._ahead or self._eof or self._reading is not _IDLE:
            self._next()
        else:
            self.deadline = self._plane.now() + self._plane.limits.idle_s

    def _close_after_answer(self) -> None:
        self._drop_queue()
        self._refusal = None
        if self._ahead or self._reading is not Reading.IDLE:
            self._linger()
        else:
            self._close()

    def _drop_queue(self) -> None:
        for _, _, content, _ in self._queue:
            self._plane.give_back(len(content))
        self._queue.clear()

    # --- time ---------------------------------------------------------------------------------------

    def on_sweep(self, now: float) -> None:
        """Called a few times a second: act on what took too long."""
        if (self._closing or self.write_paused) and self._stands_still(now):
            self.abort()
            return
        if self._exchange is not None:
            if self._eof:
                self._check_departure()
            if now >= self._latest:
                self._exchange.timed_out(
                    f"the answer was not complete in {self._plane.limits.total_s:g} s (limits.total)",
                    Outcome.OVER_LIMIT,
                )
                return
            if self.deadline != _NEVER and (self.progress != self._progress_seen or self.write_paused):
                # The answer moves, or it is the client that reads slowly. Noted at every sweep: one that
                # moved just after its time began must not be given all of it once more.
                self._progress_seen = self.progress
                self.deadline = now + self._plane.limits.first_byte_s
        if self.deadline > now or self._transport is None or self._closing:
            return
        if self._exchange is not None:
            self._exchange.timed_out(
                f"nothing came for {self._plane.limits.first_byte_s:g} s (limits.first_byte)"
            )
        elif self._reading is Reading.HEAD or self._reading is Reading.BODY:
            what = "head" if self._reading is Reading.HEAD else "body"
            self._refusal = HttpRefused(408, f"the request {what} did not arrive in time", code="timeout")
            self._stop_reading()
            self._next()
        else:
            self._close()

    def _stands_still(self, now: float) -> bool:
        """Whether the client has taken nothing of what it was sent for as long as it may be idle."""
        if self._transport is None:
            return False
        unsent = self._transport.get_write_buffer_size() + unacknowledged(self._socket)
        if unsent != self._unsent:
            self._unsent = unsent
            self._unsent_since = now
        return now - self._unsent_since >= self._plane.limits.idle_s
