"""How long turns hold their KV."""

from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.holding import Holding


def test_the_seed_is_the_mean_before_anything_is_known() -> None:
    assert Holding(8.0).mean_s == 8.0


@given(mean=st.floats(0.2, 200.0), seed=st.integers(0, 99))
def test_it_learns_the_mean(mean: float, seed: int) -> None:
    rng = Random(seed)
    holding = Holding()
    for _ in range(2000):
        holding.observe(rng.expovariate(1 / mean))
    assert holding.mean_s == pytest.approx(mean, rel=0.25)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_it_is_a_positive_finite_time_whatever_it_is_told(told: list[float]) -> None:
    holding = Holding()
    for seconds in told:
        holding.observe(seconds)
        assert 0.01 <= holding.mean_s <= 3600.0


@pytest.mark.parametrize("seconds", [-1.0, nan, inf])
def test_a_clock_that_was_set_says_nothing(seconds: float) -> None:
    holding = Holding(8.0)
    holding.observe(seconds)
    assert holding.mean_s == 8.0


def test_it_forgets_what_was_long_ago() -> None:
    holding = Holding()
    for seconds in (2.0, 60.0):
        for _ in range(3000):
            holding.observe(seconds)
    assert holding.mean_s == pytest.approx(60.0, rel=0.01)


def test_one_absurd_turn_in_many_moves_it_by_a_tenth() -> None:
    holding = Holding()
    for _ in range(1000):
        holding.observe(5.0)
    holding.observe(1e9)
    assert holding.mean_s < 5.5
