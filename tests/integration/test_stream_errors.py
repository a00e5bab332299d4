"""Streams that fail: clients read whole events, and the router learns that they failed."""

import asyncio

import orjson
import pytest
from support.plane import Outcomes, data_plane, until
from support.raw import Request, Stream, chat, post, raw_client, raw_replica

from router.core.observe import Outcome
from router.dataplane.limits import Limits

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no","type":"InternalServerError","code":500}}\n\n'
BAD = b'data: {"error":{"message":"no","type":"BadRequestError","code":400}}\n\n'


def streaming(*pieces: bytes, end: bool) -> object:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        for piece in pieces:
            await stream.chunk(piece)
            await asyncio.sleep(0.01)
        if end:
            await stream.end()
        else:
            stream.abort()

    return answer


def events(body: bytes) -> list[bytes]:
    """The data of each event, as a client reads it: what has no empty line after it is none."""
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n")[:-1]]


@pytest.mark.parametrize("end", [True, False], ids=["ended", "cut"])
async def test_half_an_event_is_not_sent_before_the_error_event(end: bool) -> None:
    half = b'data: {"choices":[{"del'
    async with (
        raw_replica(streaming(EVENT, half, end=end)) as replica,  # type: ignore[arg-type]
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        body = (await client.exchange(post(chat(stream=True)))).body
        assert body.startswith(EVENT)
        assert half not in body
        assert [sorted(orjson.loads(data)) for data in events(body)] == [["choices"], ["error"]]


@pytest.mark.parametrize("end", [True, False], ids=["ended", "cut"])
async def test_a_long_event_that_is_on_its_way_is_ended_before_the_error_event(end: bool) -> None:
    half = b'data: {"choices":[{"delta":{"content":"' + b"x" * 100_000
    async with (
        raw_replica(streaming(half, end=end)) as replica,  # type: ignore[arg-type]
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        first, error = events((await client.exchange(post(chat(stream=True)))).body)
        assert half.removeprefix(b"data: ").startswith(first)
        assert "replica r0" in orjson.loads(error)["error"]["message"]


async def test_a_stream_whose_time_is_up_ends_in_an_event_of_its_own() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT + b'data: {"choi')
        await stream.gone()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], limits=Limits(total_s=0.1)) as plane,
        raw_client(plane.port) as client,
    ):
        _, error = events((await client.exchange(post(chat(stream=True)))).body)
        assert "limits.total" in orjson.loads(error)["error"]["message"]


@pytest.mark.parametrize("end", [True, False], ids=["ended", "cut"])
async def test_half_an_event_alone_leaves_the_turn_free_to_move_on(end: bool) -> None:
    async with (
        raw_replica(streaming(b'data: {"choices":[{"del', end=end)) as one,  # type: ignore[arg-type]
        raw_replica(streaming(b'data: {"choices":[{"del', end=end)) as two,  # type: ignore[arg-type]
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat(stream=True)))
        await until(lambda: one.requests or two.requests)
        other = two if one.requests else one
        other.answer = streaming(EVENT, DONE, end=True)  # type: ignore[assignment]
        response = await client.response()
        assert (response.status, response.body) == (200, EVENT + DONE)
        assert response.headers["x-homing-decision"] == "failover"


async def test_a_stream_that_begins_with_an_error_moves_on_like_a_5xx() -> None:
    async with (
        raw_replica(streaming(ERROR, DONE, end=True)) as one,  # type: ignore[arg-type]
        raw_replica(streaming(ERROR, DONE, end=True)) as two,  # type: ignore[arg-type]
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        outcomes = Outcomes(plane)
        response = await client.exchange(post(chat(stream=True), "X-Session-ID: s"))
        # Nobody is left to ask: the last one's answer goes out as it is, and nothing of it is believed.
        assert (response.status, response.body) == (200, ERROR + DONE)
        assert len(one.requests) == len(two.requests) == 1
        assert outcomes.seen == [Outcome.SERVER_ERROR] * 2
        assert plane.engine.sessions(9) == []
        assert [status.index_segments for status in plane.engine.replicas(plane.now())] == [0, 0]
        for replica in (one, two):
            replica.answer = streaming(EVENT, DONE, end=True)  # type: ignore[assignment]
        response = await client.exchange(post(chat(stream=True), "X-Session-ID: s"))
        assert response.headers["x-homing-decision"] == "new"


async def test_an_error_in_mid_stream_is_the_replicas_and_its_cache_is_believed_all_the_same() -> None:
    async with (
        raw_replica(streaming(EVENT, ERROR, DONE, end=True)) as replica,  # type: ignore[arg-type]
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        outcomes = Outcomes(plane)
        response = await client.exchange(post(chat(stream=True), "X-Session-ID: s"))
        assert response.body == EVENT + ERROR + DONE
        assert outcomes.seen == [Outcome.SERVER_ERROR]
        assert [session.home for session in plane.engine.sessions(9)] == ["r0"]


async def test_an_error_event_is_the_end_of_its_stream_also_without_the_dialects_own() -> None:
    async with (
        raw_replica(streaming(EVENT, ERROR, end=True)) as replica,  # type: ignore[arg-type]
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        assert (await client.exchange(post(chat(stream=True)))).body == EVENT + ERROR


async def test_an_error_event_that_blames_the_client_is_passed_on_and_speaks_against_nobody() -> None:
    async with (
        raw_replica(streaming(BAD, DONE, end=True)) as one,  # type: ignore[arg-type]
        raw_replica(streaming(BAD, DONE, end=True)) as two,  # type: ignore[arg-type]
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        outcomes = Outcomes(plane)
        for number in range(1, 5):
            assert (await client.exchange(post(chat(stream=True), "X-Session-ID: s"))).body == BAD + DONE
            assert len(one.requests) + len(two.requests) == number
        assert outcomes.seen == [Outcome.CLIENT_ERROR] * 4
        assert plane.engine.sessions(9) == []
