"""The side that listens: authenticates whoever dials, and serves what a `Provider` holds.

One connection's troubles are its own. Before the other side has shown that it knows the secret, it gets a
few small messages and seconds, and cannot make anything be allocated, looked up or hashed.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

from router.base.system import naming, system_words
from router.base.tasks import TaskOwner
from router.kv import messages as m
from router.kv.auth import AuthFault, Listening
from router.kv.channel import Channel
from router.kv.keys import BlockHash, KeyFault, Namespace, unpack_hashes
from router.kv.wire import Limits, Type, WireFault

_log = logging.getLogger(__name__)

GREETING_S: Final = 3.0
"""To show that the secret is known."""

_UNKNOWN: Final = 64
_CONNECTIONS: Final = 4096
_SILENT_S: Final = 30.0
_AT_ONCE: Final = 256
_REASONS: Final = {
    "secret": "secret",
    "greeting": "greeting",
    "closed": "lost",
    "the other side hung up": "lost",
    "the other side speaks": "version",
}
"""How a connection's end is counted that never was accepted: strangers must not invent reasons."""
_AHEAD: Final = 4 << 20
"""Bytes handed to a connection before those before them were sent: enough to keep it busy."""


class Lent(NamedTuple):
    """A block's bytes, for as long as they are not given back."""

    head: m.BlockHead
    payload: memoryview
    give_back: Callable[[], None]


class Placed(NamedTuple):
    """Room for a block that is coming."""

    target: memoryview
    keep: Callable[[int], str]
    """All of it is there, with this checksum: keep it. Says what became of it."""
    give_up: Callable[[], None]
    """It will not be complete."""


class Provider(Protocol):
    """Who is served from. Everything but `lend` and `prefetch` answers at once."""

    @property
    def spaces(self) -> Sequence[Namespace]: ...

    def learn(self, spaces: Sequence[Namespace]) -> None:
        """Namespaces that somebody who dialled has."""
        ...

    def query(self, space: bytes, tenant: str, hashes: Sequence[BlockHash]) -> int:
        """How many from the first on; they are kept for a moment."""
        ...

    async def lend(self, space: bytes, tenant: str, hash_: BlockHash) -> Lent | None:
        """The block, or `None` where it is not there (any more)."""
        ...

    def wanted(self, offer: m.OfferBlocks) -> bytes:
        """A byte for each block: whether it would be kept."""
        ...

    def place(self, head: m.BlockHead, size: int) -> Placed | str:
        """Room for the block, or why there is none."""
        ...

    def suspect(self, space: bytes, tenant: str, hash_: BlockHash) -> None:
        """Somebody received this block damaged."""
        ...

    def chain(self, tenant: str, session: str) -> tuple[list[BlockHash], int]:
        """A session's blocks, and how many of the first are system blocks."""
        ...

    async def prefetch(self, wish: m.Prefetch) -> m.Done: ...

    def release(self, tenant: str, session: str) -> m.Done: ...

    def changes(self, life: bytes, since: int) -> m.Changes: ...


