"""Replicas that fail and clients that leave: who is told what, and nothing is left behind."""

import asyncio
import socket
import struct

import orjson
import pytest
from support.plane import data_plane, settled, until
from support.raw import RawReplica, Request, Stream, chat, post, raw_client, raw_replica

from router.base.build import kind_of_build
from router.base.ids import ReplicaId
from router.core.plan import Plan, Retry
from router.core.strategies.priced import Priced
from router.dataplane.answer_head import ResponseHead
from router.dataplane.limits import Limits
from router.dataplane.outbox import Outbox
from router.dataplane.pool import Pool
from router.dataplane.server import DataPlane
from router.dataplane.upstream import Receiver, UpstreamConnection

OK = {"id": "x", "object": "chat.completion", "choices": []}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send_json(OK)


async def hang(_request: Request, stream: Stream) -> None:
    await stream.gone()


def failing(status: str, *headers: str) -> object:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json({"error": {"message": status}}, status, *headers)

    return answer


async def home_of(plane: object, client: object, session: str = "one") -> str:
    """Give the session a home and return its name."""
    response = await client.exchange(post(chat(), f"X-Session-ID: {session}"))  # type: ignore[attr-defined]
    assert response.status == 200
    return str(response.headers["x-homing-replica"])


# --- before the first byte --------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["500 Internal", "502 Bad Gateway", "503 Unavailable", "504 Timeout"])
async def test_a_5xx_moves_the_turn_on_with_its_session_key(status: str) -> None:
    async with raw_replica(ok) as one, raw_replica(ok) as two, data_plane([one.url, two.url]) as plane:
        async with raw_client(plane.port) as client:
            replicas = {"r0": one, "r1": two}
            sick = replicas[await home_of(plane, client)]
            well = two if sick is one else one
            sick.answer = failing(status, "retry-after: 9")  # type: ignore[assignment]
            response = await client.exchange(post(chat(), "X-Session-ID: one"))
            assert response.json() == OK
            assert response.headers["x-homing-decision"] == "failover"
            assert well.requests[-1].headers["x-session-id"] == sick.requests[-1].headers["x-session-id"]


async def web_page(_request: Request, stream: Stream) -> None:
    page = b"<html>Welcome"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(page)
    await stream.send(head + page)


async def test_a_web_page_is_no_answer_and_moves_the_turn_on() -> None:
    async with raw_replica(ok) as one, raw_replica(ok) as two, data_plane([one.url, two.url]) as plane:
        async with raw_client(plane.port) as client:
            replicas = {"r0": one, "r1": two}
            replicas[await home_of(plane, client)].answer = web_page
            response = await client.exchange(post(chat(), "X-Session-ID: one"))
            assert response.json() == OK
            assert response.headers["x-homing-decision"] == "failover"


async def test_a_web_page_that_is_all_there_is_reaches_the_client_and_makes_no_home() -> None:
    async with (
        raw_replica(web_page) as only,
        data_plane([only.url]) as plane,
        raw_client(plane.port) as client,
    ):
        for _ in range(2):
            response = await client.exchange(post(chat(), "X-Session-ID: one"))
            assert (response.status, response.body) == (200, b"<html>Welcome")
            assert response.headers["x-homing-decision"] == "new"
        assert plane.engine.sessions(10) == []
        [status] = plane.engine.replicas(plane.now())
        assert status.recent_failures > 1.0


async def test_when_all_fail_the_client_gets_the_last_answer_after_two_further_attempts() -> None:
    replicas = [RawReplica(failing("503 Unavailable", "retry-after: 9")) for _ in range(4)]  # type: ignore[arg-type]
    for replica in replicas:
        await replica.start()
    try:
        async with data_plane([r.url for r in replicas]) as plane, raw_client(plane.port) as client:
            response = await client.exchange(post(chat()))
            assert (response.status, response.headers["retry-after"]) == (503, "9")
            assert sum(len(replica.requests) for replica in replicas) == 3
    finally:
        for replica in replicas:
            await replica.close()


