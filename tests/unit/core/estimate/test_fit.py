"""The least-squares fit that the curves share."""

from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.fit import Coefficient, Fit


def pair() -> Fit:
    return Fit((Coefficient(1.0, 5.0, 1e-3, 100.0), Coefficient(1.0, 5.0, 1e-3, 100.0)))


@given(first=st.floats(0.1, 20), second=st.floats(0.1, 20), seed=st.integers(0, 99))
def test_it_finds_the_coefficients(first: float, second: float, seed: int) -> None:
    fit, rng = pair(), Random(seed)
    for _ in range(300):
        parts = (10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-2, 2))
        fit.observe(parts, first * parts[0] + second * parts[1])
    assert fit.values == pytest.approx([first, second], rel=0.25)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1e-9, 1e12)), max_size=60))
def test_the_coefficients_stay_within_their_bounds(told: list[tuple[float, float, float]]) -> None:
    fit = pair()
    for first, second, seen in told:
        fit.observe((first, second), seen)
        assert all(0.001 <= value <= 100.01 for value in fit.values)


def test_nothing_comes_of_nothing() -> None:
    fit = pair()
    assert not fit.observe((0.0, 0.0), 1.0)
    assert fit.values == (1.0, 1.0)


def test_one_absurd_observation_moves_the_sum_by_half_at_most() -> None:
    fit = pair()
    assert fit.observe((1.0, 1.0), 1e12)
    assert 2.0 < sum(fit.values) <= 3.0


def test_what_is_expected_to_two_percent_changes_nothing() -> None:
    fit = pair()
    assert not fit.observe((1.0, 1.0), 2.03)
    assert fit.observe((1.0, 1.0), 2.05)


def test_after_a_thousand_alike_an_odd_one_does_not_move_everything() -> None:
    fit, rng = pair(), Random(5)
    for _ in range(1000):
        fit.observe((1.0, 1.0), 4.0 * rng.lognormvariate(0, 0.1))
    before = list(fit.values)
    fit.observe((1.0, 1.0), 400.0)
    assert fit.values == pytest.approx(before, rel=0.3)


def test_a_quarter_of_observations_that_are_late_does_not_make_all_expected_late() -> None:
    fit, rng = Fit((Coefficient(1.0, 5.0, 1e-3, 100.0),)), Random(8)
    believed = []
    for number in range(3000):
        fit.observe((1.0,), 4.0 * rng.lognormvariate(0, 0.1) * (5.0 if number % 4 == 0 else 1.0))
        believed.append(fit.values[0])
    assert mean(believed[1000:]) == pytest.approx(4.0, rel=0.1)
