"""What the data plane refuses is counted, and what it holds is shown."""

import asyncio

from support.fleet import fleet
from support.plane import data_plane, observe, pass_time, until
from support.raw import Request, Stream, chat, post, raw_client, raw_replica

from router.base.errors import ErrorKind
from router.core.observe import Ended
from router.core.observer import Silent
from router.dataplane.limits import Limits

OK = {"id": "x", "object": "chat.completion", "choices": []}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_a_method_that_is_not_allowed_is_answered_with_those_that_are() -> None:
    async with data_plane(["http://127.0.0.1:9"]) as plane, raw_client(plane.port) as client:
        answer = await client.exchange(b"POST /health HTTP/1.1\r\nHost: r\r\nContent-Length: 0\r\n\r\n")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        answer = await client.exchange(b"OPTIONS /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
        assert answer.status == 405
        assert "POST" in answer.headers["allow"].split(", ")


async def test_each_refusal_of_the_plane_counts_once_by_its_kind_and_status() -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT)
        await asyncio.sleep(0.02)
        stream.abort()

    async with raw_replica(cut) as replica, data_plane([replica.url], limits=Limits(body=1000)) as plane:
        for request, status in (
            (b"GARBAGE\r\n\r\n", 400),
            (post(chat("x" * 1000)), 413),
            (post(b"{"), 400),
            (b"GET /nowhere HTTP/1.1\r\nHost: r\r\n\r\n", 404),
            (post(chat(stream=True)), 200),
        ):
            async with raw_client(plane.port) as client:
                assert (await client.exchange(request)).status == status
        assert plane.errors == {
            (ErrorKind.BAD_REQUEST, 400): 2,
            (ErrorKind.BAD_REQUEST, 413): 1,
            (ErrorKind.NOT_FOUND, 404): 1,
            (ErrorKind.UPSTREAM_FAILED, 502): 1,
        }


async def test_the_whole_router_shows_what_it_refused_and_what_is_open() -> None:
    async with fleet(1, keys={"key": "acme"}) as running:
        await running.chat([{"role": "user", "content": "hi"}])
        await running.chat([{"role": "user", "content": "hi"}], headers={"Authorization": "Bearer key"})
        async with raw_client(running.router.dataplane.port) as client:
            await client.send(post(chat(), "Authorization: Bearer key")[:-9])
            await until(lambda: running.router.dataplane.held_bytes)
            held = running.router.dataplane.held_bytes
            lines = (await running.admin.get("/metrics")).text.splitlines()
        assert 'homing_errors_total{kind="unauthorized",status="401"} 1' in lines
        assert f"homing_held_bytes {held}" in lines
        assert "homing_client_connections 2" in lines
        assert 'homing_replica_connections{replica="r0"} 1' in lines


async def test_the_first_byte_of_a_turn_that_moved_is_timed_from_its_first_attempt() -> None:
    class Times(Silent):
        def __init__(self) -> None:
            self.seen: list[float | None] = []

        def on_ended(self, ended: Ended) -> None:
            self.seen.append(ended.ttft_s)

    async def late(_request: Request, stream: Stream) -> None:
        await pass_time(plane.now, 0.2)
        await stream.send_json({}, "500 Internal")

    async def well(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT + DONE)
        await stream.end()

    async with raw_replica(late) as one, raw_replica(late) as two, data_plane([one.url, two.url]) as plane:
        times = Times()
        observe(plane, times)
        async with raw_client(plane.port) as client:
            await client.send(post(chat(stream=True)))
            await until(lambda: one.requests or two.requests)
            (two if one.requests else one).answer = well
            assert (await client.response()).status == 200
        first, second = times.seen
        assert first is None
        assert second is not None
        assert second >= 0.2
