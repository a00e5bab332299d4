"""The KV agent beside a simulated replica, or the P2P tier in it: what it holds, whom it asks, and how long a
pull takes.

Store, server, sources, hints and limits are a real agent's, so that routers and other simulated replicas meet
what they would meet. Only the blocks have no bytes: they are held by name, and a transfer is time that
passes. A pool is a real gateway, which is given a byte a block.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from router.base.errors import SettingsError
from router.base.tasks import TaskOwner
from router.kv import messages as m
from router.kv.breaker import BreakerState
from router.kv.config import AgentConfig, Peer
from router.kv.hint import Hint, HintFault, HintReader
from router.kv.keys import BlockHash, BlockKey, Namespace, SpaceId, pack_hashes, unpack_hashes
from router.kv.lending import chain_of, head_of, offer_of
from router.kv.local import LEASE_S
from router.kv.pulling import ask_sources
from router.kv.pushing import Priority, PushQueue
from router.kv.remote import RemoteFault
from router.kv.serving import Lent, Placed, Server
from router.kv.sources import Source, states
from router.kv.store import SessionName, Zone
from router.kv.wire import Type
from router.simulator.named import NOTHING, PUSHED_AT_ONCE, PUT_S, NamedBlocks
from router.simulator.settings import ReplicaSettings
from router.simulator.transfers import Transfers

ASK_S: Final = 1.0
"""For the sources' answers. An engine has less patience, and its agent runs in a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBeside:
    """A KV agent beside a simulated replica."""

    config: AgentConfig
    """As a real agent's; socket, arena folder and metrics are of no use here."""
    pull_gbps: float = 100.0
    """Gigabits a second that it sends, and receives."""
    pull_failures: float = 0.0
    """Share of the pulls that fall silent half-way."""
    transfers: Transfers | None = None
    """Shared by the agents of one process; `None`: its own."""
    seed: int = 0
    """For which pulls fail."""
    p2p: bool = False
    """It is vLLM's own P2P tier: a request names its source by address, without a signature; one that does
    not pulls from nobody."""

    def __post_init__(self) -> None:
        """Raises `SettingsError`."""
        faults = []
        if not self.pull_gbps > 0.0:
            faults.append(f"pull_gbps: {self.pull_gbps:g} is not above 0")
        if not 0.0 <= self.pull_failures <= 1.0:
            faults.append(f"pull_failures: {self.pull_failures:g} is no share between 0 and 1")
        if faults:
            raise SettingsError(faults)


class Prospect(NamedTuple):
    """What of a prompt may be had beyond the engine's own caches."""

    tenant: str
    session: str
    keys: Sequence[BlockKey]
    """Of the prompt's full blocks."""
    held: int
    """Blocks from the first on that lie here."""
    blocks: int
    """Those, and what `source` has beyond them."""
    source: Source | None
    stall_s: float
    deadline_s: float
    system_blocks: int


