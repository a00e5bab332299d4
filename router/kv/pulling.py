"""Brings blocks here: one fetch for a block however many want it, and an end in time for each who does.

A pull wants a run of blocks in order, within a stall and a deadline; a flight is one fetch from one source.
Pulls ride on flights, their own or others'. What lands is checked before anybody sees it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from router.base.clock import Clock
from router.kv import messages as m
from router.kv.arena import Handle
from router.kv.checksum import checksum
from router.kv.codec import CodecFault, Int8
from router.kv.keys import BlockHash, BlockKey, Namespace, pack_hashes
from router.kv.remote import RemoteFault
from router.kv.shelf import Shelf
from router.kv.sources import Source
from router.kv.store import SessionName, Zone
from router.kv.wire import Type

_log = logging.getLogger(__name__)

_CHECKED_AT_ONCE: Final = 2 << 20
"""Bytes of the own arena that are checked before other work has its turn."""


class Pull:
    """Somebody's wish for blocks. Hands them over in order, each with a reference that is the taker's."""

    __slots__ = (
        "_early", "_give", "ahead", "cancelled", "changed", "given", "keys", "progress", "session", "sources",
        "stall_s", "system_blocks", "tried", "until",
    )  # fmt: skip

    def __init__(
        self, keys: Sequence[BlockKey], sources: Iterable[Source], give: Callable[[list[Handle]], None], *,
        session: str, system_blocks: int, stall_s: float, until: float, now: float,
        ahead: bool = False,
    ) -> None:  # fmt: skip
        """`system_blocks`: so many of the first keys are system blocks. `until`: the deadline.
        `ahead`: nobody has asked for them yet."""
        self.keys = keys
        self.sources = list(sources)
        """The best first."""
        self.session = session
        self.system_blocks = system_blocks
        self.stall_s = stall_s
        self.until = until
        self.ahead = ahead
        self.progress = now
        """When bytes came last."""
        self.given = 0
        self.tried: set[str] = set()
        self.cancelled = False
        self.changed = asyncio.Event()
        self._give = give
        self._early: dict[int, Handle] = {}

    def cancel(self) -> None:
        """It is not wanted any more."""
        self.cancelled = True
        self.changed.set()

    def missing(self) -> list[int]:
        """Which have not come, by number."""
        return [at for at in range(self.given, len(self.keys)) if at not in self._early]

    def take(self, at: int, handle: Handle) -> None:
        """A block has come, with a reference. Given on once all before it are there."""
        self._early[at] = handle
        ready: list[Handle] = []
        while self.given in self._early:
            ready.append(self._early.pop(self.given))
            self.given += 1
        if ready:
            self._give(ready)
        if self.given == len(self.keys):
            self.changed.set()

    def left_over(self) -> list[Handle]:
        """Blocks behind a gap: of no use to anybody."""
        early, self._early = list(self._early.values()), {}
        return early


class _Flight:
    """A fetch from one source. The receiver of its blocks."""

    __slots__ = (
        "_at", "_began", "_coded", "_flying", "_handle", "_ident", "_keys", "_owner", "_riders", "_size",
        "_system", "_tally", "session", "source",
    )  # fmt: skip

    def __init__(
        self, owner: "Puller", source: Source, keys: list[BlockKey], session: str, system: int
    ) -> None:
        self._owner = owner
        self.source = source
        self._keys = keys
        self.session = session
        self._system = system
        self._at = 0
        self._handle: Handle | None = None
        self._coded: memoryview | None = None
        """Of a block that comes coded: its slot gets what it is decoded to."""
        self._riders: dict[Pull, dict[BlockKey, int]] = {}
        self._began = owner.clock.now()
        self._size = 0
        self._tally: str | None = None
        self._ident: int | None = None
        self._flying = False

    def start(self) -> None:
        bulk = self.source.bulk
        if bulk is None:
            self._over("lost")
            return
        first = self._keys[0]
        self.source.pulls += 1
        self._flying = True
        self._ident = bulk.fetch(
            m.Blocks(first.space, first.tenant, pack_hashes([key.hash for key in self._keys])), self
        )

    @property
    def keys_left(self) -> Sequence[BlockKey]:
        return self._keys[self._at :]

    def board(self, pull: Pull, wanted: dict[BlockKey, int]) -> None:
        """The pull wants these of the flight's blocks, under these numbers."""
        self._riders.setdefault(pull, {}).update(wanted)

    def leave(self, pull: Pull, reason: str) -> None:
        """The pull wants no more. A flight without riders is called off."""
        if self._riders.pop(pull, None) is None or self._riders or self._tally is not None:
            return
        # Whoever has all it wants leaves what others wanted before it.
        self._give_up("cancelled" if reason == "done" else reason)

    # The receiver's part.

    def place(self, head: m.BlockHead, size: int) -> memoryview | None:
        if self._tally is not None:
            return None
        key = self._keys[self._at] if self._at < len(self._keys) else None
        shelf = self._owner.shelf
        codec = None if head.codec == "raw" else self._owner.codec
        if head.codec != "raw" and codec is None:
            self._give_up("codec")
            return None
        due = shelf.block_bytes if codec is None else codec.coded_bytes
        if key is None or head.hash != key.hash or size != due:
            self._give_up("damaged")
            return None
        self._handle = shelf.slot(self._owner.clock.now(), hard=True, tenant=key.tenant)
        if self._handle is None:
            self._give_up("full")
            return None
        self._coded = None if codec is None else memoryview(bytearray(size))
        return shelf.owner.arena.block(self._handle) if self._coded is None else self._coded

    def progress(self, count: int) -> None:
        self._size += count
        now = self._owner.clock.now()
        for pull in self._riders:
            pull.progress = now

    def landed(self, head: m.BlockHead, total: int) -> None:
        handle, self._handle = self._handle, None
        assert handle is not None
        shelf = self._owner.shelf
        if total != head.payload_checksum:
            shelf.owner.release(handle)
            self._owner.damaged += 1
            if self.source.control is not None:
                suspect = m.OfBlock(head.space, head.tenant, head.hash)
                self.source.control.tell(Type.SUSPECT, suspect)
            self._give_up("damaged")
            return
        if self._coded is not None and self._owner.codec is not None:
            block = shelf.owner.arena.block(handle)
            self._owner.codec.decode(self._coded, block)
            self._coded, total = None, checksum(block)
        key = self._keys[self._at]
        zone = Zone.SYSTEM if self._at < self._system else Zone.SESSION
        now = self._owner.clock.now()
        # Where it cannot be kept, for want of its parent or its quota, those who wait for it get it still.
        shelf.keep(key, BlockHash(head.parent), handle, total, zone=zone, session=self.session, now=now)
        if all(pull.ahead for pull in self._riders) and (kept := shelf.store.get(key)) is not None:
            kept.ahead = True
        self._at += 1
        self._owner.flights.pop(key, None)
        for pull, wanted in tuple(self._riders.items()):
            at = wanted.pop(key, None)
            if at is not None:
                shelf.owner.retain(handle)
                pull.take(at, handle)
        shelf.owner.release(handle)
        if self._at == len(self._keys):
            self._over("done")

    def ended(self, blocks: int, reason: str) -> None:  # noqa: ARG002  # what landed is counted here
        if self._tally is None:
            self._over("lost" if reason == "done" else reason)

    def _give_up(self, reason: str) -> None:
        if self.source.bulk is not None and self._ident is not None:
            self.source.bulk.cancel(self._ident)
        self._over(reason)

    def _over(self, reason: str) -> None:
        self._tally = reason
        if self._handle is not None:
            self._owner.shelf.owner.release(self._handle)
            self._handle = None
        for key in self.keys_left:
            self._owner.flights.pop(key, None)
        now = self._owner.clock.now()
        if self._flying:
            self.source.pulls -= 1
            self.source.ended(reason, size=self._size, seconds=now - self._began, now=now)
        riders, self._riders = self._riders, {}
        for pull in riders:
            pull.tried.add(self.source.name)
            pull.changed.set()


