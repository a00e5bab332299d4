"""The relay, byte by byte: what reaches the replica, what reaches the client."""

import asyncio

import orjson
import pytest
from support.plane import data_plane, until
from support.raw import Request, Stream, chat, post, raw_client, raw_replica

from router.base.ids import OPEN_TENANT, ReplicaId
from router.dataplane.limits import Limits

OK = {
    "id": "x",
    "object": "chat.completion",
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2},
}


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send_json(OK)


def event(content: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": content}}]}) + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_a_chat_goes_through_and_says_where_it_went() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat(), "X-Session-ID: one", "X-Request-Id: req-7"))
        assert response.status == 200
        assert response.json() == OK
        assert response.headers["x-homing-replica"] == "r0"
        assert response.headers["x-homing-decision"] == "new"
        assert response.headers["x-request-id"] == "req-7"
        again = await client.exchange(post(chat(), "X-Session-ID: one"))
        assert again.headers["x-homing-decision"] == "home"
        assert [request.connection for request in replica.requests] == [0, 0]


async def test_the_replica_sees_a_rebuilt_head_with_the_keyed_session_and_no_client_key() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], api_keys={ReplicaId("r0"): "replica-key"}) as plane,
        raw_client(plane.port) as client,
    ):
        await client.exchange(
            post(
                chat(),
                "X_Session_Id: one",
                "Authorization: Bearer client-key",
                "X-Api-Key: client-key",
                "Accept-Encoding: gzip",
                "Connection: keep-alive, X-Private",
                "X-Private: 1",
                "Keep-Alive: timeout=5",
                "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                "User-Agent: test",
            )
        )
        request = replica.requests[0]
        assert request.line == "POST /v1/chat/completions HTTP/1.1"
        headers = request.headers
        assert headers.pop("x-session-id") == plane.routing.key_of(OPEN_TENANT, "one")
        assert headers.pop("x-request-id")
        assert headers == {
            "host": f"127.0.0.1:{replica.port}",
            "authorization": "Bearer replica-key",
            "content-type": "application/json",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "user-agent": "test",
            "content-length": str(len(orjson.dumps(chat()))),
        }
        assert request.json() == chat()


async def test_reserved_fields_are_cut_however_they_are_written_and_the_rest_is_untouched() -> None:
    body = (
        b'{ "model" : "m", "cache_salt":"x","\\u0070riority": 3, "messages": [{"role":"user","content":"hi"}]'
        b', "kv_transfer_params": {"a":[1]}, "session_id":"one", "priority": 4 , "temperature":0.10}'
    )
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        assert (await client.exchange(post(body))).status == 200
        sent = replica.requests[0]
        assert set(orjson.loads(sent.body)) == {"model", "messages", "temperature"}
        assert b'"temperature":0.10' in sent.body
        assert sent.headers["x-session-id"] == plane.routing.key_of(OPEN_TENANT, "one")


async def test_the_engines_transfer_parameters_never_reach_a_client() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json({**OK, "kv_transfer_params": {"remote_host": "10.0.0.1"}})

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat()))
        assert response.json() == OK


async def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask() -> None:
    async def answer(request: Request, stream: Stream) -> None:
        assert orjson.loads(request.body)["stream_options"]["include_usage"] is True
        await stream.start_events()
        for data in (event("a"), event("b"), USAGE, DONE):
            await stream.chunk(data)
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        silent = await client.exchange(post(chat(stream=True)))
        assert silent.body == event("a") + event("b") + DONE
        asked = await client.exchange(post(chat(stream=True, stream_options={"include_usage": True})))
        assert asked.body == event("a") + event("b") + USAGE + DONE
        assert asked.headers["transfer-encoding"] == "chunked"


