"""The relay over TLS, to clients and to replicas: the same bytes, the same departures, no half-close."""

import asyncio
import logging
import os
import socket
import struct
from pathlib import Path

import pytest
import yaml
from support.certificates import Authority, put
from support.plane import data_plane, until
from support.raw import RawClient, Request, Stream, chat, post, raw_client, raw_replica

from router.controlplane.certificate import certificate_watch
from router.dataplane.limits import Limits
from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.settings.tls import client_context
from router.wiring import Router

OK = {"id": "x", "object": "chat.completion", "choices": []}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send_json(OK)


# --- both ways --------------------------------------------------------------------------------------


async def test_turns_and_streams_pass_with_tls_on_both_sides(authority: Authority) -> None:
    released = asyncio.Event()

    async def answer(request: Request, stream: Stream) -> None:
        if b'"stream"' not in request.body:
            await stream.send_json(OK)
            return
        await stream.start_events()
        await stream.chunk(EVENT)
        await released.wait()
        await stream.chunk(EVENT * 20_000)
        await stream.chunk(DONE)
        await stream.end()

    trusting = authority.client()
    async with (
        raw_replica(answer, tls=authority.server().context) as replica,
        data_plane([replica.url], tls=authority.server().context, replica_tls=trusting) as plane,
        raw_client(plane.port, tls=trusting) as client,
    ):
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        assert (await client.exchange(post(chat("x" * 300_000)))).json() == OK
        await client.send(post(chat(stream=True)))
        await client.reader.readuntil(b"\r\n\r\n")
        assert (await client.reader.readuntil(b"\n\n")).endswith(EVENT), "the first event is not held back"
        released.set()
        rest = await client.reader.readuntil(b"\r\n0\r\n\r\n")
        assert rest.count(EVENT) == 20_000
        assert DONE in rest
        assert (await client.exchange(post(chat()))).json() == OK
        assert [request.connection for request in replica.requests] == [0, 0, 0]


async def test_a_slow_reader_costs_a_bounded_buffer_over_tls_too(authority: Authority) -> None:
    total = 64 * 1024 * 1024
    sent = 0

    async def answer(_request: Request, stream: Stream) -> None:
        nonlocal sent
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % total
        )
        while sent < total:
            await stream.send(b"x" * 65536)
            sent += 65536

    trusting = authority.client()
    async with (
        raw_replica(answer, tls=authority.server().context) as replica,
        data_plane([replica.url], tls=authority.server().context, replica_tls=trusting) as plane,
        raw_client(plane.port, limit=65536, tls=trusting) as client,
    ):
        await client.send(b"GET /v1/big HTTP/1.1\r\nHost: r\r\n\r\n")
        before = -1
        while sent != before or not sent:
            before = sent
            await asyncio.sleep(0.1)
        connection = next(iter(plane.connections))
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 2 << 20
        assert sent < total
        assert len((await client.response()).body) == total


# --- towards clients --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["waiting", "in the stream"])
@pytest.mark.parametrize("how", ["farewell", "end", "reset"])
async def test_a_client_that_leaves_is_gone_upstream_within_100_ms(
    authority: Authority, how: str, when: str
) -> None:
    left = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        if when != "waiting":
            await stream.start_events()
            await stream.chunk(EVENT)
        await stream.gone()
        left.set()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], tls=authority.server().context) as plane,
        raw_client(plane.port, tls=authority.client()) as client,
    ):
        await client.send(post(chat(stream=True)))
        await until(lambda: len(replica.requests) == 1)
        if when != "waiting":
            await client.reader.readuntil(b"\n\n")
        _leave(client, how)
        await until(left.is_set, 0.1)
        await until(lambda: not plane.connections)


def _leave(client: RawClient, how: str) -> None:
    sock = client.writer.get_extra_info("socket")
    if how == "farewell":
        client.writer.close()  # says that it closes, as TLS wants it
    elif how == "end":
        _end(client.writer)  # what is left of a process that was killed
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.abort()


