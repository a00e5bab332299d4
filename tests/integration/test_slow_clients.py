"""Clients that do not read, trickle, send ahead and leave, or are still sending when the router stops."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from support.fleet import fleet
from support.plane import Outcomes, data_plane, pass_time, settled, until
from support.raw import Request, Stream, chat, post, raw_client, raw_replica

from router.core.observe import Outcome
from router.dataplane.limits import Limits
from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.wiring import Router

OK = {"id": "x", "object": "chat.completion", "choices": []}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"a" * 8000)
DONE = b"data: [DONE]\n\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n"


@asynccontextmanager
async def unread(port: int, request: bytes) -> AsyncIterator[socket.socket]:
    """A client that sends a request and reads nothing, with as little room for the answer as can be had."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", port))
    await loop.sock_sendall(raw, request)
    try:
        yield raw
    finally:
        raw.close()


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send_json(OK)


async def endless(_request: Request, stream: Stream) -> None:
    await stream.start_events()
    while True:
        await stream.chunk(EVENT)


async def huge(_request: Request, stream: Stream) -> None:
    await stream.send_json({"text": "x" * 20_000_000})


async def test_a_client_that_reads_nothing_of_a_stream_is_cut_off_and_no_replica_blamed() -> None:
    async with (
        raw_replica(endless) as replica,
        data_plane([replica.url], limits=Limits(idle_s=0.5)) as plane,
    ):
        outcomes = Outcomes(plane)
        async with unread(plane.port, post(chat(stream=True))):
            await until(lambda: replica.requests)
            await until(lambda: outcomes.seen)
            await until(lambda: not plane.connections)
        assert outcomes.seen == [Outcome.CANCELLED]
        assert plane.engine.replicas(plane.now())[0].health == "healthy"


@pytest.mark.parametrize("header", ["Connection: close", "Connection: keep-alive"])
async def test_a_client_that_reads_nothing_of_a_whole_answer_is_cut_off(header: str) -> None:
    async with (
        raw_replica(huge) as replica,
        data_plane([replica.url], limits=Limits(idle_s=0.5)) as plane,
    ):
        async with unread(plane.port, post(chat(), header)):
            await until(lambda: replica.requests)
            await until(lambda: not plane.connections)


async def test_a_client_that_closed_its_sending_side_and_reads_nothing_is_cut_off() -> None:
    async with (
        raw_replica(huge) as replica,
        data_plane([replica.url], limits=Limits(idle_s=0.5)) as plane,
    ):
        async with unread(plane.port, post(chat())) as raw:
            await until(lambda: replica.requests and plane.engine.in_flight() == 0)
            raw.shutdown(socket.SHUT_WR)
            await until(lambda: not plane.connections)


async def test_a_client_that_reads_slowly_but_steadily_gets_all_of_its_answer() -> None:
    async with (
        raw_replica(huge) as replica,
        data_plane([replica.url], limits=Limits(idle_s=0.5)) as plane,
    ):
        async with unread(plane.port, post(chat(), "Connection: close")) as raw:
            loop = asyncio.get_running_loop()
            began, got = loop.time(), 0
            while data := await loop.sock_recv(raw, 1 << 20):
                got += len(data)
                if loop.time() - began < 2.0:
                    await asyncio.sleep(0.1)
        assert got > 20_000_000


async def test_a_replica_is_not_blamed_for_the_silence_while_its_client_did_not_read() -> None:
    """The time to the next piece is up just after the client has taken what held the replica up."""
    limits = Limits(idle_s=30.0, first_byte_s=1.0)
    go_on = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        for _ in range(1500):
            await stream.chunk(EVENT)
        await go_on.wait()
        await stream.chunk(DONE)
        await stream.end()

    async with raw_replica(answer) as replica, data_plane([replica.url], limits=limits) as plane:
        outcomes = Outcomes(plane)
        async with unread(plane.port, post(chat(stream=True), "Connection: close")) as raw:
            await until(lambda: any(client.write_paused for client in plane.connections))
            await pass_time(plane.now, 2.5)
            assert outcomes.seen == []
            loop = asyncio.get_running_loop()
            go_on.set()
            while await loop.sock_recv(raw, 1 << 20):
                pass
        await settled(plane)
        assert outcomes.seen == [Outcome.COMPLETED]


async def test_a_body_that_trickles_is_ended_although_it_never_stands_still() -> None:
    async with data_plane([], limits=Limits(idle_s=0.4)) as plane, raw_client(plane.port) as client:
        request = post(chat("x" * 500))
        began = plane.now()
        await client.send(request[:-400])

        async def trickle() -> None:
            for byte in request[-400:]:
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(trickle())
            response = await client.response()
            task.cancel()
        assert response.status == 408
        assert 0.4 <= plane.now() - began < 1.2
        assert plane.held_bytes == 0


