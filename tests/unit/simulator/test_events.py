"""A simulated replica's KV events: what is published, what is replayed, and what its cache says."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
import zmq.asyncio
from support.ports import free_pair

from router.base.errors import HomingError
from router.simulator import events, tokens
from router.simulator.cache import BlockCache
from router.simulator.events import REPLAY_PORT, KvEventPublisher


@asynccontextmanager
async def publisher(port, **more):
    made = KvEventPublisher("127.0.0.1", port, 16, **more)
    made.start()
    try:
        yield made
    finally:
        await made.close()


async def replay(port, start):
    context = zmq.asyncio.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.connect(f"tcp://127.0.0.1:{port + REPLAY_PORT}")
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        found = []
        while True:
            empty, topic, number, payload = await asyncio.wait_for(dealer.recv_multipart(), 60.0)
            assert empty == b""
            if number == b"\xff" * 8:
                return found
            found.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
    finally:
        context.destroy(linger=0)


async def test_events_of_one_moment_are_one_batch_and_batches_are_numbered():
    port = free_pair()
    async with publisher(port) as source:
        source.stored([1, 2], None, "s")
        source.removed([1, 2])
        await asyncio.sleep(0)
        source.cleared()
        await asyncio.sleep(0)
        first, second = await replay(port, 0)
        assert (first[0], first[1], second[1]) == (b"", 0, 1)
        stored, *removed = first[2][1]
        assert (stored["type"], stored["block_hashes"], stored["parent_block_hash"]) == (
            "BlockStored",
            [1, 2],
            None,
        )
        assert (stored["session_id"], stored["block_size"], stored["medium"]) == ("s", 16, "GPU")
        assert [event["block_hashes"] for event in removed] == [[2], [1]]
        assert second[2][1] == [{"type": "AllBlocksCleared"}]
        assert [number for _, number, _ in await replay(port, 1)] == [1]
        assert await replay(port, 2) == []


async def test_blocks_come_with_their_tokens_as_far_as_these_were_told():
    port = free_pair()
    prompt = tokens.encode("a word or two, and so on. " * 10)
    async with publisher(port) as source:
        source.learn([1, 2], prompt)
        source.stored([1, 2], None, "s")
        # Evicted, and stored again by a request that had waited.
        source.removed([1, 2])
        source.stored([2], 1, "s")
        source.stored([2, 3], 1, "s")
        await asyncio.sleep(0)
        [(_, _, batch)] = await replay(port, 0)
    told = [event["token_ids"] for event in batch[1] if event["type"] == "BlockStored"]
    ids = tokens.to_ids(prompt)
    assert told == [ids[:32], ids[16:32], []]


async def test_it_remembers_the_tokens_of_so_many_blocks(monkeypatch):
    monkeypatch.setattr(events, "_KNOWN", 3)
    port = free_pair()
    async with publisher(port) as source:
        source.learn([1, 2], bytes(128))
        source.learn([2, 3, 4], bytes(192))
        for name in (1, 4):
            source.stored([name], None, None)
        await asyncio.sleep(0)
        [(_, _, batch)] = await replay(port, 0)
    assert [event["token_ids"] for event in batch[1]] == [[], [0] * 16]


async def test_only_the_last_batches_are_kept():
    port = free_pair()
    async with publisher(port, kept=2) as source:
        for number in range(5):
            source.stored([number], None, None)
            await asyncio.sleep(0)
        assert [number for _, number, _ in await replay(port, 0)] == [3, 4]


async def test_a_port_in_use_is_an_error_that_names_it():
    port = free_pair()
    async with publisher(port):
        with pytest.raises(HomingError, match=f"cannot publish KV events on 127.0.0.1:{port}"):
            KvEventPublisher("127.0.0.1", port, 16).start()


class Heard:
    def __init__(self) -> None:
        self.events = []

    def stored(self, hashes, parent, session) -> None:
        self.events.append(("stored", list(hashes), parent, session))

    def removed(self, hashes) -> None:
        self.events.append(("removed", list(hashes)))


def test_a_cache_says_what_it_stores_for_whom_and_what_it_evicts():
    cache = BlockCache(4)
    heard = cache.listener = Heard()
    one = cache.acquire([1, 2, 3], 0, "s")
    assert cache.grow(one, 3, 2)
    assert cache.grow(one, 3, 3)
    cache.release(one)
    two = cache.acquire([1, 2, 9, 10], 2, "t")
    assert cache.grow(two, 4, 4)
    assert heard.events == [
        ("stored", [1, 2], None, "s"),
        ("stored", [3], 2, "s"),
        ("removed", [3]),
        ("stored", [9, 10], 2, "t"),
    ]
