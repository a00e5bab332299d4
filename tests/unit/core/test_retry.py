"""The retry budget as requests, retries and time go by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.retry import RetryBudget


def withdrawn(budget: RetryBudget, now: float, tries: int = 100) -> int:
    return sum(budget.withdraw(now) for _ in range(tries))


def test_starts_full_so_that_the_first_failure_can_be_retried() -> None:
    assert withdrawn(RetryBudget(share=0.2, floor_per_s=5.0, burst=20.0), now=0.0) == 20


def test_requests_earn_their_share() -> None:
    budget = RetryBudget(share=0.2, floor_per_s=0.0, burst=20.0)
    assert withdrawn(budget, now=0.0) == 20
    for _ in range(49):
        budget.deposit(now=0.0)
    assert withdrawn(budget, now=0.0) == 9
    budget.deposit(now=0.0)
    assert withdrawn(budget, now=0.0) == 1


def test_shares_that_are_not_exact_in_binary_add_up() -> None:
    budget = RetryBudget(share=0.1, floor_per_s=0.0, burst=20.0)
    withdrawn(budget, now=0.0)
    for _ in range(10):
        budget.deposit(now=0.0)
    assert budget.withdraw(now=0.0)
    assert not budget.withdraw(now=0.0)


def test_a_quiet_fleet_earns_the_floor() -> None:
    budget = RetryBudget(share=0.2, floor_per_s=5.0, burst=20.0)
    withdrawn(budget, now=100.0)
    assert not budget.withdraw(now=100.1)
    assert withdrawn(budget, now=101.0) == 5


def test_what_is_earned_never_exceeds_the_burst() -> None:
    budget = RetryBudget(share=1.0, floor_per_s=5.0, burst=3.0)
    budget.deposit(now=0.0)
    for _ in range(50):
        budget.deposit(now=1e6)
    assert withdrawn(budget, now=1e6) == 3


def test_a_clock_that_goes_back_neither_earns_twice_nor_takes_away() -> None:
    budget = RetryBudget(share=0.0, floor_per_s=1.0, burst=10.0)
    withdrawn(budget, now=50.0)
    assert withdrawn(budget, now=53.0, tries=1) == 1
    assert withdrawn(budget, now=10.0) == 2
    assert withdrawn(budget, now=53.0) == 0
    assert withdrawn(budget, now=54.0) == 1


@pytest.mark.parametrize(
    ("share", "floor_per_s", "burst"),
    [(-0.1, 5.0, 20.0), (0.2, -1.0, 20.0), (0.2, 5.0, 0.5), (float("nan"), 5.0, 20.0)],
)
def test_refuses_figures_that_make_no_sense(share: float, floor_per_s: float, burst: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        RetryBudget(share=share, floor_per_s=floor_per_s, burst=burst)


@given(st.lists(st.tuples(st.booleans(), st.floats(-5.0, 5.0)), max_size=200))
def test_retries_never_exceed_burst_plus_share_plus_floor(steps: list[tuple[bool, float]]) -> None:
    budget = RetryBudget(share=0.25, floor_per_s=2.0, burst=4.0)
    now = latest = 0.0
    requests = retries = 0
    budget.deposit(now)
    for is_request, passed in steps:
        now += passed
        latest = max(latest, now)
        if is_request:
            budget.deposit(now)
            requests += 1
        else:
            retries += budget.withdraw(now)
        assert retries <= 4.0 + 0.25 * requests + 2.0 * latest + 1e-6
