"""The engines beside an agent: their schedulers and workers on the unix socket, their loads and their saves.

Turns messages into pulls and stored blocks. What a connection held is given back when it is lost. Knows
nothing of the network: what it may ask of the agent is in `Host`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, cast

from router.base.clock import Clock
from router.base.system import naming
from router.base.tasks import TaskOwner
from router.kv import messages as m
from router.kv.arena import ArenaFault, Handle, StaleHandle, pack_handles, unpack_handles
from router.kv.checksum import checksum
from router.kv.keys import BlockHash, BlockKey, KeyFault, Namespace, unpack_hashes
from router.kv.local import LEASE_S
from router.kv.pulling import Pull
from router.kv.shelf import Shelf
from router.kv.sources import Source
from router.kv.store import Appended, Block, Zone
from router.kv.wire import Decoder, Type, WireFault, encode

_log = logging.getLogger(__name__)

_UNREAD: Final = 32 << 20
_RESERVED_SHARE: Final = 4
"""One in so many slots may be reserved for saving, all engines together."""
_ASKS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Prospect:
    """What an engine's request may have."""

    tenant: str
    session: str
    keys: Sequence[BlockKey]
    local: int
    blocks: int
    sources: Sequence[Source]
    """The best first, for what is not local."""
    stall_s: float
    deadline_s: float
    system_blocks: int
    reason: str


class Host(Protocol):
    """The agent, as its engines' connections see it."""

    clock: Clock
    tasks: TaskOwner

    async def shelf_for(
        self, space: Namespace, part_bytes: int, parts: int, *, alone: bool
    ) -> Shelf | m.Refused:
        """The shelf for blocks of that namespace. `alone`: no other engine uses the one there is."""
        ...

    async def prospect(self, ask: m.Ask) -> Prospect:
        """What a prefix's request may have."""
        ...

    async def pull(self, pull: Pull) -> str:
        """Bring it; how it ended."""
        ...

    def stored(self, block: Block[Handle]) -> None:
        """A block of an engine is new here."""
        ...

    def dropped(self, count: int) -> None:
        """So many blocks of an engine could not be kept."""
        ...


@dataclass(slots=True)
class _Load:
    pull: Pull
    shelf: Shelf
    """Where its blocks lie, whatever becomes of the agent's."""
    workers: dict[int, int]
    """Rank → how many blocks it has copied, for those that still want this load."""
    handles: dict[int, Handle] = field(default_factory=dict)
    """Block → slot, until every worker has copied it."""
    told: int = 0
    fresh: list[Handle] = field(default_factory=list)
    """Landed, and not told yet."""
    ended: bool = False


@dataclass(slots=True)
class _Saving:
    """A reserved slot."""

    ranks: set[int] = field(default_factory=set)
    """That have written."""
    block: tuple[BlockKey, BlockHash, Zone, str] | None = None
    """Key, parent, zone and session, once the scheduler has named them."""