class Puller:
    """All pulls and flights of an agent."""

    def __init__(self, shelf: Shelf, clock: Clock, space: Namespace, *, verify_local: bool) -> None:
        self.shelf = shelf
        self.codec: Int8 | None = None
        """For blocks that come coded; `None`: they cannot be used."""
        with suppress(CodecFault):
            self.codec = Int8(space)
        self.clock = clock
        self.flights: dict[BlockKey, _Flight] = {}
        self.damaged = 0
        """Blocks that came with other bytes than they were sent with."""
        self._verify = verify_local

    async def run(self, pull: Pull) -> str:
        """Bring what the pull wants. Says how it ended: `done`, `stall`, `deadline`, `source`, `cancelled`.

        Whatever the end, what was given by then stays given: a prefix.
        """
        aboard: set[_Flight] = set()
        reason = "cancelled"
        try:
            reason = await self._run(pull, aboard)
        finally:
            for flight in aboard:
                flight.leave(pull, reason)
            for handle in pull.left_over():
                self.shelf.owner.release(handle)
        return reason

    async def _run(self, pull: Pull, aboard: "set[_Flight]") -> str:
        await self._take_held(pull)
        while True:
            pull.changed.clear()
            if pull.cancelled:
                return "cancelled"
            now = self.clock.now()
            if now >= pull.until:
                return "deadline"
            missing = pull.missing()
            if not missing:
                return "done"
            if not self._board(pull, missing, aboard, now):
                return "source"
            if pull.missing() != missing:
                continue
            wait = min(pull.until, pull.progress + pull.stall_s) - now
            if wait <= 0:
                return "stall"
            try:
                async with asyncio.timeout(wait):
                    await pull.changed.wait()
            except TimeoutError:
                continue

    async def _take_held(self, pull: Pull) -> None:
        """What lies here already, up to the first that does not."""
        checked = 0
        for at, key in enumerate(pull.keys):
            if pull.cancelled or not self._take_one(pull, at, key):
                break
            checked += self.shelf.block_bytes
            if self._verify and checked >= _CHECKED_AT_ONCE:
                checked = 0
                await asyncio.sleep(0)
        pull.progress = self.clock.now()

    def _take_one(self, pull: Pull, at: int, key: BlockKey) -> bool:
        """Take a block that lies here, if it is there and sound."""
        block = self.shelf.store.get(key)
        if block is None or (self._verify and not self.shelf.is_sound(block)):
            return False
        self.shelf.owner.retain(block.place)
        session = SessionName(key.space, key.tenant, pull.session) if pull.session else None
        self.shelf.store.use([block], session, self.clock.now())
        pull.take(at, block.place)
        return True

    def _board(self, pull: Pull, missing: list[int], aboard: "set[_Flight]", now: float) -> bool:
        """Find a flight for each block that is missing; whether anything is on its way."""
        unclaimed: list[int] = []
        riding = False
        for at in missing:
            key = pull.keys[at]
            flight = self.flights.get(key)
            if flight is not None:
                flight.board(pull, {key: at})
                aboard.add(flight)
                riding = True
            elif self._take_one(pull, at, key):
                riding = True
            else:
                unclaimed.append(at)
        if not unclaimed:
            return riding
        source = self._source_for(pull, now)
        if source is None:
            return riding
        keys = [pull.keys[at] for at in unclaimed]
        system = sum(at < pull.system_blocks for at in unclaimed)
        flight = _Flight(self, source, keys, pull.session, system)
        for key in keys:
            self.flights[key] = flight
        flight.board(pull, dict(zip(keys, unclaimed, strict=True)))
        aboard.add(flight)
        pull.progress = now
        flight.start()
        return True

    def _source_for(self, pull: Pull, now: float) -> Source | None:
        for source in pull.sources:
            if source.name in pull.tried or source.unusable(now):
                continue
            if source.breaker.allows(now):
                return source
            pull.tried.add(source.name)
        return None


async def ask_sources(
    sources: Sequence[Source], blocks: m.Blocks, timeout_s: float
) -> list[tuple[Source, int]]:
    """How many of these blocks each source has from the first on, the most first; in time, or not at all."""

    async def ask(source: Source) -> tuple[Source, int]:
        control = source.control
        if control is None:
            return source, 0
        try:
            found = await control.call(Type.QUERY, blocks, m.FoundBlocks, timeout_s)
        except RemoteFault:
            return source, 0
        return source, found.blocks

    found = await asyncio.gather(*map(ask, sources))
    # Stable: of two that have as many, the one that the router named first.
    return sorted(((source, count) for source, count in found if count), key=lambda pair: -pair[1])