async def test_a_refused_connection_moves_the_turn_on() -> None:
    async with raw_replica(ok) as one, raw_replica(ok) as two, data_plane([one.url, two.url]) as plane:
        await one.stop()
        async with raw_client(plane.port) as client:
            for number in range(8):
                response = await client.exchange(post(chat(), f"X-Session-ID: {number}"))
                assert (response.status, response.headers["x-homing-replica"]) == (200, "r1")


async def test_an_answer_cut_before_its_first_byte_moves_on_if_the_replica_lives() -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        stream.abort()

    async with raw_replica(cut) as one, raw_replica(cut) as two, data_plane([one.url, two.url]) as plane:
        async with raw_client(plane.port) as client:
            response = await client.exchange(post(chat(stream=True)))
            assert response.status == 502
            assert len(one.requests) == len(two.requests) == 1
            assert "tried: " in str(response.json()["error"])


async def test_a_turn_that_a_replica_died_holding_goes_to_another_and_fells_no_third() -> None:
    async with (
        raw_replica(hang) as one,
        raw_replica(hang) as two,
        raw_replica(hang) as three,
        data_plane([one.url, two.url, three.url]) as plane,
        raw_client(plane.port) as client,
    ):
        standing = [one, two, three]
        await client.send(post(chat("poison")))
        for _ in range(2):
            await until(lambda: any(replica.requests for replica in standing))
            victim = next(replica for replica in standing if replica.requests)
            standing.remove(victim)
            await victim.stop()
        response = await client.response()
        assert response.status == 502
        assert "fells engines" in str(response.json()["error"])
        assert response.json()["error"]["code"] == "upstream_died"
        assert response.headers["x-should-retry"] == "false"
        assert standing[0].requests == []


async def test_a_turn_whose_replica_died_is_answered_by_another() -> None:
    async with (
        raw_replica(hang) as one,
        raw_replica(hang) as two,
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat()))
        await until(lambda: one.requests or two.requests)
        victim, other = (one, two) if one.requests else (two, one)
        other.answer = ok
        await victim.stop()
        response = await client.response()
        assert (response.status, response.headers["x-homing-decision"]) == (200, "failover")


async def test_a_policy_may_allow_no_attempt_after_a_death() -> None:
    plan = Plan(name="p", strategy=Priced(), retry=Retry(after_death=0))
    async with (
        raw_replica(hang) as one,
        raw_replica(hang) as two,
        data_plane([one.url, two.url], plan=plan) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat()))
        await until(lambda: one.requests or two.requests)
        victim, other = (one, two) if one.requests else (two, one)
        await victim.stop()
        response = await client.response()
        assert (response.status, response.json()["error"]["code"]) == (502, "upstream_died")
        assert other.requests == []


