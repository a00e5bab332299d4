"""The time a path takes: start and bandwidth."""

from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.link import Link


@given(bandwidth=st.floats(1e8, 1e11), start=st.floats(1e-3, 0.5), seed=st.integers(0, 100))
def test_it_learns_both_parts_from_transfers_of_all_sizes(bandwidth: float, start: float, seed: int) -> None:
    link = Link(3e9, 0.01)
    rng = Random(seed)
    for _ in range(600):
        size = bandwidth * start * 10 ** rng.uniform(-2, 2)
        link.observe(size, start + size / bandwidth)
    for times in (0.01, 1.0, 100.0):
        size = bandwidth * start * times
        assert link.seconds(size) == pytest.approx(start + size / bandwidth, rel=0.25)


@given(st.lists(st.tuples(st.floats(0, 1e13), st.floats()), max_size=60))
def test_whatever_it_is_told_it_takes_a_time_that_can_be(transfers: list[tuple[float, float]]) -> None:
    link = Link(1e9, 0.01)
    for size, seconds in transfers:
        link.observe(size, seconds)
    assert 0.0 < link.seconds(0.0) < link.seconds(1e9) < inf
    assert link.start_s <= 10.0
    assert 1e-13 <= link.byte_s <= 1e-4


def test_a_path_beyond_all_fabrics_is_the_quickest_there_can_be_and_no_quicker() -> None:
    link = Link(1e9, 0.01)
    for _ in range(100):
        link.observe(1e13, 0.01)
    assert link.byte_s == 1e-13


@pytest.mark.parametrize("seconds", [-5.0, 0.0, nan, inf])
def test_a_clock_that_was_set_teaches_nothing(seconds: float) -> None:
    link = Link(1e9, 0.01)
    link.observe(5e9, seconds)
    assert (link.byte_s, link.start_s) == (1e-9, 0.01)


def test_more_takes_longer() -> None:
    link = Link(1e9, 0.01)
    assert link.seconds(0) == 0.01
    assert link.seconds(1e9) == pytest.approx(1.01)


@pytest.mark.parametrize("times", [0.2, 0.5, 2.0, 5.0])
def test_the_first_transfer_shows_what_a_guess_was_wrong_by(times: float) -> None:
    link = Link(3e9, 0.01)
    assert link.observe(1.5e9, 0.01 + 1.5e9 / (3e9 * times))
    assert link.seconds(15e9) == pytest.approx(0.01 + 15e9 / (3e9 * times), rel=0.1)


def test_an_odd_transfer_after_others_moves_it_by_less_than_half() -> None:
    link = Link(3e9, 0.01)
    link.observe(1.5e9, 1.0)
    before = link.seconds(15e9)
    link.observe(1.5e9, 100.0)
    assert before < link.seconds(15e9) < 1.5 * before


def test_a_first_transfer_that_is_absurd_counts_as_ten_times_what_was_assumed() -> None:
    link = Link(3e9, 0.01)
    link.observe(1.5e9, 3000.0)
    assert link.seconds(15e9) <= 10.0 * (0.01 + 15e9 / 3e9) * 1.01


def test_what_is_seen_from_without_moves_it_by_half_at_most() -> None:
    link = Link(3e9, 0.01)
    before = link.seconds(15e9)
    assert link.observe(1.5e9, 100.0, timed=False)
    assert 1.3 * before < link.seconds(15e9) <= 1.55 * before