class _Engine:
    """All that belongs to one engine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scheduler: _Connection | None = None
        self.workers: dict[int, _Connection] = {}
        self.asks: dict[str, Prospect] = {}
        self.loads: dict[int, _Load] = {}
        self.saving: dict[Handle, _Saving] = {}
        self.awaited: dict[BlockKey, list[Handle]] = {}
        """Key of a block that is not complete → complete blocks that follow it."""
        self.unfinished: set[BlockKey] = set()

    @property
    def is_empty(self) -> bool:
        return self.scheduler is None and not self.workers


class EngineHub:
    """The unix socket and the engines on it."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._server: asyncio.AbstractServer | None = None
        self._engines: dict[str, _Engine] = {}
        self._connections: set[_Connection] = set()
        self._complete: deque[tuple[_Engine, Handle]] = deque()
        self._hashing = False
        self._closed: asyncio.Future[None] | None = None
        self.shelf: Shelf | None = None
        self.loads_short = 0
        """Loads that ended before all was there."""

    @property
    def held_blocks(self) -> int:
        """Blocks on their way into an engine: giving them up would free nothing yet."""
        return sum(len(load.handles) for engine in self._engines.values() for load in engine.loads.values())

    @property
    def engines(self) -> int:
        return len(self._engines)

    async def start(self) -> None:
        """Listen. Raises `OSError`, also where another agent listens there."""
        if self._path.is_socket():
            await _remove_dead_socket(self._path)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Connection(self), str(self._path)
            )
            self._path.chmod(0o600)
        except OSError as error:
            raise naming(str(self._path), error) from error

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._closed = asyncio.get_running_loop().create_future()
            await self._closed

    def tell_stats(self, figures: Mapping[str, float]) -> None:
        """To every scheduler."""
        for engine in self._engines.values():
            if engine.scheduler is not None:
                engine.scheduler.say(Type.STATS, m.Stats(dict(figures)))

    def tell_gone(self, blocks: Sequence[Block[Handle]]) -> None:
        """These are not held any more."""
        by_tenant: dict[str, list[bytes]] = {}
        for block in blocks:
            by_tenant.setdefault(block.key.tenant, []).append(block.key.hash)
        for engine in self._engines.values():
            if engine.scheduler is not None:
                for tenant, hashes in by_tenant.items():
                    engine.scheduler.say(Type.GONE, m.Gone(tenant, b"".join(hashes)))

    # Connections.

    def opened(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def lost(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if self._closed is not None and not self._connections and not self._closed.done():
            self._closed.set_result(None)
        engine, attach = connection.engine, connection.attach
        if engine is None or attach is None:
            return
        if engine.scheduler is connection:
            engine.scheduler = None
            self._scheduler_lost(engine)
        elif engine.workers.get(attach.rank) is connection:
            del engine.workers[attach.rank]
            self._worker_lost(engine, attach.rank)
        if engine.is_empty:
            self._engines.pop(engine.name, None)

    async def attach(self, connection: "_Connection", message: m.Attach) -> None:
        """An engine's side shows up: answer it with the arena, or with why not."""
        refused: m.Refused | None = None
        shelf: Shelf | None = None
        try:
            space = Namespace.from_dict(message.namespace)
            parts = _parts(space)
            if space.block_bytes != message.part_bytes * parts:
                raise KeyFault(f"block_bytes: {space.block_bytes} is not {parts} × {message.part_bytes}")
            if message.rank >= parts:
                raise KeyFault(f"ranks: {space.ranks} has no rank {message.rank}")
            alone = all(
                engine.name == message.engine and engine.is_empty for engine in self._engines.values()
            )
            found = await self._host.shelf_for(space, message.part_bytes, parts, alone=alone)
            if isinstance(found, m.Refused):
                refused = found
            else:
                shelf = found
        except KeyFault as error:
            refused = m.Refused("namespace", str(error)[:1024])
        except ArenaFault as error:
            refused = m.Refused("arena", str(error)[:1024])
        if connection.is_lost:
            return
        if refused is not None or shelf is None:
            assert refused is not None
            _log.warning("engine %s is not served: %s", message.engine, refused.text)
            connection.say(Type.REFUSED, refused)
            connection.end()
            return
        self.shelf = shelf
        engine = self._engines.setdefault(message.engine, _Engine(message.engine))
        old = engine.scheduler if message.role == "scheduler" else engine.workers.get(message.rank)
        if old is not None:
            old.end()
            self.lost(old)
            engine = self._engines.setdefault(message.engine, engine)
        connection.engine, connection.space = engine, space
        if message.role == "scheduler":
            engine.scheduler = connection
        else:
            engine.workers[message.rank] = connection
        connection.say(Type.ATTACHED, m.Attached(str(shelf.owner.path), shelf.owner.arena.identity))

    def request(self, connection: "_Connection", kind: Type, message: m.Message) -> None:
        """A message of a side that is attached. Raises `WireFault`, `KeyFault` or `ValueError`."""
        engine, attach = connection.engine, connection.attach
        assert engine is not None
        assert attach is not None
        match message:
            case m.Copied():
                self._copied(engine, attach.rank, message)
            case m.Abort():
                if (load := engine.loads.get(message.load)) is not None:
                    load.pull.cancel()
            case m.Handles() if kind is Type.WRITTEN:
                for handle in unpack_handles(message.handles):
                    self._written(engine, attach.rank, handle)
            case _ if attach.role == "worker":
                raise WireFault(f"{kind.name} is no message of a worker")
            case m.Ask():
                self._host.tasks.spawn(self._ask(engine, connection, message), name="kv ask")
            case m.OfRequest():
                engine.asks.pop(message.request, None)
            case m.Load():
                self._load(engine, message)
            case m.Reserve():
                connection.say(Type.SLOTS, m.Handles(pack_handles(self._reserve(engine, message.count))))
            case m.Handles() if kind is Type.DROP:
                self._drop(engine, unpack_handles(message.handles), late=False)
            case m.Store() if connection.space is not None:
                self._store(engine, connection.space, message)
            case _:
                raise WireFault(f"{kind.name} is no message of a scheduler")

    # Loading.

    async def _ask(self, engine: _Engine, connection: "_Connection", ask: m.Ask) -> None:
        found = await self._host.prospect(ask)
        if engine.scheduler is not connection:
            return
        engine.asks[ask.request] = found
        while len(engine.asks) > _ASKS:
            del engine.asks[next(iter(engine.asks))]
        limits = round(found.stall_s * 1000), round(found.deadline_s * 1000)
        answer = m.Answer(
            ask.request, found.blocks, found.local, found.tenant, *limits, found.system_blocks, found.reason
        )
        connection.say(Type.ANSWER, answer)

    def _load(self, engine: _Engine, message: m.Load) -> None:
        assert self.shelf is not None
        found = engine.asks.get(message.request)
        now = self._host.clock.now()
        keys = [] if found is None else found.keys[message.first : message.first + message.count]
        load = _Load(
            Pull(
                keys,
                [] if found is None else found.sources,
                lambda handles: self._landed(engine, message.load, handles),
                session="" if found is None else found.session,
                system_blocks=0 if found is None else max(0, found.system_blocks - message.first),
                stall_s=message.stall_ms / 1000,
                until=now + message.deadline_ms / 1000,
                now=now,
            ),
            self.shelf,
            dict.fromkeys(engine.workers, 0),
        )
        if message.load in engine.loads:
            raise WireFault("one number for two loads")
        engine.loads[message.load] = load
        if found is None:  # forgotten, or never asked
            load.pull.cancel()
        self._host.tasks.spawn(self._run(engine, message.load, load), name=f"kv load {message.load}")

    async def _run(self, engine: _Engine, number: int, load: _Load) -> None:
        reason = "internal"
        try:
            reason = await self._host.pull(load.pull)
        finally:
            load.ended = True
            self._tell_landed(engine, number, load)
            self.loads_short += reason not in {"done", "cancelled"}
            for rank in load.workers:
                if (worker := engine.workers.get(rank)) is not None:
                    worker.say(Type.ENDED, m.Ended(number, load.told, reason))
            self._settle(engine, number, load)

    def _landed(self, engine: _Engine, number: int, handles: list[Handle]) -> None:
        load = engine.loads[number]
        if not load.fresh:
            # Told together with what else lands in this turn of the loop.
            asyncio.get_running_loop().call_soon(self._tell_landed, engine, number, load)
        for handle in handles:
            load.handles[load.told + len(load.fresh)] = handle
            load.fresh.append(handle)

    def _tell_landed(self, engine: _Engine, number: int, load: _Load) -> None:
        if not load.fresh:
            return
        told = m.LandedBlocks(number, load.told, pack_handles(load.fresh))
        load.told += len(load.fresh)
        load.fresh = []
        for rank in load.workers:
            if (worker := engine.workers.get(rank)) is not None:
                worker.say(Type.LANDED, told)

    def _copied(self, engine: _Engine, rank: int, message: m.Copied) -> None:
        load = engine.loads.get(message.load)
        if load is None or rank not in load.workers:
            return
        if message.done:
            del load.workers[rank]
            if not load.workers:
                load.pull.cancel()
        else:
            load.workers[rank] = max(load.workers[rank], message.upto)
        self._settle(engine, message.load, load)

    def _settle(self, engine: _Engine, number: int, load: _Load) -> None:
        """Let go of what every worker has; of the load, once it is over for all."""
        copied = min(load.workers.values(), default=1 << 62)
        for at in [at for at in load.handles if at < copied]:
            load.shelf.owner.release(load.handles.pop(at))
        if load.ended and not load.workers:
            engine.loads.pop(number, None)

    # Saving.

    def _reserve(self, engine: _Engine, count: int) -> list[Handle]:
        shelf = self.shelf
        if shelf is None:
            return []
        reserved = sum(len(other.saving) for other in self._engines.values())
        room = shelf.owner.arena.slots // _RESERVED_SHARE - reserved
        handles: list[Handle] = []
        now = self._host.clock.now()
        while len(handles) < min(count, room) and (handle := shelf.slot(now, hard=False)) is not None:
            handles.append(handle)
            engine.saving[handle] = _Saving()
        return handles

    def _store(self, engine: _Engine, space: Namespace, message: m.Store) -> None:
        handles = unpack_handles(message.handles)
        hashes, parents = list(unpack_hashes(message.hashes)), list(unpack_hashes(message.parents))
        if not len(handles) == len(hashes) == len(parents):
            raise WireFault("STORE of unequal lists")
        zone = Zone(message.zone)
        for handle, hash_, parent in zip(handles, hashes, parents, strict=True):
            saving = engine.saving.get(handle)
            if saving is None or saving.block is not None:
                self._host.dropped(1)
                continue
            key = BlockKey(space.space, message.tenant, hash_)
            saving.block = key, parent, zone, message.session
            engine.unfinished.add(key)
            if (
                self.shelf is not None
                and (above := self.shelf.store.get(key._replace(hash=parent))) is not None
            ):
                # Not to be given up for the very block that follows it.
                self.shelf.store.lease([above], self._host.clock.now() + LEASE_S)
            self._check(engine, handle, saving)

    def _written(self, engine: _Engine, rank: int, handle: Handle) -> None:
        saving = engine.saving.get(handle)
        if saving is not None:
            saving.ranks.add(rank)
            self._check(engine, handle, saving)

    def _check(self, engine: _Engine, handle: Handle, saving: _Saving) -> None:
        shelf = self.shelf
        if saving.block is None or shelf is None or len(saving.ranks) < shelf.owner.arena.parts:
            return
        key, parent, _, _ = saving.block
        above = key._replace(hash=parent)
        if above in engine.unfinished and above != key:
            engine.awaited.setdefault(above, []).append(handle)
        else:
            self._complete.append((engine, handle))
            self._hash_soon()

    def _hash_soon(self) -> None:
        if self._complete and not self._hashing:
            self._hashing = True
            asyncio.get_running_loop().call_soon(self._hash_one)

    def _hash_one(self) -> None:
        """Keep one block that is complete. One a turn of the loop: hashing takes its time."""
        self._hashing = False
        engine, handle = self._complete.popleft()
        shelf = self.shelf
        saving = engine.saving.pop(handle, None)
        if saving is not None and saving.block is not None and shelf is not None:
            key, parent, zone, session = saving.block
            total = checksum(shelf.owner.arena.block(handle))
            now = self._host.clock.now()
            outcome = shelf.keep(key, parent, handle, total, zone=zone, session=session, now=now)
            shelf.owner.release(handle)
            if outcome is Appended.STORED and (block := shelf.store.get(key)) is not None:
                self._host.stored(block)
            elif outcome in {Appended.ORPHAN, Appended.QUOTA}:
                self._host.dropped(1)
                lacking = [key.hash, parent] if outcome is Appended.ORPHAN else [key.hash]
                if engine.scheduler is not None:
                    engine.scheduler.say(Type.GONE, m.Gone(key.tenant, b"".join(lacking)))
            self._finish(engine, key)
        self._hash_soon()

    def _finish(self, engine: _Engine, key: BlockKey) -> None:
        """Nothing more is awaited of this block: those that follow it have their turn."""
        engine.unfinished.discard(key)
        for handle in engine.awaited.pop(key, ()):
            self._complete.append((engine, handle))
        self._hash_soon()

    def _drop(self, engine: _Engine, handles: Sequence[Handle], *, late: bool) -> None:
        shelf = self.shelf
        for handle in handles:
            saving = engine.saving.pop(handle, None)
            if saving is None or shelf is None:
                continue
            with suppress(StaleHandle):
                if late:
                    shelf.owner.release_late(handle, self._host.clock.now())
                else:
                    shelf.owner.release(handle)
            if saving.block is not None:
                self._host.dropped(1)
                self._finish(engine, saving.block[0])

    # Losing.

    def _scheduler_lost(self, engine: _Engine) -> None:
        engine.asks.clear()
        for load in engine.loads.values():
            load.pull.cancel()
        self._drop(engine, tuple(engine.saving), late=True)

    def _worker_lost(self, engine: _Engine, rank: int) -> None:
        for number, load in tuple(engine.loads.items()):
            if load.workers.pop(rank, None) is not None:
                if not load.workers:
                    load.pull.cancel()
                self._settle(engine, number, load)
        unwritten = [
            handle
            for handle, saving in engine.saving.items()
            if saving.block is not None and rank not in saving.ranks
        ]
        self._drop(engine, unwritten, late=True)


class _Connection(asyncio.Protocol):
    """One side of an engine."""

    def __init__(self, hub: EngineHub) -> None:
        self._hub = hub
        self._decoder = Decoder(m.MAX_META, None)
        self._transport: asyncio.Transport | None = None
        self.attach: m.Attach | None = None
        self.engine: _Engine | None = None
        self.space: Namespace | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio's
        self._hub.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                message = m.read(frame.type, frame.meta)
                if self.engine is not None:
                    self._hub.request(self, frame.type, message)
                elif isinstance(message, m.Attach) and self.attach is None:
                    self.attach = message
                    self._hub._host.tasks.spawn(self._hub.attach(self, message), name="kv attach")
                else:
                    raise WireFault(f"{frame.type.name} before ATTACHED")
        except (WireFault, ValueError) as error:
            _log.warning("an engine's connection is ended: %s", error)
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # lost is lost
        self._transport = None
        self._hub.lost(self)

    def say(self, kind: Type, message: m.Message) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode(kind, 0, m.pack(message), checksum=None))
        if self._transport.get_write_buffer_size() > _UNREAD:
            _log.warning("an engine does not read what it is told; its connection is ended")
            self._transport.abort()

    @property
    def is_lost(self) -> bool:
        return self._transport is None

    def abort(self) -> None:
        """Whatever is still to be said."""
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """After what was said to it."""
        if self._transport is not None:
            self._transport.close()


async def _remove_dead_socket(path: Path) -> None:
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        path.unlink(missing_ok=True)  # noqa: ASYNC240  # one system call, at start
        return
    writer.close()
    raise OSError(98, f"another agent listens on '{path}'")


def _parts(space: Namespace) -> int:
    """How many ranks' parts a block has. Raises `KeyFault`."""
    first, dash, last = space.ranks.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()) or len(space.ranks) > 9:
        raise KeyFault(f"ranks: '{space.ranks}' is neither a number nor a range like 0-3")
    parts = int(last) - int(first) + 1 if dash else 1
    if not 1 <= parts <= 1024:
        raise KeyFault(f"ranks: '{space.ranks}' is no range of ranks")
    return parts