async def test_a_request_that_met_a_closed_idle_connection_goes_again_to_the_same_replica() -> None:
    async def once(request: Request, stream: Stream) -> None:
        if request.connection == 0 and len(replica.requests) > 1:
            stream.abort()  # what a server does that closes an idle connection as a request arrives
        else:
            await stream.send_json(OK)

    async with (
        raw_replica(once) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        assert (await client.exchange(post(chat()))).status == 200
        response = await client.exchange(post(chat()))
        assert response.status == 200
        assert [request.connection for request in replica.requests] == [0, 0, 1]


async def test_a_replica_that_went_away_idle_does_not_fail_the_next_turn() -> None:
    async with raw_replica(ok) as one, raw_replica(ok) as two, data_plane([one.url, two.url]) as plane:
        async with raw_client(plane.port) as client:
            home = await home_of(plane, client)
            await (one if home == "r0" else two).stop()
            # Sent at once, before the router can have noticed: the pooled connection is dead.
            response = await client.exchange(post(chat(), "X-Session-ID: one"))
            assert (response.status, response.headers["x-homing-decision"]) == (200, "failover")


async def test_a_prompt_that_fells_its_engine_at_once_on_a_connection_in_use_counts_as_a_death() -> None:
    plan = Plan(name="p", strategy=Priced(), retry=Retry(after_death=0))
    async with (
        raw_replica(ok) as one,
        raw_replica(ok) as two,
        data_plane([one.url, two.url], plan=plan) as plane,
    ):
        async with raw_client(plane.port) as client:
            replicas = {"r0": one, "r1": two}
            home = await home_of(plane, client)
            victim = replicas[home]
            other = two if victim is one else one

            async def die(_request: Request, _stream: Stream) -> None:
                await victim.stop()

            victim.answer = die
            response = await client.exchange(post(chat("poison"), "X-Session-ID: one"))
            assert response.status == 502
            assert "fells engines" in str(response.json()["error"])
            assert [request.connection for request in victim.requests] == [0, 0]
            assert other.requests == []


async def test_a_turn_leaves_a_replica_that_is_given_up_on_before_its_first_byte() -> None:
    async with raw_replica(ok) as one, raw_replica(ok) as two, data_plane([one.url, two.url]) as plane:
        async with raw_client(plane.port) as client, raw_client(plane.port) as elsewhere:
            homes = {await home_of(plane, client, session): session for session in "abcdefgh"}
            one.answer = two.answer = hang
            one.requests.clear()
            two.requests.clear()
            await client.send(post(chat(), f"X-Session-ID: {homes['r0']}"))
            await elsewhere.send(post(chat(), f"X-Session-ID: {homes['r1']}"))
            await until(lambda: one.requests and two.requests)
            two.answer = ok
            plane.give_up_on(ReplicaId("r0"), "/health did not answer")
            response = await client.response()
            assert (response.status, response.headers["x-homing-decision"]) == (200, "failover")
            assert response.headers["x-homing-replica"] == "r1"
            await until(lambda: one.open == 0)
            assert (len(one.requests), len(two.requests)) == (1, 2)
            assert plane.engine.in_flight() == 1  # the one elsewhere waits on
            elsewhere.abort()


async def test_with_nowhere_to_go_a_turn_is_told_that_its_replica_was_given_up_on() -> None:
    async with raw_replica(hang) as one, data_plane([one.url]) as plane, raw_client(plane.port) as client:
        await client.send(post(chat()))
        await until(lambda: one.requests)
        plane.give_up_on(ReplicaId("r0"), "/health did not answer")
        response = await client.response()
        assert response.status == 502
        assert "replica r0 does not answer its probes either" in str(response.json()["error"])


async def test_a_stream_that_has_begun_outlasts_probes_that_fail() -> None:
    go_on = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT)
        await go_on.wait()
        await stream.chunk(DONE)
        await stream.end()

    async with raw_replica(answer) as one, data_plane([one.url]) as plane, raw_client(plane.port) as client:
        await client.send(post(chat(stream=True)))
        await client.reader.readuntil(b"\n\n\r\n")
        plane.give_up_on(ReplicaId("r0"), "/health did not answer")
        go_on.set()
        assert DONE in await client.reader.readuntil(b"0\r\n\r\n")


async def test_the_kernel_watches_over_connections_to_replicas() -> None:
    async with raw_replica(ok) as one, data_plane([one.url]) as plane, raw_client(plane.port) as client:
        assert (await client.exchange(post(chat()))).status == 200
        transport = plane.pools[ReplicaId("r0")]._idle[0]._transport
        assert transport is not None
        connection = transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


async def test_a_whole_answer_that_comes_slowly_but_steadily_is_waited_for() -> None:
    async def slow(_request: Request, stream: Stream) -> None:
        body = orjson.dumps(OK)
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        for byte in body[:6]:
            await stream.send(bytes([byte]))
            await asyncio.sleep(0.2)
        await stream.send(body[6:])

    limits = Limits(first_byte_s=0.4)
    async with raw_replica(slow) as one, data_plane([one.url], limits=limits) as plane:
        async with raw_client(plane.port) as client:
            assert (await client.exchange(post(chat()))).json() == OK


