"""The life of a simulated replica: start, busy port, kill, restart, serving until told to stop."""

import asyncio
import os
import signal

import httpx
import pytest

from router.base.errors import HomingError
from router.simulator.server import SimulatedReplica, serve
from router.simulator.settings import ReplicaSettings

FAST = ReplicaSettings(model="m", time_scale=2000.0)


async def test_a_busy_port_is_a_clear_error_and_leaves_nothing_behind() -> None:
    async with SimulatedReplica(FAST) as first:
        second = SimulatedReplica(FAST, port=first.port)
        with pytest.raises(HomingError, match=rf"127\.0\.0\.1:{first.port}: the port is in use"):
            await second.start()
        assert not second.alive
        with pytest.raises(HomingError):
            await serve(FAST, "127.0.0.1", first.port)


async def test_a_restart_keeps_the_port_and_forgets_the_rest() -> None:
    async with SimulatedReplica(FAST) as replica, httpx.AsyncClient(timeout=60) as client:

        async def cached() -> int:
            answer = await client.post(
                f"{replica.url}/v1/completions", json={"prompt": "x" * 400, "max_tokens": 1}
            )
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(), await cached()] == [0, 96]
        port, started = replica.port, replica.api.start_time
        await replica.restart()
        assert replica.port == port
        assert replica.api.start_time > started
        assert len(replica.requests) == 0
        assert await cached() == 0


async def test_a_killed_replica_refuses_and_can_be_killed_again() -> None:
    async with SimulatedReplica(FAST) as replica:
        await replica.kill()
        await replica.kill()
        assert not replica.alive
        async with httpx.AsyncClient(timeout=60) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{replica.url}/health")


async def test_a_kill_breaks_what_is_in_flight_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with (
        SimulatedReplica(ReplicaSettings(model="m")) as replica,
        httpx.AsyncClient(timeout=60) as client,
    ):
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        async with client.stream("POST", f"{replica.url}/v1/chat/completions", json=body) as answer:
            chunks = answer.aiter_raw()
            await anext(chunks)
            await replica.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in chunks:
                    pass
        assert replica.requests[-1].aborted
    assert asyncio.all_tasks() == before


async def test_what_was_never_started_has_no_state() -> None:
    with pytest.raises(RuntimeError, match="never started"):
        _ = SimulatedReplica().model


def test_an_address_with_colons_is_bracketed() -> None:
    assert SimulatedReplica(host="::1", port=5).url == "http://[::1]:5"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_serving_ends_well_on_a_signal(number: signal.Signals) -> None:
    urls: list[str] = []

    def ready(url: str) -> None:
        urls.append(url)
        os.kill(os.getpid(), number)

    assert await serve(FAST, "127.0.0.1", 0, ready=ready) == 0
    assert urls[0].startswith("http://127.0.0.1:")


async def test_serving_ends_badly_when_a_fault_kills_it() -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def fell() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(f"{await ready}/sim/faults", json={"fault": "die"})

    async with asyncio.TaskGroup() as group:
        served = group.create_task(serve(FAST, "127.0.0.1", 0, ready=ready.set_result))
        group.create_task(fell())
    assert served.result() == 1
