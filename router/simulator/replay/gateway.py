"""The KV gateway of a replay: a pool that replicas push what they have computed to, and pull from.

Its store is a real gateway's, without the bytes. Replicas push as simulated ones do: what the pool lacks of
what they have, in order, some blocks at a time. It shares the network with pulls, and sends and receives at
the rate of one replica. Knows neither router nor fleet.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.holdings import AgentReport
from router.kv.config import KeepingConfig
from router.kv.keys import ROOT
from router.simulator.cache import BlockCache
from router.simulator.named import PUSHED_AT_ONCE, PUT_S, NamedBlocks
from router.simulator.replay.network import Arrival, Network, whole_blocks
from router.simulator.settings import ReplicaSettings

GATEWAY: Final = ReplicaId("gateway")
"""Its name on the network, and to the router."""

_PUSH: Final = "push "


class _Wish(NamedTuple):
    """Blocks that a replica has, or will, for the pool."""

    cache: BlockCache
    hashes: Sequence[int]
    session: SessionKey


class Pool:
    """One gateway and all pushes to it."""

    def __init__(self, settings: ReplicaSettings, tokens: int, network: Network) -> None:
        """`tokens`: for how many it has room."""
        self._named = NamedBlocks(settings, KeepingConfig(), tokens * settings.kv_bytes_per_token)
        self._network = network
        self._block = settings.block_size
        self._queues: dict[ReplicaId, deque[_Wish]] = {}
        self._sending: dict[ReplicaId, tuple[_Wish, int]] = {}
        """What is on its way from whom, and how many blocks of it were here before."""
        self._told = 0
        """The last change that was reported."""

    def push(
        self, replica: ReplicaId, cache: BlockCache, hashes: Sequence[int], session: SessionKey, now: float
    ) -> None:
        """A replica has computed, or will have when it comes to it, the blocks of these hashes."""
        self._queues.setdefault(replica, deque()).append(_Wish(cache, hashes, session))
        if replica not in self._sending:
            self._send(replica, now)

    def lost(self, replica: ReplicaId) -> None:
        """It is gone, with all that it would have pushed. What is on its way is for the network to cut."""
        self._queues.pop(replica, None)

    def has_sent(self, arrival: Arrival) -> bool:
        """Whether a transfer was a push, and not a pull."""
        return arrival.name.startswith(_PUSH)

    def arrived(self, arrival: Arrival, now: float) -> None:
        """A push has ended: what came of it lies here."""
        replica = ReplicaId(arrival.name.removeprefix(_PUSH))
        wish, held = self._sending.pop(replica)
        named, hashes = self._named, wish.hashes
        until = held + whole_blocks(arrival.size, named.block_bytes)
        above = named.key(OPEN_TENANT, hashes[held - 1]).hash if held else ROOT
        keys = [named.key(OPEN_TENANT, one) for one in hashes[held:until]]
        named.keep(keys, wish.session, 0, now, above=above)
        queue = self._queues.get(replica)
        if queue and queue[0] is wish and (until == held or keys[-1] not in named.store):
            # Nothing came in time, or there is no room: no more of it is sent.
            queue.popleft()
        self._send(replica, now)

    def lend(self, hashes: Sequence[int], most: int, now: float) -> int:
        """How many of the first `most` blocks lie here. They are of use to whoever asks."""
        named = self._named
        held = named.length(OPEN_TENANT, hashes, min(most, len(hashes)))
        keys = [named.key(OPEN_TENANT, one) for one in hashes[:held]]
        named.store.use([block for key in keys if (block := named.store.get(key)) is not None], None, now)
        return held

    def report(self, now: float) -> AgentReport:
        """What has changed since the last report, once room is made as each second."""
        store = self._named.store
        store.evict(store.excess_bytes, now)
        changes = store.changes(self._told)
        self._told = changes.number
        return AgentReport(
            changes.complete,
            tuple((SessionKey(one.name.id), one.blocks * self._block) for one in changes.held),
            tuple(SessionKey(name.id) for name in changes.gone),
            len(store) * self._block,
            store.policy.capacity_bytes // self._named.block_bytes * self._block,
        )

    def _send(self, replica: ReplicaId, now: float) -> None:
        """Begin the next push of a replica, if there is anything to push."""
        named, queue = self._named, self._queues.get(replica)
        while queue:
            wish = queue[0]
            there = wish.cache.match(wish.hashes, len(wish.hashes))
            most = there.device + there.host
            held = named.length(OPEN_TENANT, wish.hashes, most)
            if held < most:
                size = min(PUSHED_AT_ONCE, most - held) * named.block_bytes
                self._sending[replica] = wish, held
                self._network.start(_PUSH + replica, replica, GATEWAY, size, now, now + PUT_S)
                return
            queue.popleft()
