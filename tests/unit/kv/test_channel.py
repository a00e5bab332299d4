"""Channels: frames and payloads arrive whole, in order and in place, whatever is cut, slow or lost."""

import asyncio
import random
import socket

import pytest
import uvloop

from router.kv import channel as channels
from router.kv import messages as m
from router.kv.channel import Channel
from router.kv.checksum import checksum
from router.kv.wire import Limits, Type, WireFault, encode

LIMITS = Limits(1 << 20, 8 << 20)


class Records:
    """A sink that writes down what it is told."""

    def __init__(self):
        self.events = []
        self.buffers = {}
        self.refuse = set()
        self.lost = asyncio.Event()
        self.progress = 0

    def on_frame(self, kind, ident, meta):
        self.events.append((kind, ident, meta))
        if kind is Type.CANCEL:
            raise WireFault("no cancelling here")
        if kind is Type.REFUSED:
            raise RuntimeError("a fault of ours")

    def on_payload(self, kind, ident, meta, size):
        if ident in self.refuse:
            return None
        self.buffers[ident] = bytearray(size)
        return memoryview(self.buffers[ident])

    def on_progress(self, ident, count):
        self.progress += count

    def on_landed(self, kind, ident, meta, total):
        self.events.append((kind, ident, bytes(self.buffers[ident]), total))

    def on_lost(self, reason):
        self.events.append(reason)
        self.lost.set()


@pytest.fixture
async def pair():
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    sinks = Records(), Records()
    channels = [Channel(end, sink, LIMITS) for end, sink in zip(ends, sinks, strict=True)]
    yield *channels, *sinks
    for channel in channels:
        channel.close("over")


async def until(condition):
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001 if _ > 100 else 0)
    raise AssertionError("it did not come to that")


async def test_frames_and_payloads_arrive_in_order(pair):
    one, _, _, sink = pair
    data = random.Random(1).randbytes(3 << 20)
    freed = []
    one.send(Type.PING, 1, m.Empty())
    one.send(Type.BLOCK, 2, m.Empty(), memoryview(data), lambda: freed.append(2))
    one.send(Type.BLOCK, 3, m.Empty(), memoryview(b"short"), lambda: freed.append(3))
    one.send(Type.PONG, 4, m.Empty())
    await until(lambda: len(sink.events) == 4)
    assert [event[:2] for event in sink.events] == [
        (Type.PING, 1),
        (Type.BLOCK, 2),
        (Type.BLOCK, 3),
        (Type.PONG, 4),
    ]
    assert sink.events[1][2:] == (data, checksum(data))
    assert sink.events[2][2:] == (b"short", checksum(b"short"))
    assert freed == [2, 3]
    assert sink.progress == len(data) + 5
    assert one.unsent == 0


