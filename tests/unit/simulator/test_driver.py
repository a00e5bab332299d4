"""The driver: scaled time, one wake-up for all tokens of a step, silence after an abort."""

import asyncio

from router.simulator.driver import Driver
from router.simulator.model import EngineModel, Job
from router.simulator.settings import ReplicaSettings


class Heard:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[float] = self.loop.create_future()
        self.tokens = 0
        self.cached: int | None = None

    def started(self, cached_tokens: int, ttft_s: float) -> None:
        self.cached = cached_tokens
        self.tokens += 1

    def made(self, tokens: int) -> None:
        self.tokens += tokens

    def finished(self) -> None:
        self.done.set_result(self.loop.time())


def driver(scale: float) -> Driver:
    settings = ReplicaSettings(prefill_tps=1000.0, decode_tps=10.0)
    return Driver(EngineModel(settings), time_scale=scale)


async def test_time_is_scaled() -> None:
    heard = Heard()
    drive = driver(100.0)
    before = heard.loop.time()
    drive.submit(Job("a", 1000, 91, []), heard)  # 1 s of prefill, 9 s of decode
    took = await heard.done - before
    assert 0.1 <= took < 5.0
    assert heard.tokens == 91
    assert drive.now() >= 10.0


async def test_every_listener_hears_all_of_its_tokens() -> None:
    drive = driver(1000.0)
    everyone = [Heard() for _ in range(20)]
    for number, heard in enumerate(everyone):
        drive.submit(Job(str(number), 10, number + 1, []), heard)
    await asyncio.gather(*(heard.done for heard in everyone))
    assert [heard.tokens for heard in everyone] == list(range(1, 21))
    assert drive.stats().running == 0


async def test_an_aborted_request_is_heard_of_no_more() -> None:
    drive = driver(1000.0)
    left, stays = Heard(), Heard()
    drive.submit(Job("left", 10, 1000, []), left)
    drive.submit(Job("stays", 10, 100, []), stays)
    assert drive.abort("left")
    assert not drive.abort("left")
    await stays.done
    assert left.tokens == 0
    assert drive.model.in_flight == 0


async def test_a_closed_driver_has_no_timer() -> None:
    drive = driver(1.0)
    heard = Heard()
    drive.submit(Job("a", 10, 1000, []), heard)
    drive.close()
    assert drive._timer is None
