"""A connection that was dialled: to another agent, to a gateway, or from the router to an agent.

Only asks; what the other side holds and does is its own business. A `Remote` has one life: who keeps it
makes a new one after it was lost.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from router.base.system import system_words
from router.kv import messages as m
from router.kv.auth import AuthFault, Dialling
from router.kv.channel import Channel
from router.kv.keys import KeyFault, Namespace
from router.kv.wire import Limits, Type, WireFault

DIAL_S: Final = 3.0
"""To be connected and accepted."""

_PING_S: Final = 1.0
_UNANSWERED: Final = 3
"""Pings after which, with nothing heard, the connection is as good as cut: its other end may be gone without
a word. Counted, since a process that was held up for seconds has answers waiting that it has not read."""

T = TypeVar("T", bound=m.Message)


class RemoteFault(Exception):
    """What was asked cannot be had from there. `reason`: `lost`, `timeout`, or what a REFUSED says."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason


class Receiver(Protocol):
    """Who takes the blocks of a fetch."""

    def place(self, head: m.BlockHead, size: int) -> memoryview | None:
        """Where the next block's bytes go; `None`: nowhere, there is no room or no use for it."""
        ...

    def progress(self, count: int) -> None:
        """So many bytes more have come."""
        ...

    def landed(self, head: m.BlockHead, total: int) -> None:
        """The block that was placed is complete; `total` is the checksum of what came."""
        ...

    def ended(self, blocks: int, reason: str) -> None:
        """Nothing more comes: the source sent so many, and says why not more. Called once."""
        ...


