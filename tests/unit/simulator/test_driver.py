"""The driver: scaled time, one wake-up for all tokens of a step, silence after an abort."""

import asyncio
import time
from types import SimpleNamespace

import pytest

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
    drive = driver(10_000.0)
    before = heard.loop.time()
    drive.submit(Job("a", 1000, 9991, []), heard)  # 1 s of prefill, 999 s of decode
    took = await heard.done - before
    assert 0.1 <= took < 100.0
    assert heard.tokens == 9991
    assert drive.now() >= 1000.0


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


@pytest.mark.parametrize("meanwhile", ["abort", "let_go", "go_at"])
async def test_what_was_due_is_heard_though_something_else_is_asked_first(meanwhile: str) -> None:
    """The loop is late: what ends by then ends while another request is dropped, and its timer with it."""
    drive = driver(1000.0)
    left, stays = Heard(), Heard()
    drive.submit(Job("stays", 10, 1, []), stays)
    if meanwhile == "abort":
        drive.submit(Job("left", 10, 10_000, []), left)
    time.sleep(0.05)  # noqa: ASYNC251 - a loop that is held up
    if meanwhile == "abort":
        assert drive.abort("left")
    elif meanwhile == "let_go":
        drive.let_go("another")
    else:
        drive.go_at(1.0)
    await asyncio.wait_for(stays.done, 30)
    assert stays.tokens == 1
    assert not drive.model.has_news


async def test_a_closed_driver_has_no_timer() -> None:
    drive = driver(1.0)
    heard = Heard()
    drive.submit(Job("a", 10, 1000, []), heard)
    drive.close()
    assert drive._timer is None


async def test_time_goes_on_from_where_it_was_at_another_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = driver(1000.0)
    at = [drive._origin]
    monkeypatch.setattr(drive, "_loop", SimpleNamespace(time=lambda: at[0]))
    at[0] += 2.0
    assert drive.now() == pytest.approx(2000.0)
    drive.go_at(250.0)
    assert drive.time_scale == 250.0
    assert drive.now() == pytest.approx(2000.0)
    at[0] += 2.0
    assert drive.now() == pytest.approx(2500.0)


async def test_a_slower_driver_finishes_what_it_has() -> None:
    drive = driver(1000.0)
    heard = Heard()
    drive.submit(Job("a", 10, 100, []), heard)
    drive.go_at(500.0)
    await heard.done
    assert heard.tokens == 100
    with pytest.raises(ValueError, match="above 0"):
        drive.go_at(0.0)