class SimulatedAgent:
    """One agent. `start`, then `close`."""

    def __init__(self, beside: KvBeside, replica: ReplicaSettings) -> None:
        """Made on the loop's thread, while it runs."""
        self.config = config = beside.config
        self.life = Random().randbytes(16)
        self.counts: Counter[str] = Counter()
        self._named = NamedBlocks(replica, config.keeping, config.arena_bytes)
        self._block_bytes = self._named.block_bytes
        self._block_size = replica.block_size
        self._failures = beside.pull_failures
        self._p2p = beside.p2p
        self._chance = Random(beside.seed)
        # Times of the network are real seconds, and a replica's own are scaled.
        self._transfers = beside.transfers or Transfers(beside.pull_gbps * replica.time_scale)
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner()
        self._space = self._named.namespace
        self._store = self._named.store
        self._hints = HintReader(secret=config.secret, replica=config.name)
        self._server = Server(
            self, name=config.name, secret=config.secret, life=self.life, max_block=config.max_block_bytes
        )
        self._sources: dict[str, Source] = {}
        self._queue: PushQueue[tuple[BlockKey, str]] = PushQueue(config.push_blocks)
        self._pushing = asyncio.Event()
        self._coming: dict[BlockKey, asyncio.Future[None]] = {}
        """What a pull is to bring, by the first block of it."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def start(self, port: int) -> None:
        """Listen, and dial the peers of the configuration. Raises `OSError` where it cannot listen."""
        self._server.start(self.config.host, port)
        self._tasks.spawn(self._push(), name="sim kv push")
        self.meet(self.config.peers)

    def meet(self, peers: Sequence[Peer]) -> None:
        """Dial these as well."""
        config = self.config
        for peer in peers:
            if config.mode == "off" or (config.mode == "push-pool" and not peer.is_pool):
                continue
            source = self._sources[peer.name] = Source(
                peer,
                secret=config.secret,
                own_name=config.name,
                max_block=config.max_block_bytes,
                breaker=config.breaker,
                max_pulls=config.pulls_per_source,
            )
            source.compare(self._space)
            source.on_change = partial(self._changed, source)
            self._tasks.spawn(source.run(), name=f"sim kv source {peer.name}")

    async def close(self) -> None:
        """End every connection and forget everything. May be called again."""
        self._transfers.cut(self.config.name)
        await self._server.close()
        await self._tasks.close()
        for source in self._sources.values():
            source.close()

    # For the engine.

    async def prospect(
        self, request: str, tenant: str, raw: Mapping[str, Any] | None, hashes: Sequence[int]
    ) -> Prospect:
        """What may be had of a prompt whose full blocks have these hashes. `tenant`: its `cache_salt`; `raw`:
        the transfer parameters that came with it. Whatever is wrong with a hint, nothing is to be had for
        it."""
        told = (raw or {}).get("remote_kv_source" if self._p2p else "homing")
        told = told if isinstance(told, dict) else None
        try:
            hint = None if told is None or self._p2p else self._hints.read(told, request, time.time())
        except HintFault as fault:
            self.counts[f"hint:{fault.kind.value}"] += 1
            return Prospect(tenant, "", (), 0, 0, None, 0.0, 0.0, 0)
        tenant = tenant if hint is None else hint.tenant
        session = "" if hint is None else hint.session
        space, now = self._space.space, self._loop.time()
        keys = [self._named.key(tenant, one) for one in hashes]
        if session:
            self._store.active(SessionName(space, tenant, session), now)
        held = self._store.prefix(space, tenant, (key.hash for key in keys))
        self._store.lease(held, now + LEASE_S)
        found: list[tuple[Source, int]] = []
        usable = self._at(told, now) if self._p2p else self._usable(hint, now)
        if len(held) < len(keys) and usable:
            wanted = m.Blocks(space, tenant, pack_hashes([key.hash for key in keys[len(held) :]]))
            found = await ask_sources(usable, wanted, ASK_S)
        source, more = found[0] if found else (None, 0)
        return Prospect(
            tenant,
            session,
            keys,
            len(held),
            len(held) + more,
            source,
            self.config.stall_s if hint is None else hint.stall_s,
            self.config.deadline_s if hint is None else hint.deadline_s,
            0 if hint is None else hint.system_tokens // self._block_size,
        )

    async def pull(self, prospect: Prospect) -> int:
        """Bring what was found, within its limits. How many blocks from the first on lie here then."""
        now = self._loop.time()
        until = now + prospect.deadline_s
        held = prospect.held
        here = [block for key in prospect.keys[:held] if (block := self._store.get(key)) is not None]
        name = SessionName(self._space.space, prospect.tenant, prospect.session)
        self._store.use(here, name if prospect.session else None, now)
        while held < prospect.blocks and (coming := self._coming.get(prospect.keys[held])) is not None:
            # One fetch for a block, however many want it.
            await asyncio.wait([coming], timeout=max(0.0, until - self._loop.time()))
            before, held = held, self._length(prospect.keys[: prospect.blocks])
            if held <= before:
                return before
        source = prospect.source
        if held >= prospect.blocks or source is None:
            return min(held, prospect.blocks)
        first = prospect.keys[held]
        coming = self._coming[first] = self._loop.create_future()
        try:
            return held + await self._fetch(prospect, source, held, until)
        finally:
            del self._coming[first]
            coming.set_result(None)

    def keep(self, prospect: Prospect, hashes: Sequence[int]) -> None:
        """The engine has computed, or loaded, the blocks of these hashes."""
        keys = [self._named.key(prospect.tenant, one) for one in hashes]
        stored = self._named.keep(keys, prospect.session, prospect.system_blocks, self._loop.time())
        if stored and any(self._pools()):
            for key, zone in stored:
                priority = Priority.SYSTEM if zone is Zone.SYSTEM else Priority.SESSION
                self._queue.push((key, prospect.session), priority)
            self._pushing.set()

    # For those who dial (`serving.Provider`).

    @property
    def spaces(self) -> Sequence[Namespace]:
        return (self._space,)

    def learn(self, spaces: Sequence[Namespace]) -> None:
        """What peers hold is asked of them when it is wanted."""

    def query(self, space: bytes, tenant: str, hashes: Sequence[BlockHash]) -> int:
        found = self._store.prefix(SpaceId(space), tenant, hashes)
        self._store.lease(found, self._loop.time() + LEASE_S)
        return len(found)

    async def lend(self, space: bytes, tenant: str, hash_: BlockHash) -> Lent | None:  # noqa: ARG002
        return None  # whoever wants bytes is no simulated replica

    def wanted(self, offer: m.OfferBlocks) -> bytes:
        return bytes(len(list(unpack_hashes(offer.hashes))))

    def place(self, head: m.BlockHead, size: int) -> Placed | str:  # noqa: ARG002  # see `wanted`
        return "refused"

    def suspect(self, space: bytes, tenant: str, hash_: BlockHash) -> None:
        """There are no bytes that could be damaged."""

    def chain(self, tenant: str, session: str) -> tuple[list[BlockHash], int]:
        blocks = self._store.chain(SessionName(self._space.space, tenant, session))
        self._store.lease(blocks, self._loop.time() + LEASE_S)
        return chain_of(blocks)

    async def prefetch(self, wish: m.Prefetch) -> m.Done:
        until = self._loop.time() + wish.deadline_ms / 1000
        reason = "source"
        for source in [self._sources[name] for name in wish.sources if name in self._sources]:
            if source.unusable(self._loop.time()) or source.control is None:
                continue
            try:
                asked = m.OfSession(wish.tenant, wish.session)
                found = await source.control.call(Type.SESSION, asked, m.Chain, ASK_S)
            except RemoteFault as fault:
                reason = fault.reason
                continue
            keys = [BlockKey(self._space.space, wish.tenant, hash_) for hash_ in unpack_hashes(found.hashes)]
            if not keys:
                reason = "gone"
                continue
            held = self._length(keys)
            prospect = Prospect(
                wish.tenant, wish.session, keys, held, len(keys), source,
                max(self.config.stall_s, 0.5), until - self._loop.time(), found.system_blocks,
            )  # fmt: skip
            came = await self.pull(prospect) - held
            return m.Done(came, came * self._block_bytes, "done" if held + came == len(keys) else "source")
        return m.Done(0, 0, reason)

    def release(self, tenant: str, session: str) -> m.Done:
        gone = self._store.release(SessionName(self._space.space, tenant, session), self._loop.time())
        return m.Done(len(gone), len(gone) * self._block_bytes, "done")

    def changes(self, life: bytes, since: int) -> m.Changes:
        now = self._loop.time()
        found = self._store.changes(since if life == self.life else 0)
        held = [
            m.HeldSession(one.name.tenant, one.name.id, one.blocks, max(0.0, now - one.active))
            for one in found.held
        ]
        return m.Changes(
            self.life,
            found.number,
            found.complete,
            held,
            [(name.tenant, name.id) for name in found.gone],
            self._block_size,
            len(self._store),
            self._store.policy.capacity_bytes // self._block_bytes,
            states(list(self._sources.values()), now),
        )

    # Inside.

    def _usable(self, hint: Hint | None, now: float) -> list[Source]:
        named = self._sources if hint is None else hint.sources
        sources = [self._sources[name] for name in dict.fromkeys(named) if name in self._sources]
        return [source for source in sources if not source.unusable(now)]

    def _at(self, named: Mapping[str, Any] | None, now: float) -> list[Source]:
        """The peer that a request names by its address; as in vLLM, nobody where the name is not complete."""
        if named is None or not named.get("kv_request_id"):
            return []
        where = (named.get("remote_host"), named.get("remote_port"))
        return [
            one
            for one in self._sources.values()
            if (one.peer.host, one.peer.port) == where and not one.unusable(now)
        ]

    def _length(self, keys: Sequence[BlockKey]) -> int:
        """How many of these lie here, from the first on."""
        return next((at for at, key in enumerate(keys) if key not in self._store), len(keys))

    async def _fetch(self, prospect: Prospect, source: Source, held: int, until: float) -> int:
        """Bring what the source has beyond the first `held` blocks. How many came."""
        began = self._loop.time()
        if source.unusable(began) or not source.breaker.allows(began):
            return 0
        missing = prospect.keys[held : prospect.blocks]
        whole = len(missing) * self._block_bytes
        fails = self._chance.random() < self._failures
        size = whole / 2 if fails else whole
        source.pulls += 1
        self.counts["pulls"] += 1
        reason, came = "cancelled", 0.0
        try:
            came = await self._transfers.take(source.name, self.config.name, size, until - began)
            if came < size:
                reason = "deadline" if source.is_connected else "lost"
            elif fails:
                rest = until - self._loop.time()
                reason = "stall" if prospect.stall_s < rest else "deadline"
                await asyncio.sleep(max(0.0, min(prospect.stall_s, rest)))
            else:
                reason = "done"
        finally:
            now = self._loop.time()
            source.pulls -= 1
            source.ended(reason, size=int(came), seconds=now - began, now=now)
            self.counts[f"ended:{reason}"] += 1
        blocks = int(came // self._block_bytes)
        self.counts["pulled_blocks"] += blocks
        self._named.keep(prospect.keys[: held + blocks], prospect.session, prospect.system_blocks, now)
        return blocks

    def _pools(self) -> list[Source]:
        return [source for source in self._sources.values() if source.peer.is_pool]

    def _changed(self, source: Source) -> None:
        if source.peer.is_pool:
            self._pushing.set()
        if not source.is_connected:
            self._transfers.cut(source.name, self.config.name)

    async def _push(self) -> None:
        """Give pools what is new here, until cancelled."""
        while True:
            await self._pushing.wait()
            self._pushing.clear()
            while (pools := [one for one in self._pools() if one.is_connected]) and len(self._queue):
                batch = [item for _ in range(PUSHED_AT_ONCE) if (item := self._queue.pop()) is not None]
                for pool in pools:
                    try:
                        await self._push_to(pool, batch)
                    except RemoteFault as fault:
                        self.counts[f"push:{fault.reason}"] += len(batch)

    async def _push_to(self, pool: Source, batch: list[tuple[BlockKey, str]]) -> None:
        """Raises `RemoteFault`."""
        if pool.control is None or pool.bulk is None:
            raise RemoteFault("unreachable")
        for tenant in dict.fromkeys(key.tenant for key, _ in batch):
            sessions = {key: session for key, session in batch if key.tenant == tenant}
            blocks = [block for key in sessions if (block := self._store.get(key)) is not None]
            if not blocks:
                continue
            wanted = await pool.control.call(Type.OFFER, offer_of(blocks), m.Wanted, PUT_S)
            sending = [one for one, wants in zip(blocks, wanted.wanted, strict=False) if wants]
            size = len(sending) * self._block_bytes
            await self._transfers.take(self.config.name, pool.name, size, PUT_S)
            for block in sending:
                head = head_of(block, sessions[block.key])
                kept = await pool.bulk.put(head, NOTHING, PUT_S, _done)
                self.counts[f"push:{kept.outcome}"] += 1

    def figures(self) -> dict[str, float]:
        """For `/sim/state`."""
        now = self._loop.time()
        opened = [one for one in self._sources.values() if one.breaker.state(now) is BreakerState.OPEN]
        return {"blocks": len(self._store), "breakers_open": len(opened), **self.counts}


def _done() -> None:
    """A block without bytes is free at once."""
