"""The KV gateway: the pool that all agents push to and pull from.

The agents' store with a disk behind it. The store says what is held; memory holds what came or went last,
the disk everything, a moment later. Without a disk, memory is all there is.
"""

import asyncio
import errno
import logging
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from router.base.clock import Clock, SystemClock
from router.base.tasks import TaskOwner
from router.kv import messages as m
from router.kv.checksum import checksum
from router.kv.config import GatewayConfig
from router.kv.disk import DiskFault, DiskTier, Found
from router.kv.exposition import Figure, MetricsServer, exposition
from router.kv.keys import ROOT, BlockHash, BlockKey, Namespace, SpaceId
from router.kv.lending import chain_of, wanted_of
from router.kv.local import LEASE_S
from router.kv.policy import policy_of
from router.kv.serving import Lent, Placed, Server
from router.kv.store import Appended, Block, SessionName, Store, Zone

_log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_WAITING: Final = 256 << 20
"""Bytes that may wait to be written; what comes beyond them stays in memory only."""
_DISK_REST_S: Final = 30.0
"""After a disk refused to write."""
_SPACES: Final = 64


class Copy:
    """Where a block's bytes are."""

    __slots__ = ("head", "memory", "on_disk")

    def __init__(self, memory: memoryview | None, head: m.BlockHead, *, on_disk: bool = False) -> None:
        self.memory = memory
        self.head = head
        """As it came with it."""
        self.on_disk = on_disk