async def test_the_first_event_is_not_held_back() -> None:
    release = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        await stream.chunk(event("first"))
        await release.wait()
        await stream.chunk(DONE)
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(post(chat(stream=True)))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert await client.reader.readuntil(b"\n\n\r\n") == b"%x\r\n%b\r\n" % (
            len(event("first")),
            event("first"),
        )
        release.set()
        assert (await client.reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
async def test_a_stream_arrives_whole_however_it_is_cut(size: int) -> None:
    whole = event("grüße 🦊") + event("x" * 50_000) + event("ende") + USAGE + DONE

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        for at in range(0, len(whole), size) if size > 1 else (0,):
            if size == 1:
                for byte in range(min(2000, len(whole))):
                    await stream.chunk(whole[byte : byte + 1])
                await stream.chunk(whole[2000:])
            else:
                await stream.chunk(whole[at : at + size])
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat(stream=True, stream_options={"include_usage": True})))
        assert response.body == whole


async def test_what_is_neither_json_nor_events_passes_unread() -> None:
    audio = bytes(range(256)) * 400

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: %d\r\n\r\n" % len(audio) + audio
        )

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        form = b"--x\r\ncontent-disposition: form-data; name=model\r\n\r\nm\r\n--x--\r\n"
        response = await client.exchange(
            b"POST /v1/audio/speech?x=1 HTTP/1.1\r\nHost: r\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(form), form)
        )
        assert response.body == audio
        assert response.headers["x-homing-decision"] == "pass"
        assert replica.requests[0].body == form
        assert replica.requests[0].line == "POST /v1/audio/speech?x=1 HTTP/1.1"


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Unprocessable", "429 Too Many"])
async def test_a_4xx_is_the_clients_and_passes_as_it_is(status: str) -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json({"error": {"message": "no"}}, status, "retry-after: 3")

    async with (
        raw_replica(answer) as one,
        raw_replica(answer) as two,
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat()))
        assert response.status == int(status[:3])
        assert response.json() == {"error": {"message": "no"}}
        assert response.headers["retry-after"] == "3"
        assert len(one.requests) + len(two.requests) == 1


async def test_chunked_uploads_byte_by_byte_and_pipelined_requests_are_served_in_order() -> None:
    async def answer(request: Request, stream: Stream) -> None:
        content = orjson.loads(request.body)["messages"][0]["content"]
        await asyncio.sleep(0.02 if content == "first" else 0)
        await stream.send_json({"echo": content})

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        body = orjson.dumps(chat("chunked"))
        chunks = b"".join(
            b"%x;ext=1\r\n%b\r\n" % (len(body[at : at + 9]), body[at : at + 9])
            for at in range(0, len(body), 9)
        )
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: 1\r\n\r\n"
        )
        for at in range(len(request)):
            await client.send(request[at : at + 1])
        assert (await client.response()).json() == {"echo": "chunked"}
        await client.send(
            post(chat("first")) + post(chat("second")) + b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n"
        )
        answers = [(await client.response()).json() for _ in range(3)]
        assert answers == [{"echo": "first"}, {"echo": "second"}, {"status": "ok"}]


WORDS = [event(word) for word in ("one", "two", "three", "four", "five", "six")]
"""Enough of them that what they have in common is known before the last."""


async def test_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        for word in (*WORDS, DONE):
            await stream.chunk(word)
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat(stream=True), version="1.0"))
        assert "transfer-encoding" not in response.headers
        assert response.headers["connection"] == "close"
        assert response.body == b"".join(WORDS) + DONE


async def test_events_go_out_in_the_frames_that_they_came_in() -> None:
    frames = [b"%X\r\n%b\r\n" % (len(word), word) for word in (*WORDS, *WORDS)]

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        for at in range(0, len(frames), 2):
            await stream.send(frames[at] + frames[at + 1])
        await stream.chunk(DONE)
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        first = await client.exchange(post(chat(stream=True)))  # its head is new, and for the parser
        response = await client.exchange(post(chat(stream=True)))
        old = await client.exchange(post(chat(stream=True), version="1.0"))
    assert first.body == response.body == old.body == old.wire == b"".join((*WORDS, *WORDS, DONE))
    assert b"%X" % len(WORDS[-1]) != b"%x" % len(WORDS[-1])
    assert b"".join(frames[-6:]) in response.wire


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        body = orjson.dumps(chat())
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.exchange(body)).status == 200