async def test_an_answer_that_stops_after_its_beginning_is_given_no_more_time_than_one_that_never_began() -> (
    None
):
    async def stops(_request: Request, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{")
        await asyncio.sleep(30)

    limits = Limits(first_byte_s=1.5)
    async with raw_replica(stops) as one, data_plane([one.url], limits=limits) as plane:
        async with raw_client(plane.port) as client:
            began = plane.now()
            assert (await client.exchange(post(chat()))).status == 504
            # Two looks at a quarter of a second each: when it moved last, and that the time is up.
            assert 1.5 <= plane.now() - began < 2.4


async def test_answers_that_are_gathered_whole_count_against_the_budget() -> None:
    go_on, end = asyncio.Event(), asyncio.Event()

    async def thirds(_request: Request, stream: Stream) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 60002\r\n\r\n"
        await stream.send(head + b'"' + b"x" * 20_000)
        await go_on.wait()
        await stream.send(b"x" * 20_000)
        await end.wait()
        await stream.send(b"x" * 20_000 + b'"')

    def gathers(plane: DataPlane) -> bool:
        answers = [each._exchange._answer for each in plane.connections if each._exchange is not None]
        return any(answer is not None and answer.pieces for answer in answers)

    async with (
        raw_replica(thirds) as one,
        data_plane([one.url], limits=Limits(held_bytes=50_000)) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat()))
        # The first read is everybody's own.
        await until(lambda: gathers(plane))
        go_on.set()
        await until(lambda: plane.held_bytes >= 20_000)
        end.set()
        assert (await client.response()).status == 200
        assert plane.held_bytes == 0
    go_on.clear()
    async with (
        raw_replica(thirds) as one,
        data_plane([one.url], limits=Limits(held_bytes=30_000)) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat()))
        await until(lambda: gathers(plane))
        go_on.set()
        response = await client.response()
        assert response.status == 503
        assert response.json()["error"]["code"] == "held_bytes_full"  # type: ignore[index]
        assert plane.held_bytes == 0
        assert plane.engine.replicas(plane.now())[0].recent_failures == 0.0


async def test_what_was_gathered_of_an_answer_that_broke_off_is_given_back() -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n"
        )
        for _ in range(3):
            await stream.send(b"x" * 20_000)
            await asyncio.sleep(0.02)
        stream.abort()

    seen: list[int] = []

    async def look(_request: Request, stream: Stream) -> None:
        seen.append(plane.held_bytes)
        await stream.send_json(OK)

    async with raw_replica(cut) as one, raw_replica(cut) as two, data_plane([one.url, two.url]) as plane:
        async with raw_client(plane.port) as client:
            request = post(chat())
            await client.send(request)
            await until(lambda: one.requests or two.requests)
            (two if one.requests else one).answer = look
            assert (await client.response()).json() == OK
            assert seen == [len(request.partition(b"\r\n\r\n")[2])]


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n",
        b"\x00\x01\x02",
    ],
)
async def test_garbage_from_a_replica_is_a_502_that_names_it(garbage: bytes) -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send(garbage)
        await stream.gone()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat()))
        assert response.status == 502
        assert "replica r0" in str(response.json()["error"])


async def test_a_silent_replica_times_out_with_504_and_the_turn_goes_nowhere_else() -> None:
    limits = Limits(first_byte_s=0.3)
    async with (
        raw_replica(hang) as one,
        raw_replica(hang) as two,
        data_plane([one.url, two.url], limits=limits) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat()))
        assert response.status == 504
        assert "limits.first_byte" in str(response.json()["error"])
        assert len(one.requests) + len(two.requests) == 1


async def test_without_any_replica_up_the_answer_is_a_503_that_says_so() -> None:
    async with data_plane([]) as plane, raw_client(plane.port) as client:
        response = await client.exchange(post(chat()))
        assert response.status == 503
        assert "no replicas are configured" in str(response.json()["error"])
        anthropic = await client.exchange(post({"model": "m", "messages": []}, path="/v1/messages"))
        assert anthropic.json()["type"] == "error"


# --- after the first byte ---------------------------------------------------------------------------


