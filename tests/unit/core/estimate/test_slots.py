"""Waiting until enough of a full replica's turns have ended."""

from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.slots import wait_for_endings_s


def test_who_needs_nobody_to_end_does_not_wait() -> None:
    assert wait_for_endings_s(0.0, 1.0, 5, 10.0) == 0.0
    assert wait_for_endings_s(-2.0, 1.0, 5, 10.0) == 0.0


@pytest.mark.parametrize(("needed", "running"), [(1, 1), (1, 8), (3, 8), (8, 8)])
def test_it_is_the_mean_time_to_the_kth_of_random_ends(needed: int, running: int) -> None:
    rng = Random(1)
    seen = mean(sorted(rng.expovariate(0.1) for _ in range(running))[needed - 1] for _ in range(4000))
    assert wait_for_endings_s(needed, needed, running, 10.0) == pytest.approx(seen, rel=0.15)


def test_behind_others_whose_places_are_taken_again() -> None:
    rng = Random(2)

    def wait(before: int, running: int) -> float:
        # With so many always running, an end comes every tenth of the mean.
        return sum(rng.expovariate(running / 10.0) for _ in range(before + 1))

    seen = mean(wait(20, 8) for _ in range(4000))
    assert wait_for_endings_s(21, 1, 8, 10.0) == pytest.approx(seen, rel=0.05)


@given(
    needed=st.floats(0.01, 500),
    own=st.floats(0, 500),
    running=st.floats(0, 300),
    remaining=st.floats(0.01, 1000),
)
def test_more_needed_never_waits_less_and_more_endings_never_wait_more(
    needed: float, own: float, running: float, remaining: float
) -> None:
    wait = wait_for_endings_s(needed, own, running, remaining)
    assert 0.0 <= wait < float("inf")
    assert wait <= wait_for_endings_s(needed + 1, own, running, remaining) + 1e-9
    assert wait_for_endings_s(needed, own, running + 5, remaining) <= wait + 1e-9
    assert wait_for_endings_s(needed, own, running, 2 * remaining) == pytest.approx(2 * wait)