def _end(writer: asyncio.StreamWriter) -> None:
    """End the connection without the farewell that TLS wants."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as same:
        same.shutdown(socket.SHUT_WR)


async def test_a_connection_that_ends_from_both_sides_at_once_is_swept_like_any_other(
    authority: Authority,
) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], tls=authority.server().context) as plane,
        raw_client(plane.port, tls=authority.client()) as client,
    ):
        assert (await client.exchange(post(chat()))).status == 200
        [connection] = plane.connections
        connection.abort()
        connection.stop()
        connection.on_sweep(plane.now())
        await until(lambda: not plane.connections)


async def test_a_refused_upload_is_answered_though_the_client_is_still_sending(authority: Authority) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], limits=Limits(body=100_000), tls=authority.server().context) as plane,
        raw_client(plane.port, tls=authority.client()) as client,
    ):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.writer.write(head + b"30000\r\n" + b"x" * 0x30000 + b"\r\n")
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (413, "close")
        assert replica.requests == []


async def test_a_client_without_tls_is_closed_and_costs_nobody_anything(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], tls=authority.server().context) as plane,
    ):
        async with raw_client(plane.port) as plain:
            await plain.send(post(chat()))
            answer = await plain.closed()
            assert b"HTTP" not in answer
        async with raw_client(plane.port, tls=authority.client()) as client:
            assert (await client.exchange(post(chat()))).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_replaced_certificate_serves_new_clients_and_keeps_the_old_ones(
    authority: Authority,
) -> None:
    tls = authority.server()
    watch = certificate_watch(tls)

    def served(client: RawClient) -> bytes:
        found = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(found, bytes)
        return found

    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], tls=tls.context) as plane,
        raw_client(plane.port, tls=authority.client()) as old,
    ):
        assert (await old.exchange(post(chat()))).status == 200
        put(authority.issue(), tls.files)
        await watch.saw(tls.files.stamps())
        await watch.saw(tls.files.stamps())
        async with raw_client(plane.port, tls=authority.client()) as new:
            assert (await new.exchange(post(chat()))).status == 200
            assert served(new) != served(old)
        assert (await old.exchange(post(chat()))).status == 200


async def test_stopping_ends_an_answer_and_closes_over_tls(authority: Authority) -> None:
    released = asyncio.Event()

    async def answer(_request: Request, stream: Stream) -> None:
        await released.wait()
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], tls=authority.server().context) as plane,
        raw_client(plane.port, tls=authority.client()) as client,
        raw_client(plane.port, tls=authority.client()) as idle,
    ):
        await client.send(post(chat()))
        await until(lambda: len(replica.requests) == 1)
        closing = asyncio.create_task(plane.close(60.0))
        assert await idle.closed() == b""
        released.set()
        assert (await client.response()).json() == OK
        await asyncio.wait_for(closing, 60.0)


# --- towards replicas -------------------------------------------------------------------------------


async def test_a_replica_that_cannot_show_who_it_is_gets_no_turn(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    async with (
        raw_replica(ok, tls=other.server().context) as replica,
        data_plane([replica.url], replica_tls=authority.client()) as plane,
        raw_client(plane.port) as client,
    ):
        response = await client.exchange(post(chat()))
        assert response.status == 502
        assert "its certificate is not accepted: unable to get local issuer" in str(response.json()["error"])
        assert replica.requests == []


async def test_a_replica_that_speaks_plain_http_under_https_is_said_to_fail_at_tls(
    authority: Authority,
) -> None:
    async with raw_replica(ok) as replica:
        url = replica.url.replace("http:", "https:")
        async with (
            data_plane([url], replica_tls=authority.client()) as plane,
            raw_client(plane.port) as client,
        ):
            await client.send(post(chat()))
            # It waits for the end of a head that never comes: closing is what a real server does.
            await until(lambda: replica.open == 1)
            await replica.stop()
            response = await client.response()
            assert response.status == 502
            assert "cannot be reached" in str(response.json()["error"])


async def test_without_verification_any_certificate_will_do(authority: Authority) -> None:
    async with (
        raw_replica(ok, tls=authority.server().context) as replica,
        data_plane([replica.url], replica_tls=client_context(None, verify=False)) as plane,
        raw_client(plane.port) as client,
    ):
        assert (await client.exchange(post(chat()))).status == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_ends_with_the_connection_ends_only_where_the_replica_says_so(
    authority: Authority, declared: bool
) -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it")
        if declared:
            stream.writer.close()
        else:
            _end(stream.writer)
            await stream.gone()

    async with (
        raw_replica(answer, tls=authority.server().context) as replica,
        data_plane([replica.url], replica_tls=authority.client()) as plane,
        raw_client(plane.port) as client,
    ):
        await client.send(b"GET /v1/thing HTTP/1.1\r\nHost: r\r\n\r\n")
        received = await client.closed() if not declared else (await client.response()).wire
        assert b"all of it" in received
        assert received.endswith(b"0\r\n\r\n") is declared


# --- a whole router ---------------------------------------------------------------------------------


async def test_a_router_probes_and_relays_over_tls_as_its_config_says(
    authority: Authority, tmp_path: Path
) -> None:
    async def answer(request: Request, stream: Stream) -> None:
        if "/v1/models" in request.line:
            await stream.send_json({"object": "list", "data": [{"id": "m", "object": "model"}]})
        elif "POST" in request.line:
            await stream.send_json(OK)
        else:
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    files = authority.files("listener")
    async with (
        raw_replica(answer, tls=authority.server().context) as trusted,
        raw_replica(answer, tls=Authority(tmp_path).server().context) as stranger,
    ):
        config = {
            "version": 1,
            "listen": "127.0.0.1:0",
            "admin": {"listen": "127.0.0.1:0"},
            "tls": {"cert": str(files.cert), "key": str(files.key)},
            "replicas": [
                {"name": "a", "url": trusted.url, "ca": str(authority.path)},
                {"name": "b", "url": stranger.url, "ca": str(authority.path)},
            ],
        }
        (tmp_path / "router.yaml").write_text(yaml.safe_dump(config))
        loaded = load_config(tmp_path / "router.yaml")
        router = Router(loaded, load_secrets(loaded, {}))
        try:
            await router.start()
            health = {status.id: (status.health, status.why) for status in router.engine.replicas(0.0)}
            assert health["a"][0] == "healthy"
            assert "its certificate is not accepted" in health["b"][1]
            async with raw_client(router.dataplane.port, tls=authority.client()) as client:
                assert (await client.exchange(post(chat()))).status == 200
        finally:
            await router.close()
        assert stranger.requests == []