async def test_a_stream_cut_in_the_middle_ends_in_an_error_event() -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT)
        await asyncio.sleep(0.02)
        stream.abort()

    async with (
        raw_replica(cut) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat(stream=True)))
        assert response.body.startswith(EVENT)
        error = orjson.loads(response.body[len(EVENT) :].removeprefix(b"data: "))
        assert "replica r0 closed the connection in the middle" in error["error"]["message"]
        assert b"[DONE]" not in response.body
        assert (await client.exchange(b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n")).status == 200


async def test_a_stream_that_ends_without_its_end_is_told_from_one_that_finished() -> None:
    async def early(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT)
        await stream.end()

    async with (
        raw_replica(early) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat(stream=True)))
        assert b"ended its stream before the end of the answer" in response.body


async def test_an_anthropic_stream_ends_in_its_own_kind_of_error_event() -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(b'event: ping\ndata: {"type":"ping"}\n\n')
        await asyncio.sleep(0.02)
        stream.abort()

    async with (
        raw_replica(cut) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        body = {"model": "m", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        response = await client.exchange(post(body, path="/v1/messages"))
        assert b'event: error\ndata: {"type":"error","error":{"type":"api_error"' in response.body


async def test_another_body_cut_short_is_cut_short_for_the_client_too() -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 100\r\n\r\nhalf")
        await asyncio.sleep(0.02)
        stream.abort()

    async with (
        raw_replica(cut) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat(), path="/v1/audio/speech"))
        assert (await client.closed()).endswith(b"\r\n\r\nhalf")


async def test_what_follows_a_whole_answer_spoils_the_connection_and_not_the_answer() -> None:
    async def twice(_request: Request, stream: Stream) -> None:
        await stream.send_json(OK)
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nforeign")

    async with (
        raw_replica(twice) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        for _ in range(3):
            assert (await client.exchange(post(chat()))).json() == OK
            await until(lambda: replica.open == 0)
        assert replica.connections == 3


# --- clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", ["waiting", "streaming"])
async def test_a_client_that_leaves_is_gone_upstream_within_100_ms(how: str, when: str) -> None:
    gone = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        if when == "streaming":
            await stream.start_events()
            await stream.chunk(EVENT)
        await stream.gone()
        gone.set()

    async with raw_replica(answer) as replica, data_plane([replica.url]) as plane:
        raw = socket.create_connection(("127.0.0.1", plane.port))
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(raw, post(chat(stream=True)))
        await until(lambda: len(replica.requests) == 1)
        if when == "streaming":
            assert EVENT in await loop.sock_recv(raw, 65536)
        if how == "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        await until(gone.is_set, 0.1)
        await settled(plane)
        assert plane.engine.replicas(0.0)[0].health == "healthy"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_only_closes_its_sending_side_gets_its_answer(streamed: bool) -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await asyncio.sleep(0.2)
        if not streamed:
            await stream.send_json(OK)
            return
        await stream.start_events()
        for _ in range(3):
            await stream.chunk(EVENT)
            await asyncio.sleep(0.1)
        await stream.chunk(DONE)
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat(stream=streamed)))
        client.writer.write_eof()
        response = await client.response()
        assert response.status == 200
        assert response.body == (EVENT * 3 + DONE if streamed else orjson.dumps(OK))


async def test_a_half_close_in_mid_stream_is_probed_without_changing_the_body() -> None:
    first, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(EVENT)
        first.set()
        await go_on.wait()
        await stream.chunk(DONE)
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat(stream=True)))
        await first.wait()
        await client.reader.readuntil(b"\n\n\r\n")
        client.writer.write_eof()
        assert await client.reader.readexactly(1) == b"0"  # a leading zero of the next chunk's size
        go_on.set()
        rest = await client.closed()
        assert rest == b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await asyncio.sleep(0.01)
        await stream.start_events()
        for _ in range(5):
            await stream.chunk(EVENT)
            await asyncio.sleep(0.004)
        await stream.chunk(DONE)
        await stream.end()

    async with (
        raw_replica(answer) as one,
        raw_replica(answer) as two,
        data_plane([one.url, two.url]) as plane,
    ):

        async def leave_after(number: int) -> None:
            async with raw_client(plane.port) as client:
                request = post(chat(f"n{number}", stream=True))
                await client.send(request[: number * 7 % len(request) + 1] if number % 3 == 0 else request)
                await asyncio.sleep(number % 17 * 0.004)
                client.abort()

        await asyncio.gather(*(leave_after(number) for number in range(150)))
        await settled(plane)
        await until(lambda: not plane.connections)
        assert {status.health for status in plane.engine.replicas(0.0)} == {"healthy"}