def test_a_question_is_read_before_the_next_burst_of_a_bulk_transfer_is_sent(monkeypatch):
    monkeypatch.setattr(channels, "_BURST", 16 << 10)

    async def questions():
        """How many bytes of a bulk transfer are sent between each question and its being read."""
        ends = *socket.socketpair(), *socket.socketpair()
        for end in ends:
            end.setblocking(False)
        bulk, taker = (Channel(end, Records(), LIMITS) for end in ends[:2])
        asked, asking = (Channel(end, Records(), LIMITS) for end in ends[2:])
        asked_at, read_at = [], []
        asked._sink.on_frame = lambda *_: read_at.append(bulk.bytes_out)

        def ask():
            asked_at.append(bulk.bytes_out)
            asking.send(Type.PING, 1, m.Empty())

        # The longest first: what is shorter than a burst would be sent here and now.
        for number in range(64, 0, -1):
            bulk.send(Type.BLOCK, number, m.Empty(), memoryview(bytes(3000 * number)), ask)
        await until(lambda: len(read_at) == 64)
        for channel in (bulk, taker, asked, asking):
            channel.close("over")
        return [read - at for at, read in zip(asked_at, read_at, strict=True)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(questions()) == [0] * 64


async def test_a_payload_may_go_nowhere(pair):
    one, _, _, sink = pair
    sink.refuse.add(2)
    one.send(Type.BLOCK, 2, m.Empty(), memoryview(bytes(1 << 20)))
    one.send(Type.PING, 3, m.Empty())
    await until(lambda: sink.events)
    assert [event[:2] for event in sink.events] == [(Type.PING, 3)]


async def test_memory_can_be_taken_back_in_the_middle(pair):
    one, two, _, sink = pair
    data = memoryview(b"x" * (6 << 20))
    one.send(Type.BLOCK, 2, m.Empty(), data)
    await until(lambda: sink.progress)
    two.redirect(9)
    two.redirect(2)
    before = bytes(sink.buffers[2])
    one.send(Type.PING, 3, m.Empty())
    await until(lambda: sink.events)
    assert [event[:2] for event in sink.events] == [(Type.PING, 3)]
    assert bytes(sink.buffers[2]) == before, "nothing is written once the memory was taken back"


async def test_losing_the_connection_frees_what_was_not_sent(pair):
    one, two, first, _ = pair
    freed = []
    one.send(Type.BLOCK, 2, m.Empty(), memoryview(bytes(8 << 20)), lambda: freed.append(2))
    assert freed == []
    two.close("gone")
    await first.lost.wait()
    assert freed == [2]
    one.send(Type.BLOCK, 3, m.Empty(), memoryview(b"x"), lambda: freed.append(3))
    assert freed == [2, 3]
    assert len(first.events) == 1, "lost once"


async def test_bytes_cut_anywhere_are_the_same_frames():
    raw, end = socket.socketpair()
    end.setblocking(False)
    sink = Records()
    channel = Channel(end, sink, LIMITS)
    payload = bytes(range(200))
    stream = encode(Type.BLOCK, 1, b"m" * 50, payload_bytes=200, checksum=checksum) + payload
    stream += encode(Type.PING, 2, b"", checksum=checksum)
    for byte in stream:
        raw.send(bytes([byte]))
        await asyncio.sleep(0)
    await until(lambda: len(sink.events) == 2)
    assert sink.events == [(Type.BLOCK, 1, payload, checksum(payload)), (Type.PING, 2, b"")]
    channel.close("over")
    raw.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nabcdefgh", "not this protocol"),
        (
            encode(Type.BLOCK, 1, b"", payload_bytes=9 << 20, checksum=checksum),
            "a payload of 9437184 bytes, 8388608 at most",
        ),
        (encode(Type.PING, 1, b"", checksum=None), "a checksum is wanted"),
        (encode(Type.CANCEL, 1, b"", checksum=checksum), "no cancelling here"),
        (encode(Type.PING, 1, b"", checksum=checksum)[:20], "the other side hung up"),
    ],
)
async def test_a_fault_ends_the_connection_with_its_reason(data, reason):
    raw, end = socket.socketpair()
    end.setblocking(False)
    sink = Records()
    Channel(end, sink, LIMITS)
    raw.sendall(data)
    raw.shutdown(socket.SHUT_WR)
    await sink.lost.wait()
    assert sink.events[-1] == reason
    raw.close()


async def test_a_fault_of_ours_ends_the_connection_and_is_logged(caplog):
    raw, end = socket.socketpair()
    end.setblocking(False)
    sink = Records()
    Channel(end, sink, LIMITS)
    raw.sendall(encode(Type.REFUSED, 1, b"", checksum=checksum))
    await sink.lost.wait()
    assert sink.events[-1] == "internal"
    assert "a fault of ours" in caplog.text
    raw.close()


async def test_a_callback_that_fails_keeps_neither_the_others_nor_the_end_from_being_told(pair):
    one, _, sink, _ = pair
    freed = []

    def fails():
        freed.append("fails")
        raise RuntimeError("a fault of ours")

    big = memoryview(bytes(64 << 20))
    one.send(Type.BLOCK, 1, m.Empty(), big, fails)
    one.send(Type.BLOCK, 2, m.Empty(), big, lambda: freed.append("next"))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        one.close("over")
    assert freed == ["fails", "next"]
    assert sink.events == ["over"]


async def test_memory_of_another_size_is_a_fault():
    raw, end = socket.socketpair()
    end.setblocking(False)
    sink = Records()
    sink.on_payload = lambda *_: memoryview(bytearray(3))
    Channel(end, sink, LIMITS)
    raw.sendall(encode(Type.BLOCK, 1, b"", payload_bytes=4, checksum=checksum))
    await sink.lost.wait()
    assert sink.events[-1] == "a payload of 4 bytes where 3 were due"
    raw.close()


async def test_limits_can_change(pair):
    one, two, _, sink = pair
    two.limit(Limits(10, 0))
    one.send(Type.FINISHED, 1, m.OfRequest("a long name"))
    await sink.lost.wait()
    assert "10 at most" in sink.events[-1]
    assert not two.is_open