async def test_a_large_body_that_comes_steadily_may_take_longer_than_idle() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], limits=Limits(idle_s=0.4)) as plane,
        raw_client(plane.port) as client,
    ):
        request = post(chat("x" * 160_000))
        for start in range(0, len(request), 16_000):
            await client.send(request[start : start + 16_000])
            await asyncio.sleep(0.15)
        assert (await client.response()).status == 200


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", ["waiting", "streaming"])
async def test_a_client_that_sent_far_ahead_and_left_is_gone_upstream_within_150_ms(
    how: str, when: str
) -> None:
    gone = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        if when == "streaming":
            await stream.start_events()
            await stream.chunk(EVENT)
        await stream.gone()
        gone.set()

    async with raw_replica(answer) as replica, data_plane([replica.url]) as plane:
        loop = asyncio.get_running_loop()
        async with unread(plane.port, post(chat(stream=True))) as raw:
            await until(lambda: replica.requests)
            await loop.sock_sendall(raw, HEALTH * 2500)
            await until(lambda: any(client._read_paused for client in plane.connections))
            if how == "reset":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(gone.is_set, 0.15)
        await settled(plane)


async def test_a_client_that_sent_far_ahead_and_closed_its_sending_side_gets_all_its_answers() -> None:
    go_on = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await go_on.wait()
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat()))
        await until(lambda: replica.requests)
        await client.send(HEALTH * 2500)
        await until(lambda: any(each._read_paused for each in plane.connections))
        client.writer.write_eof()
        await asyncio.sleep(0.2)
        go_on.set()
        assert (await client.response()).json() == OK
        for _ in range(2500):
            assert (await client.response()).status == 200
        assert await client.closed() == b""


async def test_an_upload_that_is_under_way_when_the_router_stops_is_finished_and_answered() -> None:
    async with raw_replica(ok) as replica, data_plane([replica.url]) as plane:
        async with raw_client(plane.port) as client, raw_client(plane.port) as idle:
            assert (await idle.exchange(HEALTH)).status == 200
            request = post(chat())
            await client.send(request[:-5])
            await until(lambda: plane.held_bytes)
            closing = asyncio.ensure_future(plane.close(grace_s=5.0))
            assert await idle.closed() == b""
            await client.send(request[-5:])
            response = await client.response()
            assert (response.status, response.headers["connection"]) == (200, "close")
            await closing
    assert len(replica.requests) == 1


@pytest.mark.parametrize("sent", [-5, 30], ids=["body", "head"])
async def test_an_upload_that_does_not_end_within_the_grace_is_told_that_the_router_stops(sent: int) -> None:
    async with data_plane([]) as plane, raw_client(plane.port) as client:
        await client.send(post(chat())[:sent])
        await until(lambda: plane.held_bytes or any(each._head_bytes for each in plane.connections))
        _, response = await asyncio.gather(plane.close(grace_s=0.2), client.response())
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert orjson.loads(response.body)["error"]["code"] == "stopping"
        assert plane.held_bytes == 0


async def test_readyz_says_no_until_clients_can_connect() -> None:
    async with fleet(1) as running:
        loaded = load_config(running.folder / "router.yaml")
        router = Router(loaded, load_secrets(loaded, running.environ))
        listen, may_listen, looked = router.dataplane.start, asyncio.Event(), asyncio.Event()

        async def held_back(*arguments: Any) -> None:
            looked.set()
            await may_listen.wait()
            await listen(*arguments)

        router.dataplane.start = held_back  # type: ignore[method-assign]
        starting = asyncio.ensure_future(router.start())
        try:
            # From here on the replica is known to be well.
            await looked.wait()
            url = f"http://127.0.0.1:{router.admin.port}/readyz"
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                early = await client.get(url)
                assert (early.status_code, early.json()["reasons"]) == (
                    503,
                    ["the data port does not listen yet"],
                )
                may_listen.set()
                await starting
                assert (await client.get(url)).status_code == 200
        finally:
            may_listen.set()
            await starting
            await router.close()


async def test_readyz_says_no_as_soon_as_the_router_begins_to_stop() -> None:
    async with fleet(1) as running:
        assert (await running.admin.get("/readyz")).status_code == 200
        async with raw_client(running.router.dataplane.port) as client:
            await client.send(post(chat())[:-5])
            await until(lambda: running.router.dataplane.held_bytes)
            closing = asyncio.ensure_future(running.router.close(grace_s=5.0))
            await asyncio.sleep(0)
            answer: httpx.Response = await running.admin.get("/readyz")
            assert answer.status_code == 503
            assert answer.json() == {"ready": False, "reasons": ["the router is stopping"]}
        await closing
