"""Blocks in an arena: the store's decisions carried out on slots.

The one place where a store and an arena meet: whatever the store gives up frees its slot, and a block's
bytes are lent for as long as somebody sends or copies them.
"""

from collections.abc import Callable, Iterable
from typing import Final

from router.kv.arena import ArenaOwner, Handle
from router.kv.checksum import checksum
from router.kv.keys import BlockHash, BlockKey
from router.kv.store import Appended, Block, Store, StorePolicy, Zone

_SET_ASIDE: Final = 16
"""Slots whose bytes changed by themselves are not used again, up to so many: the memory may be faulty."""


class Shelf:
    """An arena with its store. Sizes are counted in whole slots."""

    def __init__(
        self, arena: ArenaOwner, policy: StorePolicy, on_gone: Callable[[list[Block[Handle]]], None]
    ) -> None:
        """`policy.capacity_bytes` is the arena's blocks. `on_gone` hears of what is no longer held."""
        self.owner = arena
        self.store: Store[Handle] = Store(policy)
        self._on_gone = on_gone
        self._set_aside: list[Handle] = []

    @property
    def block_bytes(self) -> int:
        return self.owner.arena.block_bytes

    @property
    def set_aside(self) -> int:
        """Slots that are not used any more."""
        return len(self._set_aside)

    @property
    def room(self) -> int:
        """Slots that are free, or hold nothing but a block that may be given up unless somebody needs it."""
        return self.owner.free + len(self.store)

    def slot(self, now: float, *, hard: bool, tenant: str | None = None) -> Handle | None:
        """A slot with one reference, the caller's. `hard`: even if an active session's block goes for it.
        `tenant`: whose block it is for, where that is known: it gives up its own before others do."""
        self.owner.sweep(now)
        if tenant is not None and (excess := self.store.quota_excess(tenant, self.block_bytes)):
            self._drop(self.store.evict(excess, now, tenant=tenant, hard=hard))
        handle = self.owner.allocate()
        while handle is None and self._drop(self.store.evict(self.block_bytes, now, hard=hard)):
            # What was given up may still be lent, and then frees nothing yet.
            handle = self.owner.allocate()
        return handle

    def keep(
        self,
        key: BlockKey,
        parent: BlockHash,
        handle: Handle,
        total: int,
        *,
        zone: Zone,
        session: str,
        now: float,
    ) -> Appended:
        """Hold the block that lies in `handle`. The caller keeps its own reference, the shelf takes one."""
        size = self.block_bytes
        if (excess := self.store.quota_excess(key.tenant, size)) and key not in self.store:
            self._drop(self.store.evict(excess, now, tenant=key.tenant, hard=True))
        outcome = self.store.append(
            key, parent, total, handle, size=size, zone=zone, session=session, now=now
        )
        if outcome is Appended.STORED:
            self.owner.retain(handle)
        return outcome

    def bytes_of(self, block: Block[Handle]) -> memoryview:
        """The block's bytes, as long as it is held or a reference is."""
        return self.owner.arena.block(block.place)

    def is_sound(self, block: Block[Handle]) -> bool:
        """Whether its bytes are what they were. One that is not is given up, and its slot with it."""
        if checksum(self.bytes_of(block)) == block.checksum:
            return True
        if len(self._set_aside) < _SET_ASIDE:
            self.owner.retain(block.place)
            self._set_aside.append(block.place)
        self.store.damaged(block)
        self._drop([block])
        return False

    def trim(self, now: float) -> None:
        """Give up what lies above the water mark, as far as nobody active needs it."""
        self.owner.sweep(now)
        self._drop(self.store.evict(self.store.excess_bytes, now))

    def drop(self, blocks: Iterable[Block[Handle]]) -> None:
        """The store has let go of these."""
        self._drop(list(blocks))

    def close(self) -> None:
        """Give the memory back. What is lent is given back later, as ever."""
        self._drop(self.store.clear())
        for handle in self._set_aside:
            self.owner.release(handle)
        self._set_aside.clear()
        self.owner.close()

    def _drop(self, blocks: list[Block[Handle]]) -> bool:
        for block in blocks:
            self.owner.release(block.place)
        if blocks:
            self._on_gone(blocks)
        return bool(blocks)
