"""Follows the KV events of replicas over ZMQ, so that what the router believes of their caches is known.

Batches are numbered. What is missing is asked for at the replay port; where it cannot be had, what was known
is let go, and bookkeeping does until the feed is whole again. A number that went back is another process.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from router.base.ids import ReplicaId
from router.base.tasks import TaskOwner
from router.controlplane.kv_events import EventsError, apply
from router.core.fleet import ReplicaSpec
from router.core.residency import Residency

_log = logging.getLogger(__name__)

_REPLAY_S: Final = 5.0
"""For the next piece of a replay."""
_AGAIN_S: Final = 2.0
_MAX_BYTES: Final = 4 * 1024 * 1024
"""Of a batch, which is what one step of an engine has changed: ten times what a step of 64k tokens says."""
_BEAT_MS: Final = 2_000
"""A publisher that answers no heartbeat for three of these is gone."""

# Batches in a row, and blocks or events of one, before others get their turn of the loop.
_AT_ONCE: Final = 16
_BLOCKS_AT_ONCE: Final = 8_192
_EVENTS_AT_ONCE: Final = 1_024

# What was replayed may come once more, from the publisher: it had been sent meanwhile.
_REMEMBERED: Final = 2_048

_END: Final = 2**64 - 1


class Followed(Protocol):
    """What is asked of the engine."""

    def follow(self, replica: ReplicaId, residency: Residency | None) -> None: ...

    def cache_cleared(self, replica: ReplicaId) -> None: ...


class FeedStatus(NamedTuple):
    """One feed, for people and metrics."""

    replica: ReplicaId
    live: bool
    """What its events say is in use."""
    why: str
    """Why it is not; "" if it is."""
    batches: int
    gaps: int
    """Batches that were missing, and were replayed."""
    losses: int
    """Times that what was known had to be let go."""
    unplaced: int
    """Events about blocks whose parents are not known."""
    blocks: int


class _ResyncError(Exception):
    """What is known no longer holds; the message says why."""


class KvFeed:
    """The feed of one replica."""

    def __init__(self, spec: ReplicaSpec, engine: Followed, context: zmq.asyncio.Context) -> None:
        assert spec.kv_events is not None
        self.spec = spec
        self._url = spec.kv_events
        self._replay_url = spec.kv_replay
        self._engine = engine
        self._context = context
        self._residency = Residency()
        self._next: int | None = None
        self._replayed: deque[tuple[int, bytes]] = deque(maxlen=_REMEMBERED)
        """Numbers and digests of batches."""
        self._live = False
        self._why = "not connected yet"
        self._batches = self._gaps = self._losses = self._unplaced = 0

    @property
    def status(self) -> FeedStatus:
        return FeedStatus(
            self.spec.id,
            self._live,
            self._why,
            self._batches,
            self._gaps,
            self._losses,
            self._unplaced,
            len(self._residency),
        )

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            subscriber = self._context.socket(zmq.SUB)
            try:
                await self._follow(subscriber)
            except _ResyncError as error:
                self._let_go(str(error))
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the feed for good
                _log.exception("KV events of %s: following failed", self.spec.id)
                self._let_go(f"the router failed to follow: {type(error).__name__}")
            finally:
                subscriber.close(linger=0)
            await asyncio.sleep(_AGAIN_S)

    def stop(self) -> None:
        """What is known is no longer kept up."""
        self._live = False
        self._engine.follow(self.spec.id, None)

    async def _follow(self, subscriber: zmq.asyncio.Socket) -> None:
        subscriber.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        subscriber.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
        subscriber.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _BEAT_MS)
        subscriber.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        subscriber.subscribe(b"")
        monitor = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            subscriber.connect(self._url)
            await self._connected(monitor)
            await self._begin()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(subscriber))
                group.create_task(_until_lost(monitor))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            subscriber.disable_monitor()
            monitor.close(linger=0)

    async def _connected(self, monitor: zmq.asyncio.Socket) -> None:
        while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            pass

    async def _begin(self) -> None:
        """Know nothing, then all that can be replayed."""
        self._residency = Residency()
        self._next = None
        self._replayed.clear()
        await self._replay(0)
        self._live, self._why = True, ""
        self._engine.follow(self.spec.id, self._residency)
        _log.info("KV events of %s: %d blocks are known", self.spec.id, len(self._residency))

    async def _read(self, subscriber: zmq.asyncio.Socket) -> None:
        count = 0
        while True:
            frames = await subscriber.recv_multipart()
            if len(frames) >= 2 and len(frames[-2]) == 8:
                await self._take(int.from_bytes(frames[-2], "big"), frames[-1])
            count += 1
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _take(self, number: int, payload: bytes) -> None:
        if self._next is not None and number < self._next:
            if (number, _digest(payload)) in self._replayed:
                return
            raise _ResyncError("its numbers went back: another process publishes")
        if self._next is not None and number > self._next:
            self._gaps += number - self._next
            await self._replay(self._next)
            if number < self._next:
                return  # it came with the replay
            if number > self._next:
                raise _ResyncError(f"{number - self._next} batches are lost")
        await self._apply(number, payload)

    async def _replay(self, start: int) -> None:
        """Take in what the publisher still has, from a number on. It may have nothing, or no such port."""
        if self._replay_url is None:
            return
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
            dealer.connect(self._replay_url)
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            count = 0
            while True:
                async with asyncio.timeout(_REPLAY_S):
                    frames = await dealer.recv_multipart()
                if len(frames) < 3 or len(frames[-2]) != 8:
                    continue
                number = int.from_bytes(frames[-2], "big")
                if number == _END:
                    return
                if self._next is not None and number > self._next:
                    raise _ResyncError(f"{number - self._next} batches are lost")
                if self._next is None or number == self._next:
                    self._replayed.append((number, _digest(frames[-1])))
                    await self._apply(number, frames[-1])
                count += 1
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        except TimeoutError:
            _log.warning("KV events of %s: nobody answers at %s", self.spec.id, self._replay_url)
        finally:
            dealer.close(linger=0)

    async def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self._batches += 1
        blocks = events = 0
        try:
            for step in apply(payload, self._residency, self._cleared):
                self._unplaced += not step.placed
                blocks += step.blocks
                events += 1
                if blocks >= _BLOCKS_AT_ONCE or events >= _EVENTS_AT_ONCE:
                    blocks = events = 0
                    await asyncio.sleep(0)
        except EventsError as error:
            raise _ResyncError(str(error)) from error

    def _cleared(self) -> None:
        if self._live:
            self._engine.cache_cleared(self.spec.id)
            self._engine.follow(self.spec.id, self._residency)

    def _let_go(self, why: str) -> None:
        if self._live:
            self._losses += 1
        if why != self._why:
            _log.warning("KV events of %s: %s; the router's own bookkeeping goes on", self.spec.id, why)
        self._why = why
        self.stop()


class KvFeeds:
    """The feeds of all replicas that have one."""

    def __init__(self, engine: Followed) -> None:
        self._engine = engine
        self._context: zmq.asyncio.Context | None = None
        self._feeds: dict[ReplicaId, tuple[KvFeed, asyncio.Task[object]]] = {}
        self._tasks = TaskOwner()

    def set_replicas(self, specs: Iterable[ReplicaSpec]) -> None:
        """Follow exactly these, as far as they publish. Needs a running event loop."""
        wanted: Mapping[ReplicaId, ReplicaSpec] = {spec.id: spec for spec in specs if spec.kv_events}
        for replica, (feed, task) in tuple(self._feeds.items()):
            if wanted.get(replica) != feed.spec:
                task.cancel()
                feed.stop()
                del self._feeds[replica]
        for replica, spec in wanted.items():
            if replica not in self._feeds:
                if self._context is None:
                    self._context = zmq.asyncio.Context()
                feed = KvFeed(spec, self._engine, self._context)
                self._feeds[replica] = (feed, self._tasks.spawn(feed.run(), name=f"KV events of {replica}"))

    def status(self) -> tuple[FeedStatus, ...]:
        """Each feed."""
        return tuple(feed.status for feed, _ in self._feeds.values())

    async def close(self) -> None:
        """Follow nobody. May be called again."""
        await self._tasks.close()
        if self._context is not None:
            self._context.destroy(linger=0)


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()


async def _until_lost(monitor: zmq.asyncio.Socket) -> None:
    """Raises `_ResyncError` when the connection is gone."""
    while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_DISCONNECTED:
        pass
    raise _ResyncError("the connection was lost")