async def test_an_early_hint_from_the_replica_is_skipped() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat()))
        assert response.json() == OK
        assert "link" not in response.headers


async def test_a_head_request_gets_the_head_alone_and_the_connection_lives_on() -> None:
    async def answer(request: Request, stream: Stream) -> None:
        if request.line.startswith("HEAD"):
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\ncontent-type: text/plain\r\n\r\n")
        else:
            await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(b"HEAD /v1/files HTTP/1.1\r\nHost: r\r\n\r\n")
        response = await client.response(head_only=True)
        assert response.headers["content-length"] == "1234"
        assert (await client.exchange(post(chat()))).json() == OK


async def test_a_body_without_length_ends_with_the_replicas_connection() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it")
        stream.writer.close()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(b"GET /v1/thing HTTP/1.1\r\nHost: r\r\n\r\n")
        assert response.body == b"all of it"


async def test_repeated_request_ids_of_live_requests_are_made_unique() -> None:
    both = asyncio.Event()
    seen: list[str] = []

    async def answer(request: Request, stream: Stream) -> None:
        seen.append(request.headers["x-request-id"])
        if len(seen) == 2:
            both.set()
        await both.wait()
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as one,
        raw_client(plane.port) as two,
    ):
        await one.send(post(chat(), "X-Request-Id: same"))
        await two.send(post(chat(), "X-Request-Id: same"))
        ids = {(await client.response()).headers["x-request-id"] for client in (one, two)}
        assert len(ids) == 2
        assert ids == set(seen)
        assert "same" in ids


async def test_a_slow_reader_costs_a_bounded_buffer_and_gets_everything() -> None:
    total = 64 * 1024 * 1024
    piece = b"x" * 65536
    sent = 0

    async def answer(_request: Request, stream: Stream) -> None:
        nonlocal sent
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % total
        )
        while sent < total:
            await stream.send(piece)
            sent += len(piece)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port, limit=65536) as client,
    ):
        await client.send(b"GET /v1/big HTTP/1.1\r\nHost: r\r\n\r\n")
        await until(lambda: sent > 0)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        connection = next(iter(plane.connections))
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 1 << 20
        assert sent < total
        response = await client.response()
        assert len(response.body) == total


async def test_bodies_held_stay_within_the_budget_and_beyond_it_clients_are_told_to_come_back() -> None:
    release = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await release.wait()
        await stream.send_json(OK)

    limits = Limits(held_bytes=50_000)
    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], limits=limits) as plane,
        raw_client(plane.port) as one,
        raw_client(plane.port) as two,
        raw_client(plane.port) as three,
    ):
        large = post(chat("x" * 30_000))
        await one.send(large)
        await until(lambda: len(replica.requests) == 1)
        await two.send(large)
        refused = await two.response()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert await two.closed() == b""
        release.set()
        assert (await one.response()).status == 200
        assert (await three.exchange(large)).status == 200


async def test_a_refusal_within_a_body_is_in_its_endpoints_words_whichever_way_it_was_read() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json(OK)

    limits = Limits(held_bytes=50_000)
    begins = b"POST /v1/messages HTTP/1.1\r\nHost: router\r\nContent-Length: 90000\r\n"
    async with raw_replica(answer) as replica, data_plane([replica.url], limits=limits) as plane:
        async with raw_client(plane.port) as client:
            # Heads of these lines are known from now on.
            await client.exchange(post(chat(), path="/v1/messages"))
        for line in (b"", b"Connection: x\r\n"):
            async with raw_client(plane.port) as client:
                await client.send(begins + line + b"\r\n{")
                await until(lambda: plane.held_bytes == 1)
                await client.send(b" " * 60_000)
                refused = await client.response()
                assert (refused.status, refused.json()["type"]) == (503, "error"), line
