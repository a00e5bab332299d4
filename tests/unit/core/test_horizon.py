"""How much work is kept on its way to a replica."""

import pytest

from router.core.horizon import SEED_TOKENS, Horizon


def test_it_begins_with_one_step_of_an_engine() -> None:
    assert Horizon().tokens == SEED_TOKENS == 8192


def test_a_replica_that_ran_dry_gets_more_from_then_on() -> None:
    of = Horizon()
    of.sent(700)
    of.refill(0)
    assert of.tokens == pytest.approx(9011.2)


def test_one_that_had_work_left_gets_a_little_less_and_never_less_than_the_seed() -> None:
    of = Horizon()
    of.refill(500)
    assert of.tokens == SEED_TOKENS
    of.sent(700)
    of.refill(0)
    of.refill(500)
    assert of.tokens == pytest.approx(9011.2 * 0.995)


def test_a_turn_above_the_horizon_says_nothing_when_it_is_done() -> None:
    of = Horizon()
    of.sent(700)
    of.sent(100_000)
    of.refill(0)
    assert of.tokens == SEED_TOKENS
    of.sent(700)
    of.refill(0)
    assert of.tokens > SEED_TOKENS


def test_a_replica_that_was_sent_nothing_did_not_run_dry() -> None:
    of = Horizon()
    of.refill(0)
    of.refill(0)
    assert of.tokens == SEED_TOKENS


def test_it_is_bounded() -> None:
    of = Horizon()
    for _ in range(1000):
        of.sent(700)
        of.refill(0)
    assert of.tokens == 8 * SEED_TOKENS
