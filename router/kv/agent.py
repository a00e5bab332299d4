"""The KV agent: keeps the blocks of the engine beside it, serves them to peers, and pulls theirs.

Puts the parts together: the shelf (store and arena), the engines on the unix socket, the sources it dials,
the server that peers and the router dial, and the queue of blocks to push to the pool.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from router.base.clock import Clock, SystemClock
from router.base.tasks import TaskOwner
from router.kv import messages as m
from router.kv.agent_figures import PULL_SECONDS, agent_figures
from router.kv.arena import ArenaFault, ArenaOwner, Handle, arena_path, remove_leftovers
from router.kv.breaker import BreakerState
from router.kv.config import AgentConfig
from router.kv.engines import EngineHub, Prospect
from router.kv.exposition import Histogram, MetricsServer, exposition
from router.kv.hint import Hint, HintFault, HintReader
from router.kv.keys import BlockHash, BlockKey, Namespace, SpaceId, pack_hashes, unpack_hashes
from router.kv.lending import chain_of, lend_block
from router.kv.local import LEASE_S
from router.kv.policy import policy_of
from router.kv.pulling import Pull, Puller, ask_sources
from router.kv.pusher import Pusher
from router.kv.remote import RemoteFault
from router.kv.serving import Lent, Placed, Server
from router.kv.shelf import Shelf
from router.kv.sources import Source, states
from router.kv.store import Block, SessionName
from router.kv.wire import Type

_log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_HEADROOM: Final = 1.5
"""A pull is begun only where so many times its blocks are free or can be freed."""
_ASK_SHARE: Final = 0.6
"""Of the engine's patience, for the sources' answers: the rest is for the way there and back."""


class Agent:
    """One agent. `start`, then `close`."""

    def __init__(self, config: AgentConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.tasks = TaskOwner()
        self.life = secrets.token_bytes(16)
        self.space: Namespace | None = None
        self.shelf: Shelf | None = None
        self.hub = EngineHub(self, config.socket)
        self.server = Server(
            self, name=config.name, secret=config.secret, life=self.life, max_block=config.max_block_bytes
        )
        self.sources = {
            peer.name: Source(
                peer,
                secret=config.secret,
                own_name=config.name,
                max_block=config.max_block_bytes,
                breaker=config.breaker,
                max_pulls=config.pulls_per_source,
            )
            for peer in config.peers
            if config.mode == "both" or (config.mode == "push-pool" and peer.is_pool)
        }
        self.pusher = Pusher(
            [one for one in self.sources.values() if one.peer.is_pool],
            config.push_blocks,
            codec=config.push_codec,
            codec_system=config.push_codec_system,
        )
        self.metrics = MetricsServer(self.exposition)
        self._puller: Puller | None = None
        self._hints = HintReader(secret=config.secret, replica=config.name)
        self._counts: Counter[str] = Counter()
        self._hints_refused: Counter[str] = Counter()
        self._pull_seconds = Histogram(PULL_SECONDS)
        self._making = asyncio.Lock()
        self._arena_made: asyncio.Future[ArenaOwner] | None = None

    async def start(self) -> None:
        """Listen and dial. Raises `OSError` where it cannot listen."""
        for path in remove_leftovers(self.config.arena_folder):
            _log.info("removed '%s': its agent is gone", path)
        try:
            await self.hub.start()
            self.server.start(self.config.host, self.config.port)
            if self.config.metrics_port is not None:
                await self.metrics.start(self.config.metrics_host, self.config.metrics_port)
        except OSError:
            await self.close()
            raise
        for source in self.sources.values():
            self.tasks.spawn(source.run(), name=f"kv source {source.name}")
        self.tasks.spawn(self.pusher.run(), name="kv push")
        self.tasks.spawn(self._tick(), name="kv tick")

    async def close(self) -> None:
        """Stop serving, end all connections, give the memory back."""
        await self.metrics.close()
        await self.hub.close()
        await self.server.close()
        await self.tasks.close()
        for source in self.sources.values():
            source.close()
        await self._give_up_arena()
        if self.shelf is not None:
            self.shelf.close()
            self.shelf = None

    async def _give_up_arena(self) -> None:
        """Of one whose engine left while it was made: the thread that makes it has gone on."""
        if self._arena_made is not None:
            with suppress(ArenaFault):
                (await asyncio.shield(self._arena_made)).close()
            self._arena_made = None

    # For the engines (`engines.Host`).

    async def shelf_for(
        self, space: Namespace, part_bytes: int, parts: int, *, alone: bool
    ) -> Shelf | m.Refused:
        """Raises `ArenaFault`."""
        async with self._making:
            if self.space is not None and self.shelf is not None:
                if self.space == space:
                    return self.shelf
                if not alone:
                    differences = "; ".join(self.space.differences(space))
                    return m.Refused("namespace", f"another engine is here: {differences}"[:1024])
                _log.info("a new namespace: %s", "; ".join(self.space.differences(space)))
                self.shelf.close()
                self.space = self.shelf = self._puller = None
            if space.block_bytes > self.config.max_block_bytes:
                text = f"block_bytes: {space.block_bytes} is more than {self.config.max_block_bytes}"
                return m.Refused("namespace", text)
            slots = self.config.arena_bytes // space.block_bytes
            path = arena_path(self.config.arena_folder, self.config.name)
            await self._give_up_arena()
            make = partial(ArenaOwner, path, slots=slots, part_bytes=part_bytes, parts=parts)
            self._arena_made = asyncio.get_running_loop().run_in_executor(None, make)
            owner = await asyncio.shield(self._arena_made)
            self._arena_made = None
            policy = policy_of(self.config.keeping, slots * owner.arena.block_bytes)
            self.space, self.shelf = space, Shelf(owner, policy, self.hub.tell_gone)
            self._puller = Puller(self.shelf, self.clock, space, verify_local=self.config.verify_local)
            self.pusher.open(self.shelf, space)
        for source in self.sources.values():
            source.compare(space)
        self.server.tell_spaces()
        return self.shelf

    async def prospect(self, ask: m.Ask) -> Prospect:
        hashes = list(unpack_hashes(ask.hashes))
        self._counts["queries"] += 1
        self._counts["query_blocks"] += len(hashes)
        try:
            hint = self._hint(ask)
        except HintFault as fault:
            self._hints_refused[fault.kind.value] += 1
            return self._nothing(ask.tenant, f"hint:{fault.kind.value}")
        if self.shelf is None or self.space is None:
            return self._nothing(ask.tenant, "disconnected")
        space, now = self.space.space, self.clock.now()
        tenant = ask.tenant if hint is None else hint.tenant
        session = "" if hint is None else hint.session
        if session:
            self.shelf.store.active(SessionName(space, tenant, session), now)
        local = self.shelf.store.prefix(space, tenant, hashes)
        self.shelf.store.lease(local, now + LEASE_S)
        found: list[tuple[Source, int]] = []
        reason = ""
        if len(local) < len(hashes):
            usable, reason = self._usable(hint, now)
            if usable:
                blocks = m.Blocks(space, tenant, pack_hashes(hashes[len(local) :]))
                found = await ask_sources(usable, blocks, ask.patience_ms / 1000 * _ASK_SHARE)
        if found and found[0][1] * _HEADROOM > self.shelf.room - self.hub.held_blocks - len(local):
            found, reason = [], "pressure"
        blocks_found = len(local) + (found[0][1] if found else 0)
        self._counts["hit_blocks"] += blocks_found
        return Prospect(
            tenant=tenant,
            session=session,
            keys=[BlockKey(space, tenant, hash_) for hash_ in hashes],
            local=len(local),
            blocks=min(blocks_found, len(hashes)),
            sources=[source for source, _ in found],
            stall_s=self.config.stall_s if hint is None else hint.stall_s,
            deadline_s=self.config.deadline_s if hint is None else hint.deadline_s,
            system_blocks=0 if hint is None else hint.system_tokens // self.space.block_size,
            reason="" if found else reason,
        )

    async def pull(self, pull: Pull) -> str:
        if self._puller is None:
            return "disconnected"
        began = self.clock.now()
        reason = await self._puller.run(pull)
        self._counts["pulls"] += 1
        self._counts["pulls_failed"] += reason not in {"done", "cancelled"}
        if reason != "cancelled":
            self._pull_seconds.observe(self.clock.now() - began)
        return reason

    def stored(self, block: Block[Handle]) -> None:
        self.pusher.add(block)

    def dropped(self, count: int) -> None:
        self._counts["dropped"] += count

    # For those who dial (`serving.Provider`).

    @property
    def spaces(self) -> Sequence[Namespace]:
        return () if self.space is None else (self.space,)

    def learn(self, spaces: Sequence[Namespace]) -> None:
        """What peers hold is asked of them when it is wanted."""

    def query(self, space: bytes, tenant: str, hashes: Sequence[BlockHash]) -> int:
        if self.shelf is None:
            return 0
        found = self.shelf.store.prefix(SpaceId(space), tenant, hashes)
        self.shelf.store.lease(found, self.clock.now() + LEASE_S)
        return len(found)

    async def lend(self, space: bytes, tenant: str, hash_: BlockHash) -> Lent | None:
        block = None
        if self.shelf is not None:
            block = self.shelf.store.get(BlockKey(SpaceId(space), tenant, hash_))
        if block is None or self.shelf is None:
            return None
        now = self.clock.now()
        self.shelf.store.use([block], None, now)
        self.shelf.store.lease([block], now + LEASE_S)
        return lend_block(self.shelf, block)

    def wanted(self, offer: m.OfferBlocks) -> bytes:
        """An agent takes blocks from its engine, and what it asks for itself."""
        return bytes(len(list(unpack_hashes(offer.hashes))))

    def place(self, head: m.BlockHead, size: int) -> Placed | str:  # noqa: ARG002  # see `wanted`
        return "refused"

    def suspect(self, space: bytes, tenant: str, hash_: BlockHash) -> None:
        if self.shelf is not None:
            block = self.shelf.store.get(BlockKey(SpaceId(space), tenant, hash_))
            if block is not None:
                self.shelf.is_sound(block)

    def chain(self, tenant: str, session: str) -> tuple[list[BlockHash], int]:
        if self.shelf is None or self.space is None:
            return [], 0
        name = SessionName(self.space.space, tenant, session)
        blocks = self.shelf.store.chain(name)
        self.shelf.store.lease(blocks, self.clock.now() + LEASE_S)
        return chain_of(blocks)

    async def prefetch(self, wish: m.Prefetch) -> m.Done:
        if self.shelf is None or self.space is None or self._puller is None:
            return m.Done(0, 0, "disconnected")
        shelf, now = self.shelf, self.clock.now()
        until = now + wish.deadline_ms / 1000
        reason = "source"
        for name in wish.sources:
            source = self.sources.get(name)
            if source is None or source.unusable(now) or source.control is None:
                continue
            try:
                found = await source.control.call(
                    Type.SESSION, m.OfSession(wish.tenant, wish.session), m.Chain, max(0.05, until - now)
                )
            except RemoteFault as fault:
                reason = fault.reason
                continue
            keys = [BlockKey(self.space.space, wish.tenant, hash_) for hash_ in unpack_hashes(found.hashes)]
            new = [key for key in keys if key not in shelf.store]
            if not keys:
                reason = "gone"
                continue
            held = len(keys) - len(new)
            if len(new) * _HEADROOM > shelf.room - self.hub.held_blocks - held:
                return m.Done(0, 0, "pressure")

            def let_go(handles: list[Handle]) -> None:
                for handle in handles:
                    shelf.owner.release(handle)

            pull = Pull(
                new,
                [source],
                let_go,
                session=wish.session,
                system_blocks=sum(key not in shelf.store for key in keys[: found.system_blocks]),
                stall_s=max(self.config.stall_s, 0.5),
                until=until,
                now=self.clock.now(),
                ahead=True,
            )
            reason = await self.pull(pull)
            # Not all that came is held: a quota or a lost parent may keep it out.
            kept = sum(key in shelf.store for key in new)
            if reason == "done" and kept < len(new):
                reason = "full"
            self._counts["prefetched_blocks"] += kept
            return m.Done(kept, kept * shelf.block_bytes, reason)
        return m.Done(0, 0, reason)

    def release(self, tenant: str, session: str) -> m.Done:
        if self.shelf is None or self.space is None:
            return m.Done(0, 0, "disconnected")
        name = SessionName(self.space.space, tenant, session)
        gone = self.shelf.store.release(name, self.clock.now())
        self.shelf.drop(gone)
        return m.Done(len(gone), len(gone) * self.shelf.block_bytes, "done")

    def changes(self, life: bytes, since: int) -> m.Changes:
        now = self.clock.now()
        held: list[m.HeldSession] = []
        gone: list[tuple[str, str]] = []
        number, complete, capacity, blocks = 0, True, 0, 0
        if self.shelf is not None:
            found = self.shelf.store.changes(since if life == self.life else 0)
            number, complete = found.number, found.complete
            held = [
                m.HeldSession(one.name.tenant, one.name.id, one.blocks, max(0.0, now - one.active))
                for one in found.held
            ]
            gone = [(name.tenant, name.id) for name in found.gone]
            capacity, blocks = self.shelf.owner.arena.slots, len(self.shelf.store)
        return m.Changes(
            self.life,
            number,
            complete,
            held,
            gone,
            0 if self.space is None else self.space.block_size,
            blocks,
            capacity,
            states(list(self.sources.values()), now),
        )

    # Figures.

    def stats(self) -> dict[str, float]:
        """What the engine's connector shows; named in docs/kv-protocol.md."""
        shelf, now = self.shelf, self.clock.now()
        counts = None if shelf is None else shelf.store.counts
        open_sources = [one for one in self.sources.values() if one.breaker.state(now) is BreakerState.OPEN]
        figures = {
            "queries_total": self._counts["queries"],
            "query_blocks_total": self._counts["query_blocks"],
            "hit_blocks_total": self._counts["hit_blocks"],
            "pulled_bytes_total": sum(one.pulled_bytes for one in self.sources.values()),
            "served_bytes_total": self.server.sent_bytes,
            "pushed_bytes_total": self.pusher.pushed_bytes,
            "pulls_total": self._counts["pulls"],
            "pulls_failed_total": self._counts["pulls_failed"],
            "prefetched_blocks_total": self._counts["prefetched_blocks"],
            "prefetch_hit_blocks_total": 0 if counts is None else counts.ahead_used,
            "prefetch_wasted_bytes_total": 0 if counts is None else counts.ahead_wasted_bytes,
            "loads_short_total": self.hub.loads_short,
            "damaged_total": (0 if self._puller is None else self._puller.damaged)
            + (0 if counts is None else counts.damaged),
            "quarantined_total": 0 if shelf is None else shelf.set_aside,
            "conflicts_total": 0 if counts is None else counts.conflicts,
            "dropped_total": self._counts["dropped"] + self.pusher.dropped,
            "evicted_blocks_total": 0 if counts is None else sum(counts.evicted.values()),
            "hints_refused_total": self._hints_refused.total(),
            "push_queue_blocks": len(self.pusher),
            "breaker_open": len(open_sources),
            "pool_pressure": any(one.peer.is_pool for one in open_sources),
            "slots": 0 if shelf is None else shelf.owner.arena.slots,
            "slots_free": 0 if shelf is None else shelf.owner.free,
            "blocks": 0 if shelf is None else len(shelf.store),
        }
        return {name: float(value) for name, value in figures.items()}

    def exposition(self) -> str:
        """For the scraper."""
        text = exposition(
            agent_figures(
                self.stats(),
                list(self.sources.values()),
                self.clock.now(),
                hints_refused=self._hints_refused,
                connections_refused=self.server.refused,
                evicted={} if self.shelf is None else self.shelf.store.counts.evicted,
            )
        )
        lines = self._pull_seconds.lines("pull_seconds", "Seconds that loads and prefetches took.")
        return text + "\n".join(lines) + "\n"

    # Inside.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self.shelf is not None:
                self.shelf.trim(self.clock.now())
            self.hub.tell_stats(self.stats())

    def _hint(self, ask: m.Ask) -> Hint | None:
        """Raises `HintFault`."""
        return None if ask.hint is None else self._hints.read(ask.hint, ask.request, time.time())

    def _usable(self, hint: Hint | None, now: float) -> tuple[list[Source], str]:
        """Sources that may be asked, and why one that should be is not."""
        named = list(self.sources) if hint is None else hint.sources
        usable: list[Source] = []
        reason = ""
        for name in dict.fromkeys(named):
            source = self.sources.get(name)
            if source is None:
                continue  # a name from a hint is looked up, never dialled
            if trouble := source.unusable(now):
                reason = reason or trouble
            else:
                usable.append(source)
        return usable, reason

    def _nothing(self, tenant: str, reason: str) -> Prospect:
        return Prospect(tenant, "", (), 0, 0, (), 0.0, 0.0, 0, reason)
