"""Which policies are in force, and what they let be retried."""

from router.core.observe import Outcome
from router.core.plan import Plan, Retry
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, engine


def test_retries_end_with_the_attempts_the_death_and_the_budget() -> None:
    of = engine(
        "a", plan=Plan(name="p", strategy=Priced(), retry=Retry(attempts=2, after_death=0, budget=0.0))
    )
    assert of.may_retry((Outcome.CUT,), 0.0)
    assert of.may_retry((Outcome.CUT, Outcome.SERVER_ERROR), 0.0)
    assert not of.may_retry((Outcome.CUT,) * 3, 0.0)
    assert not of.may_retry((Outcome.DIED,), 0.0)
    granted = sum(of.may_retry((Outcome.CUT,), 0.0) for _ in range(1000))
    assert 0 < granted < 100


def test_turns_of_a_replica_that_is_gone_move_on_whatever_the_budget_says_and_once_after_a_death() -> None:
    of = engine("a", plan=Plan(name="p", strategy=Priced(), retry=Retry(budget=0.0)))
    while of.may_retry((Outcome.CUT,), 0.0):
        pass
    assert all(of.may_retry((Outcome.DIED,), 0.0) for _ in range(1000))
    assert all(of.may_retry((Outcome.CONNECT_FAILED, Outcome.CONNECT_FAILED), 0.0) for _ in range(1000))
    assert of.may_retry((Outcome.DIED, Outcome.CONNECT_FAILED), 0.0)
    assert not of.may_retry((Outcome.DIED, Outcome.DIED), 0.0)
    assert not of.may_retry((Outcome.DIED, Outcome.CUT), 0.0)


def test_a_retry_budget_that_stays_the_same_is_not_filled_by_a_reload():
    plan = Plan(name="home", strategy=Priced(), retry=Retry(budget=0.0))
    made = engine(A, B, plan=plan)
    spent = sum(made.may_retry([Outcome.CUT], 1.0) for _ in range(100))
    assert 0 < spent < 100
    made.set_plans([plan])
    assert not made.may_retry([Outcome.CUT], 1.0)
    made.set_plans([Plan(name="home", strategy=Priced(), retry=Retry(budget=0.5))])
    assert made.may_retry([Outcome.CUT], 1.0)