class Server:
    """A listener and its connections."""

    def __init__(self, provider: Provider, *, name: str, secret: bytes, life: bytes, max_block: int) -> None:
        self.provider = provider
        self.name = name
        self.secret = secret
        self.life = life
        self.max_block = max_block
        self.tasks = TaskOwner()
        self.refused: dict[str, int] = {}
        """Connections turned away, by reason."""
        self.sent_bytes = 0
        self._listener: socket.socket | None = None
        self._served: set[_Served] = set()

    @property
    def port(self) -> int:
        """Where it listens, once `start` has returned."""
        assert self._listener is not None
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._served)

    def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((host, port))
            listener.listen(256)
        except OSError as error:
            listener.close()
            raise naming(f"{host}:{port}", error) from error
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def tell_spaces(self) -> None:
        """The provider's namespaces have changed."""
        for served in self._served:
            served.tell_spaces()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        for served in tuple(self._served):
            served.channel.close("closed")
        await self.tasks.close()

    def count_refusal(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def forget(self, served: "_Served") -> None:
        self._served.discard(served)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connected, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("cannot take a connection: %s", system_words(error))
            return
        unknown = sum(not served.known for served in self._served)
        if unknown >= _UNKNOWN or len(self._served) >= _CONNECTIONS:
            self.count_refusal("busy")
            connected.close()
            return
        connected.setblocking(False)
        self._served.add(_Served(self, connected))


class _Served:
    """A connection that somebody dialled."""

    def __init__(self, server: Server, connected: socket.socket) -> None:
        self._server = server
        self.channel = Channel(connected, self, Limits(m.MAX_META_UNKNOWN, 0))
        self._listening = Listening(server.secret, server.name)
        self._hello: m.Hello | None = None
        self._fetches: dict[int, asyncio.Task[object]] = {}
        self._placed: dict[int, Placed] = {}
        self._room = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        self._watch = loop.call_later(GREETING_S, self._too_slow)

    @property
    def known(self) -> bool:
        """Whether it has shown that it knows the secret."""
        return self._hello is not None

    def tell_spaces(self) -> None:
        if self._hello is not None:
            spaces = [space.as_dict() for space in self._server.provider.spaces]
            self.channel.send(Type.SPACES, 0, m.Spaces(spaces[:64]))

    # What the channel tells.

    def on_frame(self, kind: Type, ident: int, meta: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        try:
            message = m.read(kind, meta)
            if self._hello is None:
                self._greeting(kind, message)
            else:
                self._request(kind, ident, message)
        except AuthFault as error:
            self._turn_away(error.reason, str(error))
        except KeyFault as error:
            raise WireFault(str(error)) from None

    def on_payload(self, kind: Type, ident: int, meta: bytes, size: int) -> memoryview | None:
        if kind is not Type.PUT or self._hello is None:
            raise WireFault(f"{kind.name} with a payload")
        placed = self._server.provider.place(m.unpack(m.BlockHead, meta), size)
        if isinstance(placed, str):
            self.channel.send(Type.KEPT, ident, m.Kept(placed))
            return None
        self._placed[ident] = placed
        return placed.target

    def on_progress(self, _ident: int, _count: int) -> None:
        self._heard = asyncio.get_running_loop().time()

    def on_landed(self, _kind: Type, ident: int, _meta: bytes, total: int) -> None:
        placed = self._placed.pop(ident)
        self.channel.send(Type.KEPT, ident, m.Kept(placed.keep(total)))

    def on_lost(self, reason: str) -> None:
        self._watch.cancel()
        if self._hello is None:
            self._server.count_refusal(_REASONS.get(reason.partition(" version")[0], "message"))
        for placed in self._placed.values():
            placed.give_up()
        self._placed.clear()
        for task in self._fetches.values():
            task.cancel()
        self._room.set()
        self._server.forget(self)

    def _greeting(self, kind: Type, message: m.Message) -> None:
        match message:
            case m.Hello():
                self.channel.send(Type.CHALLENGE, 0, self._listening.challenge(message))
            case m.Proof():
                self._hello = self._listening.verify(message)
                self.channel.limit(Limits(m.MAX_META, self._server.max_block))
                self.channel.send(Type.WELCOME, 0, m.Welcome(self._server.life))
                self.tell_spaces()
            case _:
                raise WireFault(f"{kind.name} in the place of a greeting")

    def _turn_away(self, reason: str, text: str) -> None:
        _log.warning("a connection is turned away: %s", text)
        self.channel.send(Type.REFUSED, 0, m.Refused(reason, text[:1024]))
        self.channel.close(reason)

    def _too_slow(self) -> None:
        loop = asyncio.get_running_loop()
        if self._hello is None:
            self.channel.close("greeting")
        elif loop.time() - self._heard > _SILENT_S:
            self.channel.close("silent")
        else:
            self._watch = loop.call_later(_SILENT_S / 2, self._too_slow)

    def _request(self, kind: Type, ident: int, message: m.Message) -> None:
        provider = self._server.provider
        answer: tuple[Type, m.Message] | None = None
        match message:
            case m.Empty() if kind is Type.PING:
                answer = Type.PONG, message
            case m.Empty() if kind is Type.CANCEL:
                if (task := self._fetches.pop(ident, None)) is not None:
                    task.cancel()
            case m.Blocks() if kind is Type.QUERY:
                found = provider.query(message.space, message.tenant, list(unpack_hashes(message.hashes)))
                answer = Type.FOUND, m.FoundBlocks(found)
            case m.Blocks():
                self._spawn(ident, self._send_blocks(ident, message, list(unpack_hashes(message.hashes))))
            case m.Spaces():
                provider.learn([Namespace.from_dict(space) for space in message.spaces])
            case m.OfferBlocks():
                answer = Type.WANTED, m.Wanted(provider.wanted(message))
            case m.OfBlock():
                provider.suspect(message.space, message.tenant, BlockHash(message.hash))
            case m.OfSession() if kind is Type.SESSION:
                hashes, system = provider.chain(message.tenant, message.session)
                answer = Type.CHAIN, m.Chain(b"".join(hashes), system)
            case m.OfSession():
                answer = Type.DONE, provider.release(message.tenant, message.session)
            case m.Prefetch():
                self._spawn(ident, self._prefetch(ident, message))
            case m.Holdings():
                answer = Type.CHANGES, provider.changes(message.life, message.since)
            case _:
                raise WireFault(f"{kind.name} is no request")
        if answer is not None:
            self.channel.send(answer[0], ident, answer[1])

    def _spawn(self, ident: int, work: Coroutine[Any, Any, object]) -> None:
        if ident in self._fetches:
            work.close()
            raise WireFault("one number for two requests")
        if len(self._fetches) >= _AT_ONCE:
            work.close()
            self.channel.send(Type.REFUSED, ident, m.Refused("busy", "too many requests on one connection"))
            return
        task = self._server.tasks.spawn(work, name=f"kv request {ident}")
        self._fetches[ident] = task
        task.add_done_callback(lambda _: self._fetches.pop(ident, None))

    async def _send_blocks(self, ident: int, asked: m.Blocks, hashes: list[BlockHash]) -> None:
        sent, reason = 0, "done"
        for hash_ in hashes:
            while self.channel.unsent > _AHEAD:
                self._room.clear()
                await self._room.wait()
            if not self.channel.is_open:
                return
            lent = await self._server.provider.lend(asked.space, asked.tenant, hash_)
            if lent is None:
                reason = "gone"
                break
            self._server.sent_bytes += lent.payload.nbytes
            self.channel.send(Type.BLOCK, ident, lent.head, lent.payload, self._given_back(lent))
            sent += 1
        self.channel.send(Type.END, ident, m.EndOf(sent, reason))

    def _given_back(self, lent: Lent) -> Callable[[], None]:
        def sent() -> None:
            lent.give_back()
            self._room.set()

        return sent

    async def _prefetch(self, ident: int, wish: m.Prefetch) -> None:
        self.channel.send(Type.DONE, ident, await self._server.provider.prefetch(wish))
