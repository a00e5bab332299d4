"""Clocks never go back."""

import pytest

from router.base.clock import ManualClock, SystemClock


def test_the_systems_clock_goes_on():
    clock = SystemClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_a_manual_clock_stands_until_it_is_moved():
    clock = ManualClock(5.0)
    assert (clock.now(), clock.now()) == (5.0, 5.0)
    assert clock.advance(1.5) == 6.5
    assert clock.now() == 6.5


def test_a_manual_clock_does_not_go_back():
    clock = ManualClock(5.0)
    with pytest.raises(ValueError, match="go back by 1 s"):
        clock.advance(-1)
    assert clock.now() == 5.0
