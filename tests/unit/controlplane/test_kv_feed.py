"""Following KV events over real ZMQ sockets: replay, gaps, restarts, silence and nonsense."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from support.plane import until
from support.ports import free_pair

from router.base.ids import ReplicaId, SessionKey
from router.controlplane import kv_feed as module
from router.controlplane.kv_feed import KvFeed, KvFeeds
from router.core.fleet import ReplicaSpec
from router.core.residency import MAX_AT_ONCE
from router.simulator.events import REPLAY_PORT, KvEventPublisher

A, S = ReplicaId("a"), SessionKey("s")


class Engine:
    def __init__(self) -> None:
        self.residency = None
        self.followed = 0
        self.cleared = 0

    def follow(self, replica, residency) -> None:
        assert replica == A
        self.followed += residency is not None
        self.residency = residency

    def cache_cleared(self, replica) -> None:
        self.cleared += 1

    @property
    def tokens(self):
        return self.residency.tokens(S) if self.residency is not None else None


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.02)
    monkeypatch.setattr(module, "_REPLAY_S", 0.5)


@pytest.fixture
def port():
    return free_pair()


@asynccontextmanager
async def publisher(port, **more):
    made = KvEventPublisher("127.0.0.1", port, 16, **more)
    made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def feeds(port, *, replay=True):
    engine = Engine()
    made = KvFeeds(engine)
    at = "tcp://127.0.0.1"
    made.set_replicas(
        [
            ReplicaSpec(
                A,
                "http://a",
                kv_events=f"{at}:{port}",
                kv_replay=f"{at}:{port + REPLAY_PORT}" if replay else None,
            ),
            ReplicaSpec(ReplicaId("b"), "http://b"),
        ]
    )
    try:
        yield engine, made
    finally:
        await made.close()


async def test_what_was_published_before_is_replayed_and_what_follows_is_followed(port):
    async with publisher(port) as source:
        source.stored([1, 2], None, "s")
        await asyncio.sleep(0)
        async with feeds(port) as (engine, made):
            await until(lambda: engine.tokens == 32)
            source.stored([3], 2, "s")
            await until(lambda: engine.tokens == 48)
            source.removed([2, 3])
            await until(lambda: engine.tokens == 16)
            source.cleared()
            await until(lambda: engine.cleared == 1)
            [status] = made.status()
            assert (status.live, status.why, status.blocks, status.losses) == (True, "", 0, 0)


async def test_batches_that_are_missing_are_asked_for(port):
    async with publisher(port) as source, feeds(port) as (engine, made):
        await until(lambda: engine.residency is not None)
        source.stored([1], None, "s")
        await until(lambda: engine.tokens == 16)
        # Kept for a replay, and never sent.
        sent, source._publisher = source._publisher, _Nowhere()
        for number in range(2, 5):
            source.stored([number], number - 1, "s")
            await asyncio.sleep(0.001)
        source._publisher = sent
        source.stored([5], 4, "s")
        await until(lambda: engine.tokens == 80)
        [status] = made.status()
        assert (status.gaps, status.losses, status.unplaced) == (3, 0, 0)


async def test_batches_that_are_lost_for_good_let_go_of_what_was_known(port, caplog):
    async with publisher(port, kept=2) as source, feeds(port) as (engine, made):
        await until(lambda: engine.residency is not None)
        source.stored([1], None, "s")
        await until(lambda: engine.tokens == 16)
        sent, source._publisher = source._publisher, _Nowhere()
        for number in range(2, 8):
            source.stored([number], number - 1, "s")
            await asyncio.sleep(0.001)
        source._publisher = sent
        source.stored([8], 7, "s")
        await until(lambda: made.status()[0].losses == 1)
        assert "batches are lost" in caplog.text
        # What is known of anew is followed again.
        await until(lambda: engine.residency is not None)
        source.stored([100], None, "s")
        await until(lambda: engine.tokens == 16)


async def test_a_publisher_that_dies_is_let_go_and_another_process_is_followed_from_its_start(port):
    async with feeds(port) as (engine, made):
        async with publisher(port) as source:
            for number in range(1, 6):
                source.stored([number], number - 1 if number > 1 else None, "s")
                await asyncio.sleep(0.001)
            await until(lambda: engine.tokens == 80)
        await until(lambda: engine.residency is None)
        [status] = made.status()
        assert (status.live, status.why) == (False, "the connection was lost")
        async with publisher(port) as source:
            source.stored([9], None, "s")
            await until(lambda: engine.tokens == 16)


async def test_without_a_replay_port_what_follows_is_known(port):
    async with publisher(port) as source:
        source.stored([1, 2], None, "s")
        await asyncio.sleep(0)
        async with feeds(port, replay=False) as (engine, made):
            await until(lambda: engine.residency is not None)
            # A publisher learns of a subscriber when it does: until then its batches go to nobody.
            while not made.status()[0].unplaced:
                source.stored([3], 2, "s")
                await asyncio.sleep(0.05)
            assert engine.tokens is None
            source.stored([10, 11], None, "s")
            await until(lambda: engine.tokens == 32)


@pytest.mark.parametrize(
    "frames",
    [
        [b"x"],
        [b"kv", b"short", b"x"],
        [b"kv", bytes(8), b"nonsense"],
        [b""],
        [b"kv", b"\xff" * 8, b""],
        [bytes(8)] * 9,
    ],
)
async def test_nonsense_ends_nothing(port, frames):
    async with publisher(port) as source, feeds(port) as (engine, _):
        source.stored([1], None, "s")
        await until(lambda: engine.tokens == 16)
        await source._publisher.send_multipart(frames)
        await asyncio.sleep(0.05)
        await until(lambda: engine.tokens == 16)
        source.stored([2], 1, "s")
        await until(lambda: engine.tokens == 32)


@pytest.mark.parametrize("event", ["large", "of too many blocks"])
async def test_a_batch_that_no_engine_would_send_is_refused_and_following_begins_anew(port, event):
    count = 1 if event == "large" else MAX_AT_ONCE + 1
    padding = bytes(module._MAX_BYTES) if event == "large" else b""
    batch = [1.0, [{"type": "BlockRemoved", "block_hashes": list(range(count)), "x": padding}]]
    async with publisher(port) as source, feeds(port) as (engine, made):
        source.stored([1], None, "s")
        await until(lambda: engine.tokens == 16)
        await source._publisher.send_multipart([b"kv", (1).to_bytes(8, "big"), msgspec.msgpack.encode(batch)])
        await until(lambda: made.status()[0].losses == 1)
        await until(lambda: engine.tokens == 16, 10.0)


async def test_others_have_their_turns_while_a_long_batch_is_taken_in():
    feed = KvFeed(ReplicaSpec(A, "http://a", kv_events="tcp://127.0.0.1:1"), Engine(), None)
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    small = [{"type": "BlockRemoved", "block_hashes": [1]}] * (3 * module._EVENTS_AT_ONCE)
    await feed._apply(0, msgspec.msgpack.encode([1.0, small]))
    assert turns >= 3
    turns = 0
    blocks = list(range(module._BLOCKS_AT_ONCE))
    large = [{"type": "BlockRemoved", "block_hashes": blocks}] * 3
    await feed._apply(1, msgspec.msgpack.encode([1.0, large]))
    assert turns >= 3
    task.cancel()


async def test_a_replica_that_is_gone_is_no_longer_followed(port):
    async with publisher(port) as source, feeds(port) as (engine, made):
        source.stored([1], None, "s")
        await until(lambda: engine.tokens == 16)
        made.set_replicas([])
        assert (engine.residency, made.status()) == (None, ())


class _Nowhere:
    """A socket that loses what is sent."""

    def send_multipart(self, *_: object) -> None: ...
