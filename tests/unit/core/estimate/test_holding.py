"""How much longer a turn holds its KV."""

from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.holding import Holding


def test_the_seed_is_the_mean_before_anything_is_known() -> None:
    assert Holding(8.0).mean_s == pytest.approx(8.0, rel=0.05)


@given(mean=st.floats(0.2, 200.0), seed=st.integers(0, 99))
def test_it_learns_the_mean(mean: float, seed: int) -> None:
    rng = Random(seed)
    holding = Holding()
    for _ in range(3000):
        holding.observe(rng.expovariate(1 / mean))
    assert holding.mean_s == pytest.approx(mean, rel=0.25)


def test_what_is_left_of_a_memoryless_turn_does_not_depend_on_its_age() -> None:
    rng = Random(1)
    holding = Holding()
    for _ in range(20_000):
        holding.observe(rng.expovariate(0.1))
    for age in (0.0, 4.0, 16.0):
        # Within the breadth of a bucket.
        assert holding.remaining_s(age) == pytest.approx(10.0, rel=0.4)


def test_of_a_heavy_tail_the_old_have_longer_to_go() -> None:
    rng = Random(2)
    holding = Holding()
    for _ in range(5000):
        holding.observe(rng.paretovariate(1.3))
    assert holding.remaining_s(2.0) < holding.remaining_s(16.0) < holding.remaining_s(64.0)


def test_beyond_all_that_was_seen_it_lasts_as_long_again() -> None:
    holding = Holding(1.0)
    assert holding.remaining_s(1000.0) == pytest.approx(512.0)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.floats(0, 1e6))
def test_it_is_a_positive_finite_time_whatever_it_is_told(told: list[float], age: float) -> None:
    holding = Holding()
    for seconds in told:
        holding.observe(seconds)
    assert 0.0 <= holding.remaining_s(age) < inf


@pytest.mark.parametrize("seconds", [-1.0, nan, inf])
def test_a_clock_that_was_set_says_nothing(seconds: float) -> None:
    told, untold = Holding(), Holding()
    told.observe(seconds)
    assert told.mean_s == untold.mean_s


def test_it_forgets_what_was_long_ago() -> None:
    holding = Holding()
    for seconds in (2.0, 60.0):
        for _ in range(20_000):
            holding.observe(seconds)
    assert holding.mean_s == pytest.approx(60.0, rel=0.01)


def test_one_absurd_turn_in_many_moves_it_by_its_weight_alone() -> None:
    holding = Holding()
    for _ in range(1000):
        holding.observe(5.0)
    holding.observe(1e9)
    assert holding.mean_s < 25.0
