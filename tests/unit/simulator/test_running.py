"""A request in the engine: heard of to its end, and aborted where nobody waits for it."""

import asyncio

import pytest
from aiohttp.test_utils import make_mocked_request

from router.simulator.calls import Call, Record
from router.simulator.driver import Driver
from router.simulator.handoffs import Handoffs
from router.simulator.model import EngineModel, Job
from router.simulator.running import Listening, Running
from router.simulator.settings import ReplicaSettings


@pytest.fixture
async def running():
    settings = ReplicaSettings(time_scale=100.0)
    model = EngineModel(settings)
    driver = Driver(model, time_scale=settings.time_scale)
    yield Running(settings, model, driver, Handoffs(settings, "e"), None)
    driver.close()


def call() -> Call:
    return Call(make_mocked_request("POST", "/v1/x"), Record("POST", "/v1/x", {}))


def job(name: str, output_tokens: int) -> Job:
    return Job(name, 64, output_tokens, tuple(range(4)))


async def test_a_request_is_told_of_and_counted_by_how_it_ended(running: Running) -> None:
    of, then = call(), []
    listening = Listening(running, None, of.record, "stop", then=then.append)
    await running.run(of, job("1", 3), listening)
    assert (of.record.cached_tokens, then) == (0, [0])
    assert running.ended == {"stop": 1, "length": 0, "abort": 0, "error": 0}
    # What it left behind is found by the next, but for its last token, which is always computed.
    again = call()
    await running.run(again, job("2", 1), Listening(running, None, again.record, "length"))
    assert again.record.cached_tokens == 48
    assert running.ended["length"] == 1


async def test_who_stops_waiting_aborts_the_request(running: Running) -> None:
    of = call()
    waiting = asyncio.ensure_future(
        running.run(of, job("1", 100_000), Listening(running, None, of.record, "stop"))
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert running.ended["abort"] == 1
    running.abort("1")
    assert running.ended["abort"] == 1, "it has ended"
