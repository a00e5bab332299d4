"""What the router itself lacks or does not allow counts against no replica."""

import asyncio
import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.plane import Outcomes, data_plane
from support.raw import Request, Stream, chat, post, raw_client, raw_replica

from router.core.observe import Outcome
from router.dataplane.limits import Limits
from router.dataplane.pool import Pool
from router.dataplane.server import DataPlane

HOMING = Path(sys.executable).parent / "homing"
OK = {"id": "x", "object": "chat.completion", "choices": []}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send_json(OK)


def healths(plane: DataPlane) -> list[str]:
    return [status.health for status in plane.engine.replicas(plane.now())]


def failing(error: OSError) -> Callable[[Pool], object]:
    async def connect(_pool: Pool) -> None:
        raise error

    return connect


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL]
)
async def test_a_shortage_of_the_routers_own_is_a_503_and_no_replicas_fault(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        raw_replica(ok) as one,
        raw_replica(ok) as two,
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        outcomes = Outcomes(plane)
        with monkeypatch.context() as short:
            short.setattr(Pool, "connect", failing(OSError(number, "x")))
            for _ in range(4):
                response = await client.exchange(post(chat()))
                assert (response.status, response.headers["retry-after"]) == (503, "1")
                error = response.json()["error"]
                assert isinstance(error, dict)
                assert error["code"] == "shortage"
                assert os.strerror(number) in error["message"]
        assert outcomes.seen == [Outcome.SHORTAGE] * 4
        assert healths(plane) == ["healthy", "healthy"]
        assert (await client.exchange(post(chat()))).status == 200


async def test_a_resolver_without_an_answer_moves_the_turn_on_and_blames_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = Pool.connect

    async def unresolved(pool: Pool) -> object:
        if pool.replica == "r0":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await connect(pool)

    async with (
        raw_replica(ok) as one,
        raw_replica(ok) as two,
        data_plane([one.url, two.url]) as plane,
        raw_client(plane.port) as client,
    ):
        monkeypatch.setattr(Pool, "connect", unresolved)
        for number in range(8):
            response = await client.exchange(post(chat(), f"X-Session-ID: {number}"))
            assert (response.status, response.headers["x-homing-replica"]) == (200, "r1")
        monkeypatch.setattr(Pool, "connect", failing(socket.gaierror(socket.EAI_AGAIN, "Temporary failure")))
        plane.pools["r1"].retire()  # type: ignore[index]
        response = await client.exchange(post(chat()))
        assert (response.status, response.json()["error"]["code"]) == (503, "shortage")  # type: ignore[index]
        assert healths(plane) == ["healthy", "healthy"]


async def test_a_look_that_fails_for_want_of_files_does_not_make_a_death_of_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut(_request: Request, stream: Stream) -> None:
        monkeypatch.setattr(Pool, "connect", failing(OSError(errno.EMFILE, "x")))
        stream.abort()

    async with (
        raw_replica(cut) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        outcomes = Outcomes(plane)
        assert (await client.exchange(post(chat()))).status == 502
        assert outcomes.seen == [Outcome.CUT]


async def test_answers_over_the_routers_own_limits_do_not_bring_a_replica_down() -> None:
    async def endless(_request: Request, stream: Stream) -> None:
        await stream.start_events()
        while True:
            await stream.chunk(EVENT)
            await asyncio.sleep(0.02)

    async def huge(_request: Request, stream: Stream) -> None:
        await stream.send_json({"text": "x" * 5000})

    async with (
        raw_replica(endless) as replica,
        data_plane([replica.url], limits=Limits(total_s=0.05, body=4000)) as plane,
        raw_client(plane.port) as client,
    ):
        outcomes = Outcomes(plane)
        for _ in range(3):
            response = await client.exchange(post(chat(stream=True)))
            assert b"limits.total" in response.body
        replica.answer = huge
        for _ in range(3):
            response = await client.exchange(post(chat()))
            assert (response.status, b"limits.body" not in response.body) == (502, False) or (
                b"over 4000 bytes" in response.body
            )
        assert outcomes.seen == [Outcome.OVER_LIMIT] * 6
        assert healths(plane) == ["healthy"]


async def test_a_client_too_many_is_answered_503() -> None:
    async with raw_replica(ok) as replica, data_plane([replica.url], limits=Limits(clients=2)) as plane:
        async with raw_client(plane.port) as one, raw_client(plane.port) as two:
            assert (await one.exchange(post(chat()))).status == 200
            assert (await two.exchange(post(chat()))).status == 200
            async with raw_client(plane.port) as three:
                response = await three.response()  # before it has asked for anything
                assert (response.status, response.headers["connection"]) == (503, "close")
                assert response.json()["error"]["code"] == "shortage"  # type: ignore[index]
                assert await three.closed() == b""
            assert (await one.exchange(post(chat()))).status == 200
        async with raw_client(plane.port) as four:
            assert (await four.exchange(post(chat()))).status == 200


@contextmanager
def homing(*arguments: str, files: tuple[int, int] | None = None) -> Iterator[tuple[str, str]]:
    """A command with a limit of open files, soft and hard; the URLs that it prints."""
    with subprocess.Popen(
        [HOMING, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)) if files else None,
    ) as process:
        assert process.stdout is not None
        words = [word.rstrip(";") for word in process.stdout.readline().split()]
        urls = [word for word in words if word.startswith("http://")]
        try:
            yield urls[0], urls[-1]
        finally:
            process.kill()


@pytest.mark.parametrize(("files", "least"), [((64, 64), 20), ((64, 1024), 60)])
async def test_sixty_streams_on_sixty_four_files_leave_the_replica_well(
    files: tuple[int, int], least: int
) -> None:
    slow = ("engine", "--port", "0", "--decode-tps", "20")
    with homing(*slow) as (engine, _):
        serve = ("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--replica", engine)
        with homing(*serve, files=files) as (data, admin):

            async def stream(client: httpx.AsyncClient) -> int:
                body = {**chat(stream=True), "model": "sim-model", "max_tokens": 20}
                try:
                    answer = await client.post(f"{data}/v1/chat/completions", json=body)
                    return answer.status_code
                except httpx.TransportError:
                    return 0  # not even accepted

            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
                statuses = await asyncio.gather(*(stream(client) for _ in range(60)))
                assert set(statuses) <= {200, 503, 0}
                assert statuses.count(200) >= least
                assert (await client.get(f"{admin}/readyz")).status_code == 200
                [replica] = (await client.get(f"{admin}/api/replicas")).json()["replicas"]
                assert replica["health"] == "healthy"
                assert await stream(client) == 200
