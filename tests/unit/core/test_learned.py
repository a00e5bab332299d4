"""What one replica's turns teach."""

import pytest

from router.core.learned import Learned


def test_a_turn_that_hardly_waited_teaches_the_curve() -> None:
    learned = Learned(8000.0)
    seed = learned.curve
    learned.first_token(10_000, 2_000, 0, 0.1, 2.0, 1.0)
    assert learned.curve.seconds(8_000, 10_000) > seed.seconds(8_000, 10_000)


def test_a_turn_that_mostly_waited_teaches_nothing() -> None:
    learned = Learned(8000.0)
    seed = learned.curve
    learned.first_token(10_000, 2_000, 0, 1.0, 2.0, 1.0)
    assert learned.curve is seed


def test_what_was_brought_from_the_host_is_told_from_what_was_computed() -> None:
    learned = Learned(8000.0)
    for number in range(200):
        learned.first_token(80_000, 79_000, 79_000 * (number % 2), 0.0, 0.145 + 0.5 * (number % 2), number)
    assert learned.curve.reload_s == pytest.approx(0.5 / 79_000, rel=0.1)


def test_a_prompt_that_was_cached_whole_has_its_last_token_computed() -> None:
    learned = Learned(8000.0)
    learned.first_token(1_000, 1_000, 0, 0.0, 5.0, 1.0)
    assert learned.curve.base_s > 0.01


def test_after_a_hundred_turns_ten_a_second_are_enough() -> None:
    learned = Learned(8000.0)
    for number in range(100):
        learned.first_token(8_000, 0, 0, 0.0, 1.0, number)
    learned.first_token(8_000, 0, 0, 0.0, 1.0, 100.0)
    known = learned.curve
    learned.first_token(8_000, 0, 0, 0.0, 3.0, 100.05)
    assert learned.curve is known
    learned.first_token(8_000, 0, 0, 0.0, 3.0, 100.11)
    assert learned.curve is not known
    # A clock that was set back does not silence it until it has caught up.
    later = learned.curve
    learned.first_token(8_000, 0, 0, 0.0, 3.0, 5.0)
    assert learned.curve is not later
