"""The record of pulls from one source, and its breaker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.estimate.pulls import Breaker, PullRecord


def failed(times: int, at: float = 0.0) -> PullRecord:
    record = PullRecord()
    for _ in range(times):
        record.observe(False, at)
    return record


def test_before_any_pull_success_is_likely_and_allowed() -> None:
    record = PullRecord()
    assert record.chance == 0.95
    assert record.allows(0.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(-1e6, 1e6)), max_size=80))
def test_the_chance_stays_one(ends: list[tuple[bool, float]]) -> None:
    record = PullRecord()
    for good, at in ends:
        record.observe(good, at)
        assert 0.0 <= record.chance <= 1.0


@given(st.floats(0, 1))
def test_the_chance_follows_the_share_that_succeeds(share: float) -> None:
    record = PullRecord()
    due = 0.0
    for second in range(400):
        due += share
        record.observe(due >= 1.0, float(second))
        due -= due >= 1.0
    assert record.chance == pytest.approx(share, abs=0.15)


def test_nineteen_failures_are_too_few_and_twenty_open_the_breaker() -> None:
    assert failed(19).allows(0.0)
    assert not failed(20).allows(0.0)


def test_at_four_fifths_it_stays_closed() -> None:
    record = PullRecord()
    for number in range(100):
        record.observe(number % 5 != 4, 0.0)
    assert record.allows(0.0)


def test_failures_of_more_than_ten_seconds_ago_do_not_count() -> None:
    record = PullRecord()
    for number in range(40):
        record.observe(False, number * 0.6)
    assert record.allows(24.0)


def test_it_returns_one_pull_at_a_time() -> None:
    record = failed(20, 100.0)
    assert not record.allows(104.9)
    assert record.allows(105.0)
    record.tried(105.0)
    assert not record.allows(105.0)
    record.observe(True, 106.0)
    assert not record.allows(108.0)
    assert record.allows(108.5)
    for _ in range(3):
        record.observe(True, 110.0)
    assert record.allows(110.0)
    record.tried(110.0)
    assert record.allows(110.0)


def test_while_it_returns_each_failure_doubles_the_pause_up_to_a_minute() -> None:
    record = failed(20)
    for _ in range(10):
        record.observe(False, 10.0)
    assert not record.allows(69.9)
    assert record.allows(70.0)


def test_a_clock_that_was_set_back_does_not_keep_what_is_now_in_the_future() -> None:
    record = failed(19, 1000.0)
    record.observe(False, 5.0)
    assert record.allows(5.0)


def test_the_breaker_says_why_a_pull_may_be_tried_or_not() -> None:
    assert failed(19).breaker(0.0) is Breaker.CLOSED
    record = failed(20)
    assert record.breaker(4.9) is Breaker.OPEN
    assert record.breaker(5.0) is Breaker.RETURNING
    record.tried(5.0)
    assert record.breaker(5.0) is Breaker.OPEN
    for at in (6.0, 8.5, 10.0, 11.0):
        record.observe(True, at)
    assert record.breaker(11.0) is Breaker.CLOSED


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=80), st.floats(0, 1e6))
def test_the_breaker_says_what_is_allowed(ends: list[tuple[bool, float]], now: float) -> None:
    record = PullRecord()
    for good, at in ends:
        record.observe(good, at)
    assert (record.breaker(now) is not Breaker.OPEN) == record.allows(now)