class Gateway:
    """One gateway. `start`, then `close`."""

    def __init__(self, config: GatewayConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.tasks = TaskOwner()
        self.life = secrets.token_bytes(16)
        self.disk: DiskTier | None = None
        capacity = config.memory_bytes if config.disk_folder is None else config.disk_bytes
        self.store: Store[Copy] = Store(policy_of(config.keeping, capacity))
        self.server = Server(
            self, name=config.name, secret=config.secret, life=self.life, max_block=config.max_block_bytes
        )
        self.metrics = MetricsServer(lambda: exposition(self.figures()))
        self.counts: Counter[str] = Counter()
        self._spaces: OrderedDict[SpaceId, Namespace] = OrderedDict()
        self._spare: OrderedDict[BlockKey, Block[Copy]] = OrderedDict()
        """Blocks with a copy in memory and one on disk, the longest unused first."""
        self._resident_bytes = 0
        """Of all blocks with a copy in memory."""
        self._coming_bytes = 0
        """Of blocks on their way here, which take their memory from the start."""
        self._writes: deque[Block[Copy]] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._disk_from = float("-inf")
        """No writes before this time."""

    async def start(self) -> None:
        """Take up what the disk holds, and listen. Raises `OSError`."""
        if self.config.disk_folder is not None:
            self.disk = await asyncio.to_thread(
                DiskTier, self.config.disk_folder, self.config.max_block_bytes
            )
            self._restore(await asyncio.to_thread(lambda disk: list(disk.scan()), self.disk))
            self.tasks.spawn(self._write(), name="kv disk")
        self.server.start(self.config.host, self.config.port)
        if self.config.metrics_port is not None:
            try:
                await self.metrics.start(self.config.metrics_host, self.config.metrics_port)
            except OSError:
                await self.close()
                raise
        self.tasks.spawn(self._tick(), name="kv tick")

    async def close(self) -> None:
        """Stop serving, and write what waits to be written."""
        await self.metrics.close()
        await self.server.close()
        await self.tasks.close()
        while self.disk is not None and self._writes and self.clock.now() >= self._disk_from:
            await self._write_one(self.disk, self._writes.popleft())

    # For those who dial (`serving.Provider`).

    @property
    def spaces(self) -> Sequence[Namespace]:
        return tuple(self._spaces.values())

    def learn(self, spaces: Sequence[Namespace]) -> None:
        before = len(self._spaces)
        for space in spaces:
            self._spaces.setdefault(space.space, space)
        while len(self._spaces) > _SPACES:
            self._spaces.popitem(last=False)
        if len(self._spaces) != before:
            self.server.tell_spaces()

    def query(self, space: bytes, tenant: str, hashes: Sequence[BlockHash]) -> int:
        found = self.store.prefix(SpaceId(space), tenant, hashes)
        self.store.lease(found, self.clock.now() + LEASE_S)
        self.counts["queries"] += 1
        self.counts["query_blocks"] += len(hashes)
        self.counts["hit_blocks"] += len(found)
        return len(found)

    async def lend(self, space: bytes, tenant: str, hash_: BlockHash) -> Lent | None:
        block = self.store.get(BlockKey(SpaceId(space), tenant, hash_))
        if block is None:
            return None
        memory = block.place.memory
        if memory is None:
            memory = await self._from_disk(block)
            if memory is None:
                return None
        elif block.key in self._spare:
            self._spare.move_to_end(block.key)
        now = self.clock.now()
        self.store.use([block], None, now)
        self.store.lease([block], now + LEASE_S)
        # Its bytes live for as long as somebody refers to them, whatever becomes of the block.
        return Lent(replace(block.place.head, zone=block.zone.value, session=""), memory, _nothing)

    def wanted(self, offer: m.OfferBlocks) -> bytes:
        return wanted_of(self.store, offer)

    def place(self, head: m.BlockHead, size: int) -> Placed | str:
        key, parent = m.key_of(head), BlockHash(head.parent)
        outcome = self.store.offer(key, parent, head.checksum)
        if outcome is not Appended.STORED:
            self.counts[f"refused:{outcome.value}"] += 1
            return outcome.value
        now, above = self.clock.now(), key._replace(hash=parent)
        self._keep_to_quota(size, now, above)
        if not self._make_room(size, now, above):
            self.counts["refused:full"] += 1
            return "full"
        memory = memoryview(bytearray(size))
        self._coming_bytes += size

        def arrived() -> None:
            self._coming_bytes -= size

        def keep(total: int) -> str:
            arrived()
            return self._keep(head, memory, total)

        return Placed(memory, keep, arrived)

    def suspect(self, space: bytes, tenant: str, hash_: BlockHash) -> None:
        block = self.store.get(BlockKey(SpaceId(space), tenant, hash_))
        memory = None if block is None else block.place.memory
        if block is not None and memory is not None and checksum(memory) != block.place.head.payload_checksum:
            self._damaged(block)

    def chain(self, tenant: str, session: str) -> tuple[list[BlockHash], int]:
        for space in self._spaces:
            if blocks := self.store.chain(SessionName(space, tenant, session)):
                self.store.lease(blocks, self.clock.now() + LEASE_S)
                return chain_of(blocks)
        return [], 0

    async def prefetch(self, wish: m.Prefetch) -> m.Done:  # noqa: ARG002  # a pool goes nowhere by itself
        return m.Done(0, 0, "mode")

    def release(self, tenant: str, session: str) -> m.Done:
        gone: list[Block[Copy]] = []
        for space in self._spaces:
            gone += self.store.release(SessionName(space, tenant, session), self.clock.now())
        self._forget(gone)
        return m.Done(len(gone), sum(block.size for block in gone), "done")

    def changes(self, life: bytes, since: int) -> m.Changes:
        found = self.store.changes(since if life == self.life else 0)
        now = self.clock.now()
        held = [
            m.HeldSession(one.name.tenant, one.name.id, one.blocks, max(0.0, now - one.active))
            for one in found.held
        ]
        gone = [(name.tenant, name.id) for name in found.gone]
        blocks = len(self.store)
        room = blocks * self.store.policy.capacity_bytes // max(1, self.store.used_bytes)
        return m.Changes(
            self.life, found.number, found.complete, held, gone, 0, blocks, min(room, 1 << 20), []
        )

    # Figures.

    def figures(self) -> Iterable[Figure]:
        """For the scraper."""
        counts = self.store.counts
        yield Figure.of("blocks", "Blocks held.", len(self.store))
        yield Figure.of("held_bytes", "Bytes of blocks held, in memory or on disk.", self.store.used_bytes)
        yield Figure.of("memory_bytes", "Bytes of blocks in memory.", self._resident_bytes)
        yield Figure.of("disk_up", "Whether blocks are written to disk.", float(self._may_write()))
        yield Figure.of("disk_waiting_bytes", "Bytes that wait to be written.", self._waiting_bytes)
        yield Figure.of("served_bytes_total", "Bytes sent.", self.server.sent_bytes)
        yield Figure.of("stored_total", "Blocks stored.", counts.stored)
        yield Figure.of("damaged_total", "Blocks whose bytes were not what they should be.", counts.damaged)
        yield Figure.of("conflicts_total", "Blocks offered again with other bytes.", counts.conflicts)
        for name, text in _COUNTED.items():
            yield Figure.of(f"{name}_total", text, self.counts[name])
        refused = [(key.partition(":")[2], n) for key, n in self.counts.items() if key.startswith("refused:")]
        yield Figure.by("refused_total", "Blocks that were offered and not kept.", "reason", refused)
        yield Figure.by(
            "evicted_total", "Blocks given up for room.", "zone",
            [(zone.value, count) for zone, count in counts.evicted.items()],
        )  # fmt: skip
        yield Figure.by(
            "connections_refused_total", "Connections turned away.", "reason", self.server.refused.items()
        )

    # Keeping.

    def _keep(self, head: m.BlockHead, memory: memoryview, total: int) -> str:
        if total != head.payload_checksum:
            self.counts["refused:damaged"] += 1
            return "damaged"
        key, now, size = m.key_of(head), self.clock.now(), memory.nbytes
        above = key._replace(hash=BlockHash(head.parent))
        self._keep_to_quota(size, now, above)
        beyond = self.store.used_bytes + size - self.store.policy.capacity_bytes
        if beyond > 0:
            self._forget(self.store.evict(beyond, now, hard=True, only=lambda block: block.key != above))
            if self.store.used_bytes + size > self.store.policy.capacity_bytes:
                self.counts["refused:full"] += 1
                return "full"
        outcome = self.store.append(
            key,
            BlockHash(head.parent),
            head.checksum,
            Copy(memory, head),
            size=size,
            zone=Zone(head.zone),
            session=head.session,
            now=now,
        )
        if outcome is not Appended.STORED:
            self.counts[f"refused:{outcome.value}"] += 1
            return outcome.value
        block = self.store.get(key)
        assert block is not None
        self._resident_bytes += size
        self._write_later(block)
        return outcome.value

    def _keep_to_quota(self, size: int, now: float, above: BlockKey) -> None:
        """A tenant's blocks make room for its own, but for the one above the one that is coming."""
        tenant = above.tenant
        if excess := self.store.quota_excess(tenant, size):
            others = self.store.evict(
                excess, now, tenant=tenant, hard=True, only=lambda block: block.key != above
            )
            self._forget(others)

    def _make_room(self, size: int, now: float, above: BlockKey) -> bool:
        """Whether memory has room for a block that is coming, once others than the one above it have left.

        Where the disk is slower than what comes, or fails, memory is all that many blocks have: the least
        worthy are given up then, and what does not fit even so is to be refused.
        """
        if (excess := self._excess(size)) > 0:

            def may_go(block: Block[Copy]) -> bool:
                return block.key != above and block.place.memory is not None and not block.place.on_disk

            dropped = self.store.evict(excess, now, hard=True, only=may_go)
            self.counts["memory_only_dropped"] += len(dropped) * (self.disk is not None)
            self._forget(dropped)
        return self._excess(size) <= 0

    def _excess(self, size: int) -> int:
        """How much too much is in memory for so many bytes more, once what is on disk, too, has left it."""
        room = self.config.memory_bytes - self._coming_bytes - size
        while self._resident_bytes > room and self._spare:
            self._leave_memory(next(iter(self._spare.values())))
        return self._resident_bytes - room

    def _leave_memory(self, block: Block[Copy]) -> None:
        self._spare.pop(block.key, None)
        if block.place.memory is not None:
            block.place.memory = None
            self._resident_bytes -= block.size

    def _forget(self, blocks: list[Block[Copy]]) -> None:
        """The store has let go of these."""
        for block in blocks:
            self._leave_memory(block)
            if self.disk is not None and block.place.on_disk:
                self.disk.remove(block.key)

    def _damaged(self, block: Block[Copy]) -> None:
        self.store.damaged(block)
        self._forget([block])

    async def _from_disk(self, block: Block[Copy]) -> memoryview | None:
        if self.disk is None or not block.place.on_disk:
            return None
        try:
            head, payload = await asyncio.to_thread(self.disk.read, block.key)
        except DiskFault as fault:
            _log.warning("a block on disk is damaged: %s", fault)
            self._damaged(block)
            return None
        if head.checksum != block.checksum or self.store.get(block.key) is not block:
            return None
        self.counts["disk_read_bytes"] += payload.nbytes
        if block.place.memory is None and self._excess(block.size) <= 0:
            block.place.memory = payload
            self._resident_bytes += block.size
            self._spare[block.key] = block
        return payload

    # The disk.

    def _may_write(self) -> bool:
        return self.disk is not None and self.clock.now() >= self._disk_from

    def _write_later(self, block: Block[Copy]) -> None:
        if not self._may_write() or self._waiting_bytes + block.size > _WAITING:
            self.counts["disk_skipped"] += self.disk is not None
            return
        self._waiting_bytes += block.size
        self._writes.append(block)
        self._wake.set()

    async def _write(self) -> None:
        assert self.disk is not None
        while True:
            await self._wake.wait()
            while self._writes:
                await self._write_one(self.disk, self._writes.popleft())
            self._wake.clear()

    async def _write_one(self, disk: DiskTier, block: Block[Copy]) -> None:
        self._waiting_bytes -= block.size
        memory = block.place.memory
        if memory is None or self.store.get(block.key) is not block:
            return
        if not self._may_write():
            # The disk has failed since it was queued.
            self.counts["disk_skipped"] += 1
            return
        head = block.place.head
        for attempt in (1, 2):
            try:
                await asyncio.to_thread(disk.write, head, memory)
            except OSError as error:
                if attempt == 1 and error.errno in {errno.ENOSPC, errno.EDQUOT}:
                    # Others use this disk, too: make room among our own, as much as a twentieth of them.
                    size = max(block.size, self.store.used_bytes // 20)
                    gone = self.store.evict(size, self.clock.now(), only=_is_on_disk)
                    for one in gone:
                        self._leave_memory(one)
                    # Tens of thousands, where the disk is large. Nothing else is written meanwhile, so none
                    # of them is a file of its own again.
                    await asyncio.to_thread(disk.remove_all, [one.key for one in gone])
                    continue
                _log.warning("blocks are not written to disk for %.0f s: %s", _DISK_REST_S, error.strerror)
                self.counts["disk_failures"] += 1
                self._disk_from = self.clock.now() + _DISK_REST_S
                return
            break
        if self.store.get(block.key) is block:
            block.place.on_disk = True
            self._spare[block.key] = block
            self.counts["disk_written_bytes"] += block.size
        else:
            disk.remove(block.key)

    def _restore(self, found: list[Found]) -> None:
        """Hold what the disk has, parents first; what has no parent any more is removed."""
        assert self.disk is not None
        below: dict[BlockKey, list[Found]] = {}
        for one in found:
            key = m.key_of(one.head)
            below.setdefault(key._replace(hash=BlockHash(one.head.parent)), []).append(one)
        now = self.clock.now()
        ready = deque(one for above, ones in below.items() if above.hash == ROOT for one in ones)
        kept = 0
        while ready:
            one = ready.popleft()
            key = m.key_of(one.head)
            copy = Copy(None, one.head, on_disk=True)
            room = self.store.used_bytes + one.size <= self.store.policy.capacity_bytes
            if room and Appended.STORED is self.store.append(
                key,
                BlockHash(one.head.parent),
                one.head.checksum,
                copy,
                size=one.size,
                zone=Zone(one.head.zone),
                session=one.head.session,
                now=now,
            ):
                kept += 1
                ready.extend(below.get(key, ()))
        for one in found:
            if m.key_of(one.head) not in self.store:
                self.disk.remove(m.key_of(one.head))
        if found:
            _log.info("took up %d blocks from disk, %d had lost their beginning", kept, len(found) - kept)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._forget(self.store.evict(self.store.excess_bytes, self.clock.now()))


def _nothing() -> None:
    """There is nothing to give back."""


def _is_on_disk(block: Block[Copy]) -> bool:
    """Giving up any other makes no room there."""
    return block.place.on_disk


_COUNTED: Final = {
    "queries": "Prefixes that were asked for.",
    "query_blocks": "Blocks that were asked for.",
    "hit_blocks": "Blocks of those that are held.",
    "disk_written_bytes": "Bytes written to disk.",
    "disk_read_bytes": "Bytes read from disk.",
    "disk_failures": "Writes that the disk refused.",
    "disk_skipped": "Blocks that were not written to disk.",
    "memory_only_dropped": "Blocks lost since memory was full before the disk had them.",
}
