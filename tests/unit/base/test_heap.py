"""What is loaded at the start is not looked through again."""

import gc
from collections.abc import Iterator

import pytest

from router.base.heap import settle_heap


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_is_frozen_and_cycles_made_later_are_still_collected() -> None:
    before = gc.get_freeze_count()
    settle_heap()
    assert gc.get_freeze_count() > before + 1000
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
