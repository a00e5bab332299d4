"""KV blocks that are held by name: a real store of them, without their bytes.

What a simulated replica's KV agent holds, and a pool in a replay. Told the time; knows nothing of transfers.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from router.kv.checksum import checksum
from router.kv.config import KeepingConfig
from router.kv.keys import ROOT, BlockHash, BlockKey, Namespace
from router.kv.policy import policy_of
from router.kv.store import Appended, Store, Zone
from router.simulator.settings import ReplicaSettings

PUT_S: Final = 15.0
"""What a pool has to take blocks."""
PUSHED_AT_ONCE: Final = 32
"""Blocks that a pool is offered together."""

NOTHING: Final = memoryview(b"\0")
"""Stands for a block's bytes."""
_NOTHING_SUM: Final = checksum(NOTHING)


class NamedBlocks:
    """A store of the blocks that replicas with these settings make."""

    def __init__(self, replica: ReplicaSettings, keeping: KeepingConfig, capacity_bytes: int) -> None:
        self.block_bytes = replica.block_size * replica.kv_bytes_per_token
        self.namespace = _namespace(replica, self.block_bytes)
        self._space = self.namespace.space  # a digest, which is worked out whenever it is asked for
        self.store: Store[None] = Store(policy_of(keeping, capacity_bytes))

    def key(self, tenant: str, of: int) -> BlockKey:
        """A tenant's block of this hash."""
        return BlockKey(self._space, tenant, BlockHash(of.to_bytes(8, "little").ljust(32, b"\0")))

    def length(self, tenant: str, hashes: Sequence[int], most: int) -> int:
        """How many of the first `most` blocks are held. Where one is, all before it are."""
        store = self.store
        return bisect_left(range(most), True, key=lambda at: self.key(tenant, hashes[at]) not in store)

    def keep(
        self, keys: Sequence[BlockKey], session: str, system: int, now: float, *, above: BlockHash = ROOT
    ) -> list[tuple[BlockKey, Zone]]:
        """Hold consecutive blocks of a prompt, behind `above`, of which the first `system` are of the system
        prompt. Returns those that were not held before: fewer than there are where room is short."""
        store, size = self.store, self.block_bytes
        stored: list[tuple[BlockKey, Zone]] = []
        for at, key in enumerate(keys):
            if key not in store or at == len(keys) - 1:
                beyond = store.used_bytes + size - store.policy.capacity_bytes
                if beyond > 0 and key not in store:
                    parent = key._replace(hash=above)
                    store.evict(beyond, now, hard=True, only=lambda block, up=parent: block.key != up)  # type: ignore[misc]
                    if store.used_bytes + size > store.policy.capacity_bytes:
                        break
                zone = Zone.SYSTEM if at < system else Zone.SESSION
                outcome = store.append(
                    key, above, _NOTHING_SUM, None, size=size, zone=zone, session=session, now=now
                )
                if outcome is Appended.STORED:
                    stored.append((key, zone))
                elif outcome is not Appended.SAME:
                    break
            above = key.hash
        return stored


def _namespace(replica: ReplicaSettings, block_bytes: int) -> Namespace:
    return Namespace(
        model=replica.model[:256],
        revision="simulated",
        tokenizer="simulated",
        kv_dtype="simulated",
        block_size=replica.block_size,
        block_bytes=block_bytes,
        layout="simulated",
        backend="simulated",
        instruction_set="simulated",
        layers=1,
        kv_heads=1,
        head_dim=1,
        tp_size=1,
        pp_size=1,
        ranks="0",
        hash_algorithm="xxh3",
        hash_seed="model and salt",
    )
