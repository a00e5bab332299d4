"""A positive quantity from observations that are off by a factor."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.scale import Scale

POSITIVE = st.floats(1e-6, 1e12)


def test_the_seed_is_believed_at_first_and_kept_within_the_bounds() -> None:
    assert Scale(7.0, least=1.0, most=10.0).value == 7.0
    assert Scale(0.0, least=1.0, most=10.0).value == 1.0
    assert Scale(70.0, least=1.0, most=10.0).value == 10.0


@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_bounds_that_are_none_are_refused(least: float, most: float) -> None:
    with pytest.raises(ValueError, match="bounds"):
        Scale(1.0, least=least, most=most)


@given(seed=POSITIVE, truth=POSITIVE)
def test_it_finds_any_truth(seed: float, truth: float) -> None:
    scale = Scale(seed, least=1e-9, most=1e15)
    for _ in range(500):
        scale.observe(truth)
    assert scale.value == pytest.approx(truth, rel=0.01)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50))
def test_it_stays_within_its_bounds_whatever_it_is_told(values: list[float]) -> None:
    scale = Scale(5.0, least=1.0, most=10.0)
    for value in values:
        scale.observe(value)
        assert 1.0 <= scale.value <= 10.0


@pytest.mark.parametrize("absurd", [1e-300, 1e300])
def test_one_absurd_observation_moves_it_by_a_sixth_at_most(absurd: float) -> None:
    scale = Scale(100.0, least=1e-9, most=1e9)
    for _ in range(50):
        scale.observe(100.0)
    scale.observe(absurd)
    assert 100 / 1.16 < scale.value < 100 * 1.16


@pytest.mark.parametrize("nothing", [0.0, -1.0, nan, inf])
def test_what_is_no_quantity_says_nothing(nothing: float) -> None:
    scale = Scale(5.0, least=1.0, most=10.0)
    scale.observe(nothing)
    scale.observe(9.0, weight=0.0)
    assert scale.value == 5.0


def test_an_observation_of_little_weight_moves_it_less() -> None:
    light, full = Scale(5.0, least=1.0, most=10.0), Scale(5.0, least=1.0, most=10.0)
    light.observe(8.0, weight=0.1)
    full.observe(8.0)
    assert 5.0 < light.value < full.value