class Remote:
    """One connection, authenticated both ways."""

    def __init__(self, connected: socket.socket, dialling: Dialling, max_block: int) -> None:
        self._channel = Channel(connected, self, Limits(m.MAX_META_UNKNOWN, 0))
        self._max_block = max_block
        self._dialling = dialling
        self._idents = itertools.count(1)
        self._waiting: dict[int, tuple[type[m.Message], asyncio.Future[m.Message]]] = {}
        self._receivers: dict[int, Receiver] = {}
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepted.add_done_callback(_retrieved)
        self._unanswered = 0
        self._ping = asyncio.get_running_loop().call_later(_PING_S, self._keep_alive)
        self.life = b""
        self.spaces: tuple[Namespace, ...] = ()
        """What the other side holds, or uses."""
        self.on_lost_call: Callable[[str], None] | None = None
        self.on_spaces_call: Callable[[], None] | None = None
        self.lost: str | None = None
        """Why it is over."""

    @property
    def name(self) -> str | None:
        """What the other side calls itself."""
        return self._dialling.peer_name

    @property
    def bytes_in(self) -> int:
        return self._channel.bytes_in

    @property
    def bytes_out(self) -> int:
        return self._channel.bytes_out

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._channel.unsent

    async def call(self, kind: Type, message: m.Message, answer: type[T], timeout_s: float) -> T:
        """Ask and wait for the answer. Raises `RemoteFault`."""
        return await self._call(kind, message, answer, timeout_s, None)

    async def put(
        self, head: m.BlockHead, payload: memoryview, timeout_s: float, sent: Callable[[], None]
    ) -> m.Kept:
        """Send a block to be kept. Raises `RemoteFault`. `sent`: its memory is free, whatever comes of it."""
        return await self._call(Type.PUT, head, m.Kept, timeout_s, (payload, sent))

    def fetch(self, blocks: m.Blocks, receiver: Receiver) -> int:
        """Have these blocks sent. The number is for `cancel`."""
        ident = next(self._idents)
        if self.lost is not None:
            receiver.ended(0, "lost")
            return ident
        self._receivers[ident] = receiver
        self._channel.send(Type.FETCH, ident, blocks)
        return ident

    def cancel(self, ident: int) -> None:
        """The rest of a fetch is not wanted; its receiver hears no more, and nothing is written for it."""
        if self._receivers.pop(ident, None) is not None:
            self._channel.redirect(ident)
            self._channel.send(Type.CANCEL, ident, m.Empty())

    def tell(self, kind: Type, message: m.Message) -> None:
        """Say what needs no answer."""
        self._channel.send(kind, 0, message)

    def close(self, reason: str = "closed") -> None:
        """End it. May be called again."""
        self._channel.close(reason)

    async def _call(
        self, kind: Type, message: m.Message, answer: type[T], timeout_s: float,
        payload: tuple[memoryview, Callable[[], None]] | None,
    ) -> T:  # fmt: skip
        if self.lost is not None:
            if payload is not None:
                payload[1]()
            raise RemoteFault("lost", self.lost)
        ident = next(self._idents)
        future: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = (answer, future)
        try:
            self._channel.send(kind, ident, message, *(payload or ()))
            async with asyncio.timeout(timeout_s):
                found = await future
        except TimeoutError:
            raise RemoteFault("timeout", f"no answer to {kind.name} in {timeout_s} s") from None
        finally:
            self._waiting.pop(ident, None)
        assert isinstance(found, answer)
        return found

    def _keep_alive(self) -> None:
        if self._unanswered >= _UNANSWERED:
            self.close("no answer")
            return
        self._unanswered += 1
        if self._accepted.done():
            self._channel.send(Type.PING, 0, m.Empty())
        self._ping = asyncio.get_running_loop().call_later(_PING_S, self._keep_alive)

    # What the channel tells.

    def on_frame(self, kind: Type, ident: int, meta: bytes) -> None:
        self._unanswered = 0
        message = m.read(kind, meta)
        if not self._accepted.done():
            self._greeting(kind, message)
            return
        match message:
            case m.EndOf():
                if (receiver := self._receivers.pop(ident, None)) is not None:
                    receiver.ended(message.blocks, message.reason)
            case m.Spaces():
                self.spaces = _namespaces(message)
                if self.on_spaces_call is not None:
                    self.on_spaces_call()
            case m.Empty() if kind is Type.PONG:
                pass
            case m.Refused():
                self._refused(ident, message)
            case _:
                self._answered(kind, ident, message)

    def on_payload(self, kind: Type, ident: int, meta: bytes, size: int) -> memoryview | None:
        if kind is not Type.BLOCK:
            raise WireFault(f"{kind.name} with a payload")
        receiver = self._receivers.get(ident)
        return None if receiver is None else receiver.place(m.unpack(m.BlockHead, meta), size)

    def on_progress(self, ident: int, count: int) -> None:
        self._unanswered = 0
        if (receiver := self._receivers.get(ident)) is not None:
            receiver.progress(count)

    def on_landed(self, _kind: Type, ident: int, meta: bytes, total: int) -> None:
        if (receiver := self._receivers.get(ident)) is not None:
            receiver.landed(m.unpack(m.BlockHead, meta), total)

    def on_lost(self, reason: str) -> None:
        self.lost = reason
        self._ping.cancel()
        if not self._accepted.done():
            self._accepted.set_exception(RemoteFault("lost", reason))
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(RemoteFault("lost", reason))
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver.ended(0, "lost")
        if self.on_lost_call is not None:
            self.on_lost_call(reason)

    def _greeting(self, kind: Type, message: m.Message) -> None:
        try:
            match message:
                case m.Challenge():
                    self._channel.send(Type.PROOF, 0, self._dialling.answer(message))
                case m.Welcome() if self._dialling.peer_name is not None:
                    self.life = message.life
                    self._channel.limit(Limits(m.MAX_META, self._max_block))
                    self._accepted.set_result(None)
                case m.Refused():
                    self._accepted.set_exception(RemoteFault(message.reason, message.text))
                case _:
                    raise WireFault(f"{kind.name} in the place of a greeting")
        except AuthFault as error:
            self._accepted.set_exception(RemoteFault(error.reason, str(error)))

    def _refused(self, ident: int, message: m.Refused) -> None:
        fault = RemoteFault(message.reason, message.text)
        if (waiting := self._waiting.get(ident)) is not None:
            if not waiting[1].done():
                waiting[1].set_exception(fault)
        elif (receiver := self._receivers.pop(ident, None)) is not None:
            receiver.ended(0, message.reason)

    def _answered(self, kind: Type, ident: int, message: m.Message) -> None:
        waiting = self._waiting.get(ident)
        if waiting is None:
            return  # it came too late
        shape, future = waiting
        if not isinstance(message, shape):
            raise WireFault(f"{kind.name} is no answer to that")
        if not future.done():
            future.set_result(message)


async def dial(host: str, port: int, *, secret: bytes, name: str, role: m.Role, max_block: int) -> Remote:
    """Connect and authenticate. Raises `RemoteFault` with the reason, within `DIAL_S` seconds."""
    loop = asyncio.get_running_loop()
    remote: Remote | None = None
    accepted = False
    try:
        async with asyncio.timeout(DIAL_S):
            connected = await _connect(loop, host, port)
            dialling = Dialling(secret, name, role)
            remote = Remote(connected, dialling, max_block)
            remote._channel.send(Type.HELLO, 0, dialling.begin())
            await remote._accepted
            accepted = True
            return remote
    except TimeoutError:
        raise RemoteFault("timeout", f"no answer in {DIAL_S:.0f} s") from None
    except OSError as error:
        raise RemoteFault("lost", system_words(error)) from None
    finally:
        if remote is not None and not accepted:
            remote.close("not accepted")


async def _connect(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    last: OSError = OSError(f"no address for {host}")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            last = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise last


def _namespaces(message: m.Spaces) -> tuple[Namespace, ...]:
    try:
        return tuple(map(Namespace.from_dict, message.spaces))
    except KeyFault as error:
        raise WireFault(f"a namespace's {error}") from None


def _retrieved(future: "asyncio.Future[None]") -> None:
    """Nobody may be waiting any more, and that is no fault."""
    if not future.cancelled():
        future.exception()
