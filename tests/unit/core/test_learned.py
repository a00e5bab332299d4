"""What one replica's turns teach."""

from random import Random

import pytest

from router.core.estimate.prefill import Curve, PrefillCurve
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


TRUTH = Curve(0.02, 1 / 12_000, 0.0, 3e-6, 0.08)


def teach(learned: Learned, rng: Random, missing: int, times: float = 1.0, now: float = 0.0) -> None:
    """A turn among others, whose first token comes half a step early or late."""
    took_s = times * TRUTH.seconds(missing, 4_000, shared=True) + rng.uniform(-0.02, 0.02)
    learned.first_token(4_000, 4_000 - missing, 0, 0.0, took_s, now, shared=True)


def test_one_that_only_has_short_turns_knows_from_the_others_what_long_ones_take() -> None:
    rng, together = Random(1), PrefillCurve(8000.0)
    alone, short, long = Learned(8000.0), Learned(8000.0), Learned(8000.0)
    short.share(together)
    long.share(together)
    for number in range(200):
        teach(alone, rng, 60, now=number)
        teach(short, rng, 60, now=number)
        teach(long, rng, rng.choice((60, 300, 3_000)), now=number)
    short.settle()
    truth = TRUTH.work_s(3_000, 4_000)
    assert short.curve.work_s(3_000, 4_000) == pytest.approx(truth, rel=0.15)
    # What such turns alone teach: that all takes long.
    assert alone.curve.work_s(3_000, 4_000) > 2.0 * truth


def test_of_each_it_is_learned_how_slow_it_is_beside_the_others() -> None:
    rng, together = Random(2), PrefillCurve(8000.0)
    fast, slow = Learned(8000.0), Learned(8000.0)
    for each in (fast, slow):
        each.share(together)
    for number in range(200):
        missing = rng.choice((60, 300, 3_000))
        teach(fast, rng, missing, now=number)
        teach(slow, rng, missing, 4.0, now=number)
    fast.settle()
    for missing in (300, 3_000):
        expected = TRUTH.seconds(missing, 4_000, shared=True)
        assert fast.curve.seconds(missing, 4_000, shared=True) == pytest.approx(expected, rel=0.2)
        assert slow.curve.seconds(missing, 4_000, shared=True) == pytest.approx(4.0 * expected, rel=0.2)


def test_it_goes_by_what_others_taught_once_it_is_settled_and_forgets_what_it_was_taught_alone() -> None:
    rng, together = Random(3), PrefillCurve(8000.0)
    one, other = Learned(8000.0), Learned(8000.0)
    teach(one, rng, 3_000, 9.0)
    one.share(together)
    other.share(together)
    assert one.curve == together.curve
    before = one.curve
    teach(other, rng, 3_000, 2.0)
    assert one.curve is before
    one.settle()
    assert one.curve == together.curve != before
    slowness = other.curve.token_s / together.curve.token_s
    other.share(together)
    assert other.curve.token_s / together.curve.token_s == slowness > 1.0
