"""Messages over a socket pair: whole, in order, bounded, and both ends learn of the other's."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
from support.plane import until

from router.controlplane import link as module
from router.controlplane.link import MAX_MESSAGE, Kind, Link


class End:
    def __init__(self) -> None:
        self.got = []
        self.lost = 0
        self.link = Link(lambda kind, message: self.got.append((kind, message)), self.gone)

    def gone(self) -> None:
        self.lost += 1


@asynccontextmanager
async def pair():
    loop = asyncio.get_running_loop()
    ends = End(), End()
    transports = []
    for end, sock in zip(ends, socket.socketpair(), strict=True):
        transport, _ = await loop.create_unix_connection(lambda end=end: end.link, sock=sock)
        transports.append(transport)
    try:
        yield ends
    finally:
        for transport in transports:
            transport.abort()
        await until(lambda: all(end.lost for end in ends))


async def test_messages_arrive_whole_and_in_order_both_ways():
    async with pair() as (one, other):
        sent = [
            (Kind.READY, b""),
            (Kind.TURN, bytes(100_000)),
            (Kind.RESPONSE, b"x"),
            (Kind.TURN, bytes(MAX_MESSAGE)),
        ]
        for kind, message in sent:
            one.link.send(kind, message)
        other.link.send(Kind.STOP, b"now")
        await until(lambda: other.got == sent)
        await until(lambda: one.got == [(Kind.STOP, b"now")])


async def test_both_learn_once_that_it_is_over():
    async with pair() as (one, other):
        one.link.close()
        await until(lambda: (one.lost, other.lost) == (1, 1))
        one.link.close()
        one.link.send(Kind.READY)
        assert (one.link.lost, one.lost) == (1, 1)


@pytest.mark.parametrize("nonsense", [b"\xff" * 5, b"\0\0\0\0\x63", b"\0\x20\0\0\x01"])
async def test_nonsense_ends_it(nonsense):
    async with pair() as (one, other):
        one.link._transport.write(nonsense)
        await until(lambda: other.lost == 1)
        assert other.got == []


async def test_what_nobody_takes_and_what_is_too_long_is_lost_and_counted(monkeypatch):
    monkeypatch.setattr(module, "_MOST_WAITING", 100_000)
    async with pair() as (one, other):
        one.link.send(Kind.TURN, bytes(MAX_MESSAGE + 1))
        assert one.link.lost == 1
        other.link._transport.pause_reading()
        for _ in range(50):
            one.link.send(Kind.TURN, bytes(50_000))
        assert one.link.lost > 1
        one.link.send(Kind.STOP, b"goes through all the same")
        lost = one.link.lost
        other.link._transport.resume_reading()
        await until(lambda: other.got[-1:] == [(Kind.STOP, b"goes through all the same")])
        assert len(other.got) == 50 - (lost - 1) + 1
