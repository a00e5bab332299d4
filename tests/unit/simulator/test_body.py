"""The streamed body: framing, one write for many chunks, and what faults do to it."""

import asyncio

from router.simulator.body import Body
from router.simulator.faults import Fault


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


async def test_chunks_of_one_step_are_one_write() -> None:
    wire = Wire()
    Body(wire, chunked=True).send([b"hello", b"", b"x" * 17])
    assert wire.writes == [b"5\r\nhello\r\n11\r\n" + b"x" * 17 + b"\r\n"]


async def test_an_empty_chunk_never_ends_the_body() -> None:
    wire = Wire()
    Body(wire, chunked=True).send([b"", b""])
    assert wire.writes == []


async def test_without_chunks_the_bytes_go_as_they_are() -> None:
    wire = Wire()
    Body(wire, chunked=False).send([b"a", b"b"])
    assert wire.writes == [b"ab"]


async def test_a_cut_lets_so_many_chunks_through() -> None:
    wire = Wire()
    body = Body(wire, chunked=False, fault=Fault.parse("cut:3"))
    body.send([b"1", b"2"])
    assert not wire.aborted
    body.send([b"3", b"4"])
    body.send([b"5"])
    assert wire.writes == [b"12", b"3"]
    assert wire.aborted


async def test_a_cut_at_nothing_breaks_at_once() -> None:
    wire = Wire()
    Body(wire, chunked=False, fault=Fault.parse("cut:0")).send([b"1"])
    assert (wire.writes, wire.aborted) == ([], True)


async def test_slow_chunks_come_one_by_one_and_are_waited_for() -> None:
    wire = Wire()
    body = Body(wire, chunked=False, fault=Fault.parse("slow:0.01"))
    before = asyncio.get_running_loop().time()
    body.send([b"1", b"2", b"3"])
    assert wire.writes == []
    await body.sent()
    assert wire.writes == [b"1", b"2", b"3"]
    assert asyncio.get_running_loop().time() - before >= 0.03


async def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    wire = Wire()
    slow = Body(wire, chunked=False, fault=Fault.parse("slow:0.001"))
    slow.send([b"1"])
    wire.abort()
    Body(wire, chunked=True).send([b"x"])
    await slow.sent()
    assert wire.writes == []
