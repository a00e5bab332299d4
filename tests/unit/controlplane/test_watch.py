"""The watch over files: when a change counts, how often it is told, and that it ends."""

import pytest
from support.plane import until

from router.base.stamps import Stamp, stamps_of
from router.controlplane.watch import FileWatch

OLD, NEW, NEWER = ((Stamp(number, 1, 1),) for number in (1, 2, 3))


class Told:
    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def watch(told):
    return FileWatch("files", lambda: OLD, told, known=OLD)


async def test_a_change_counts_at_the_second_look_that_finds_it_and_once(watch, told):
    await watch.saw(OLD)
    await watch.saw(NEW)
    assert told.times == 0
    for _ in range(3):
        await watch.saw(NEW)
    assert told.times == 1


async def test_files_that_still_change_are_waited_for(watch, told):
    for stamps in (NEW, NEWER, NEW, NEWER):
        await watch.saw(stamps)
    assert told.times == 0
    await watch.saw(NEWER)
    assert told.times == 1


async def test_files_that_change_back_in_time_are_no_news(watch, told):
    for stamps in (NEW, OLD, OLD):
        await watch.saw(stamps)
    assert told.times == 0


async def test_what_somebody_else_has_read_is_no_news(watch, told):
    await watch.saw(NEW)
    watch.know(NEW)
    await watch.saw(NEW)
    assert told.times == 0


async def test_it_looks_on_its_own_until_it_is_closed(tmp_path, told):
    path = tmp_path / "file"
    watch = FileWatch("a file", lambda: stamps_of((path,)), told, known=stamps_of((path,)), every_s=0.001)
    watch.start()
    path.write_text("now there")
    await until(lambda: told.times == 1)
    await watch.close()
    await watch.close()
    assert len(watch._tasks) == 0
