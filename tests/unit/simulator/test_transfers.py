"""Transfers on a loop: as slow as the bytes are many, shared, and over at the deadline or with an end."""

import asyncio

import pytest

from router.simulator.transfers import Transfers

GBPS = 0.008
"""A million bytes a second."""


@pytest.fixture
async def loop_time(monkeypatch):
    """The loop's clock, which stands still but for what a test lets pass."""
    loop = asyncio.get_running_loop()
    shown = [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: shown[0])
    return shown


async def begun(*works):
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.sleep(0)
    return tasks


async def pass_s(shown, seconds):
    shown[0] += seconds
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bytes_take_their_time(loop_time):
    transfers = Transfers(GBPS)
    (one,) = await begun(transfers.take("a", "b", 500_000, 10.0))
    await pass_s(loop_time, 0.4)
    assert not one.done()
    await pass_s(loop_time, 0.2)
    assert await one == 500_000


async def test_two_from_one_source_share_it_and_others_do_not(loop_time):
    transfers = Transfers(GBPS)
    one, two, other = await begun(
        transfers.take("a", "b", 500_000, 10.0),
        transfers.take("a", "c", 500_000, 10.0),
        transfers.take("d", "e", 500_000, 10.0),
    )
    await pass_s(loop_time, 0.6)
    assert (one.done(), two.done(), other.done()) == (False, False, True)
    await pass_s(loop_time, 0.5)
    assert (await one, await two) == (500_000, 500_000)


async def test_the_deadline_leaves_what_has_come(loop_time):
    transfers = Transfers(GBPS)
    (one,) = await begun(transfers.take("a", "b", 500_000, 0.25))
    await pass_s(loop_time, 1.0)
    assert await one == pytest.approx(250_000)
    assert await transfers.take("a", "b", 500_000, 0.0) == 0.0
    assert await transfers.take("a", "b", 0, 1.0) == 0.0


async def test_an_end_that_is_lost_leaves_what_has_come(loop_time):
    transfers = Transfers(GBPS)
    one, two = await begun(transfers.take("a", "b", 400_000, 10.0), transfers.take("c", "d", 400_000, 10.0))
    await pass_s(loop_time, 0.1)
    transfers.cut("a", "d")
    await pass_s(loop_time, 0.0)
    assert not one.done(), "nothing goes from a to d"
    transfers.cut("a", "b")
    assert await one == pytest.approx(100_000)
    transfers.cut("d")
    assert await two == pytest.approx(100_000)


async def test_one_that_nobody_waits_for_any_more_is_forgotten(loop_time):
    transfers = Transfers(GBPS)
    (one,) = await begun(transfers.take("a", "b", 400_000, 10.0))
    one.cancel()
    await pass_s(loop_time, 1.0)
    assert one.cancelled()
    assert transfers._waiting == {}
