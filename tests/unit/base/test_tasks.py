"""Background tasks: none is lost, none outlives its owner, no failure is silent."""

import asyncio

import pytest

from router.base.tasks import TaskOwner, first_of


async def test_a_task_is_kept_until_it_ends():
    owner = TaskOwner()
    release = asyncio.Event()
    task = owner.spawn(release.wait(), name="waits")
    assert len(owner) == 1
    assert task.get_name() == "waits"
    release.set()
    assert await task is True
    await asyncio.sleep(0)
    assert len(owner) == 0
    await owner.close()


async def test_a_failure_is_logged_with_its_name_and_harms_no_other(caplog):
    owner = TaskOwner()
    release = asyncio.Event()
    other = owner.spawn(release.wait(), name="goes on")

    async def fail() -> None:
        raise ValueError("what went wrong")

    task = owner.spawn(fail(), name="connect r1")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "connect r1" in record.getMessage()
    assert record.exc_info is not None
    assert "what went wrong" in str(record.exc_info[1])
    release.set()
    assert await other is True
    await owner.close()


async def test_a_cancellation_that_nobody_asked_for_is_a_failure(caplog):
    owner = TaskOwner()

    async def look() -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        gone.exception()

    mistaken = owner.spawn(look(), name="looks at a cancelled future")
    asked = owner.spawn(asyncio.Event().wait(), name="waits")
    await asyncio.wait([mistaken])
    asked.cancel()
    await asyncio.wait([asked])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "looks at a cancelled future" in record.getMessage()
    await owner.close()


async def test_closing_cancels_what_runs_and_waits_until_it_has_ended(caplog):
    owner = TaskOwner()
    ended = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("tidied")

    task = owner.spawn(tidy(), name="tidies")
    await asyncio.sleep(0)
    await owner.close()
    assert ended == ["tidied"]
    assert task.cancelled()
    assert not caplog.records, "being cancelled is no failure"
    await owner.close()


async def test_nothing_starts_once_the_owner_is_closed():
    owner = TaskOwner()
    await owner.close()
    with pytest.raises(RuntimeError, match="'late'"):
        owner.spawn(asyncio.sleep(0), name="late")
    assert len(owner) == 0


async def test_the_first_to_end_ends_the_others():
    ended = []

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    await first_of(waits(), asyncio.sleep(0), waits())
    assert ended == [True, True]


async def test_what_the_first_raises_is_raised_as_it_is():
    async def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await first_of(asyncio.Event().wait(), fails())
