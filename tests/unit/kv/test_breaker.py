"""The breaker: opens on a burst of failures, lets nothing through, and closes again by steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv.breaker import Breaker, BreakerPolicy, BreakerState

POLICY = BreakerPolicy()


def failing(count=20, now=0.0):
    breaker = Breaker(POLICY)
    for _ in range(count):
        breaker.record(success=False, now=now)
    return breaker


def test_few_failures_say_nothing():
    assert failing(19).state(0.0) is BreakerState.CLOSED


def test_a_burst_of_failures_opens_it():
    breaker = failing(20)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.allows(4.9)
    assert breaker.opened == 1


@pytest.mark.parametrize(("failures", "state"), [(20, BreakerState.CLOSED), (21, BreakerState.OPEN)])
def test_under_eighty_in_a_hundred_is_too_few(failures, state):
    # Failures last: while few pulls are in the window, a few failures would be many.
    breaker = Breaker(POLICY)
    for number in range(100):
        breaker.record(success=number < 100 - failures, now=0.0)
    assert breaker.state(0.0) is state


def test_what_is_older_than_the_window_does_not_count():
    breaker = failing(19, now=0.0)
    breaker.record(success=False, now=10.0)
    assert breaker.state(10.0) is BreakerState.CLOSED


def test_it_returns_by_steps():
    breaker = failing(20, now=0.0)
    now = 5.0
    shares = []
    while breaker.state(now) is not BreakerState.CLOSED:
        allowed = 0
        for _ in range(160):
            if breaker.allows(now):
                allowed += 1
        shares.append(allowed)
        now += 2.0
        breaker.record(success=True, now=now)
        assert now < 60
    assert shares == [11, 20, 40, 80]
    assert all(breaker.allows(now) for _ in range(20))


def test_a_failure_while_returning_opens_it_for_longer():
    breaker = failing(20, now=0.0)
    assert breaker.allows(5.0)
    breaker.record(success=False, now=5.0)
    assert not breaker.allows(14.9)
    assert breaker.allows(15.0)
    breaker.record(success=False, now=15.0)
    assert not breaker.allows(34.9)
    assert breaker.allows(35.0)


def test_pulls_that_began_before_it_opened_change_nothing():
    breaker = failing(20)
    breaker.record(success=True, now=1.0)
    assert breaker.state(1.0) is BreakerState.OPEN


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=200))
def test_a_source_that_works_again_is_always_used_again(history):
    breaker, now = Breaker(POLICY), 0.0
    for step, success in history:
        now += step
        if breaker.allows(now):
            breaker.record(success=success, now=now)
    for _ in range(200):
        now += 1.0
        if breaker.allows(now):
            breaker.record(success=True, now=now)
    assert breaker.state(now) is BreakerState.CLOSED
