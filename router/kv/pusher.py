"""Pushes an engine's new blocks to the pool, off everybody's path: queued, bounded, asked about first.

A block is sent only if the pool wants it, so that ten replicas with one system prompt send it once.
"""

import asyncio
import logging
from typing import Final

from msgspec.structs import replace

from router.kv import messages as m
from router.kv.arena import Handle
from router.kv.checksum import checksum
from router.kv.codec import CodecFault, CodecName, Int8, codec_for
from router.kv.keys import ROOT, BlockKey, Namespace
from router.kv.lending import head_of, lend_block, offer_of
from router.kv.pushing import Priority, PushQueue
from router.kv.remote import Remote, RemoteFault
from router.kv.shelf import Shelf
from router.kv.sources import Source
from router.kv.store import Block, Zone
from router.kv.wire import Type

_log = logging.getLogger(__name__)

_BATCH: Final = 32
_ANSWER_S: Final = 5.0
_KEEP_S: Final = 15.0
_AGAIN_S: Final = 1.0
_LONG_LIVED: Final = 2
"""Turns from which on a session is likely to go on."""


class Pusher:
    """The queue and what empties it. Without a pool nothing is queued."""

    def __init__(
        self, pools: list[Source], limit: int, *, codec: CodecName = "raw", codec_system: bool = False
    ) -> None:
        """`codec_system`: whether system blocks are coded, too."""
        self.shelf: Shelf | None = None
        self._codec_name: CodecName = codec
        self._codec_system = codec_system
        self._codec: Int8 | None = None
        self.pushed_bytes = 0
        self.pushed_blocks = 0
        self.refused: dict[str, int] = {}
        """Blocks that a pool did not keep, by reason."""
        self._pools = pools
        self._queue: PushQueue[tuple[BlockKey, str]] = PushQueue(limit)
        self._wake = asyncio.Event()

    def open(self, shelf: Shelf, space: Namespace) -> None:
        """Push from this shelf, whose blocks are of that namespace."""
        self.shelf = shelf
        try:
            self._codec = codec_for(self._codec_name, space)
        except CodecFault as fault:
            self._codec = None
            _log.warning("blocks are pushed as they are: %s", fault)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def dropped(self) -> int:
        """Blocks for which the queue had no room, or which a pool did not take."""
        return sum(self._queue.dropped.values()) + sum(self.refused.values())

    def add(self, block: Block[Handle]) -> None:
        """Queue a block that is new here."""
        if not self._pools:
            return
        if block.zone is Zone.SYSTEM:
            priority = Priority.SYSTEM
        else:
            long_lived = block.owner is not None and block.owner.turns >= _LONG_LIVED
            priority = Priority.SESSION if long_lived else Priority.ONE_OFF
        session = next((name.id for name in block.tails), "")
        self._queue.push((block.key, session), priority)
        self._wake.set()

    async def run(self) -> None:
        """Push what is queued, until cancelled."""
        for pool in self._pools:
            pool.on_change = self._wake.set
        while True:
            await self._wake.wait()
            self._wake.clear()
            # While no pool is there the blocks stay in the queue, and the least important go when it is full.
            while any(pool.is_connected for pool in self._pools) and (batch := self._batch()):
                for pool in self._pools:
                    try:
                        await self._push(pool, batch)
                    except RemoteFault as fault:
                        self._count(fault.reason, len(batch))
                        await asyncio.sleep(_AGAIN_S)

    def _batch(self) -> list[tuple[BlockKey, str]]:
        """The next blocks of one namespace and tenant."""
        batch: list[tuple[BlockKey, str]] = []
        while len(batch) < _BATCH and (item := self._queue.peek()) is not None:
            if batch and item[0][:2] != batch[0][0][:2]:
                break
            batch.append(item)
            self._queue.pop()
        return batch

    async def _push(self, pool: Source, batch: list[tuple[BlockKey, str]]) -> None:
        """Raises `RemoteFault`."""
        control, bulk, shelf = pool.control, pool.bulk, self.shelf
        if control is None or bulk is None or shelf is None:
            raise RemoteFault("unreachable")
        sessions = dict(batch)
        blocks = self._with_ancestors(shelf, [key for key, _ in batch])
        if not blocks:
            return
        wanted = await control.call(Type.OFFER, offer_of(blocks), m.Wanted, _ANSWER_S)
        # Coded one after the other and sent all at once: a block must not come before its parent.
        sending = [
            (block, await self._coded(shelf, block))
            for block, is_wanted in zip(blocks, wanted.wanted, strict=False)
            if is_wanted and shelf.store.get(block.key) is block
        ]
        puts = [
            self._put(bulk, shelf, block, sessions.get(block.key, ""), coded)
            for block, coded in sending
            if shelf.store.get(block.key) is block
        ]
        for outcome in await asyncio.gather(*puts, return_exceptions=True):
            if isinstance(outcome, RemoteFault):
                raise outcome
            if isinstance(outcome, BaseException):
                raise outcome

    def _with_ancestors(self, shelf: Shelf, keys: list[BlockKey]) -> list[Block[Handle]]:
        """The blocks that are still here, each after those before it: the pool may have let go of them."""
        ordered: dict[BlockKey, Block[Handle]] = {}
        for key in keys:
            line: list[Block[Handle]] = []
            block = shelf.store.get(key)
            while block is not None and block.key not in ordered:
                line.append(block)
                if block.parent == ROOT:
                    break
                block = shelf.store.get(key._replace(hash=block.parent))
            for found in reversed(line):
                ordered[found.key] = found
        return list(ordered.values())

    async def _coded(self, shelf: Shelf, block: Block[Handle]) -> memoryview | None:
        """The block in fewer bytes; `None`: it goes as it is."""
        codec = self._codec
        if codec is None or (block.zone is Zone.SYSTEM and not self._codec_system):
            return None
        lent = lend_block(shelf, block)
        try:
            return await asyncio.to_thread(codec.encode, lent.payload)
        finally:
            lent.give_back()

    async def _put(
        self, bulk: Remote, shelf: Shelf, block: Block[Handle], session: str, coded: memoryview | None
    ) -> None:
        head = head_of(block, session)
        if coded is None:
            lent = lend_block(shelf, block)
            payload, sent = lent.payload, lent.give_back
        else:
            head = replace(head, codec="int8", coded_checksum=checksum(coded))
            payload, sent = coded, _nothing
        size = payload.nbytes
        kept = await bulk.put(head, payload, _KEEP_S, sent)
        if kept.outcome in {"stored", "same"}:
            self.pushed_blocks += 1
            self.pushed_bytes += size
        else:
            self._count(kept.outcome, 1)

    def _count(self, reason: str, blocks: int) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + blocks


def _nothing() -> None:
    """What is coded is nobody else's."""