async def test_slow_heads_and_bodies_are_ended_with_408() -> None:
    limits = Limits(head_s=0.3, idle_s=0.3)
    async with data_plane([], limits=limits) as plane:
        async with raw_client(plane.port) as slow_head, raw_client(plane.port) as slow_body:
            await slow_head.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
            await slow_body.send(post(chat())[:-3])
            for client in (slow_head, slow_body):
                response = await client.response()
                assert response.status == 408
                assert await client.closed() == b""
        async with raw_client(plane.port) as idle:
            assert await idle.closed() == b""


async def test_stopping_lets_a_running_answer_end() -> None:
    asked = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        asked.set()
        await asyncio.sleep(0.2)
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        port = plane.port
        await client.send(post(chat()))
        await asked.wait()
        _, response = await asyncio.gather(plane.close(grace_s=5.0), client.response())
        assert response.status == 200
        assert response.headers["connection"] == "close"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_fault_of_the_router_itself_is_a_500_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        for where in ("_send", "_dispatch"):
            with monkeypatch.context() as broken:
                broken.setattr(f"router.dataplane.exchange.Exchange.{where}", lambda *_, **__: 1 / 0)
                response = await client.exchange(post(chat()))
            assert response.status == 500
            assert "failed in the router itself" in caplog.text
        assert (await client.exchange(post(chat()))).status == 200


class Heard(Receiver):
    """What an exchange would be told."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[tuple[bool, bool]] = asyncio.get_running_loop().create_future()

    def on_head(self, head: ResponseHead) -> None: ...

    def on_piece(self, piece: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_broken(self, why: str, *, answered: bool, taken: bool) -> None:
        self.broken.set_result((answered, taken))


class Asking(asyncio.Protocol):
    """A client whose request is sent on as soon as it is read."""

    def __init__(self, upstream: UpstreamConnection, heard: Heard) -> None:
        self.upstream = upstream
        self.heard = heard

    def data_received(self, data: bytes) -> None:
        self.upstream.send(self.heard, (b"POST / HTTP/1.1\r\nhost: r\r\n\r\n",), head_only=False)


@pytest.mark.skipif(kind_of_build() == "compiled", reason="inherits from what is compiled")
@pytest.mark.parametrize("gathering", [False, True])
async def test_a_request_that_met_a_replicas_farewell_in_one_turn_of_the_loop_was_not_taken(
    gathering: bool,
) -> None:
    """The client's request and the end of the idle connection are both there when the loop looks, in this
    order: whether the replica had the request decides whether it may have died of it."""
    loop = asyncio.get_running_loop()
    outbox = Outbox()
    if gathering:
        outbox.gather(loop.call_soon)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        pool = Pool(
            ReplicaId("r"), f"http://127.0.0.1:{port}", Limits(), now=loop.time, api_key=None, outbox=outbox
        )
        upstream = await pool.connect()
        replica, _ = listener.accept()
        heard = Heard()
        ours, theirs = socket.socketpair()
        with replica, theirs:
            ours.setblocking(False)
            transport, _ = await loop.create_connection(lambda: Asking(upstream, heard), sock=ours)
            theirs.send(b"x")
            replica.close()
            assert await asyncio.wait_for(heard.broken, 30) == (False, False)
            transport.close()
    assert not outbox._dropped
    pool.close()


@pytest.mark.skipif(kind_of_build() == "compiled", reason="inherits from what is compiled")
async def test_a_request_that_is_given_up_before_it_was_sent_leaves_nothing_behind() -> None:
    loop = asyncio.get_running_loop()
    outbox = Outbox()
    outbox.gather(loop.call_soon)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        pool = Pool(ReplicaId("r"), url, Limits(), now=loop.time, api_key=None, outbox=outbox)
        upstream = await pool.connect()
        upstream.send(Heard(), (b"POST / HTTP/1.1\r\nhost: r\r\n\r\n",), head_only=False)
        upstream.abort()
        await until(lambda: len(pool) == 0)
    assert not outbox._transports
    assert not outbox._dropped
