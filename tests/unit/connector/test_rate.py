"""The engine's own steps tell how long computing takes."""

import pytest

from router.connector.rate import PrefillRate


def test_nothing_is_known_before_a_prompt_was_computed() -> None:
    rate = PrefillRate()
    rate.observe(8, 0.01)  # decodes
    rate.observe(1000, 0.0)
    assert rate.seconds(1000) is None


def test_it_follows_the_steps_it_sees() -> None:
    rate = PrefillRate()
    rate.observe(1000, 1.0)
    assert rate.seconds(500) == pytest.approx(0.5)
    for _ in range(50):
        rate.observe(1000, 2.0)
    assert rate.seconds(500) == pytest.approx(1.0, rel=0.01)
