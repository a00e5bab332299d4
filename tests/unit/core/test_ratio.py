"""The learned tokens-per-byte ratio: convergence, change, and reports that make no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.ratio import LEAST, MOST, TokenRatio

LONG = 100_000


def test_starts_at_the_seed() -> None:
    assert TokenRatio(0.3).value == pytest.approx(0.3)


@pytest.mark.parametrize(("seed", "value"), [(0.0, LEAST), (-1.0, LEAST), (9.0, MOST)])
def test_a_seed_out_of_range_is_brought_into_it(seed: float, value: float) -> None:
    assert TokenRatio(seed).value == pytest.approx(value)


@pytest.mark.parametrize("true", [0.12, 0.25, 0.4, 0.8])
def test_ten_long_turns_are_enough(true: float) -> None:
    ratio = TokenRatio()
    for _ in range(10):
        ratio.observe(LONG, round(LONG * true))
    assert ratio.value == pytest.approx(true, rel=0.06)


def test_follows_a_change_within_ten_turns_even_after_a_long_life() -> None:
    ratio = TokenRatio()
    for _ in range(1000):
        ratio.observe(LONG, round(LONG * 0.2))
    for _ in range(10):
        ratio.observe(LONG, round(LONG * 0.35))
    assert ratio.value == pytest.approx(0.35, rel=0.06)


@pytest.mark.parametrize("absurd", [1, 10**12])
def test_one_absurd_report_moves_it_by_less_than_a_quarter(absurd: int) -> None:
    ratio = TokenRatio()
    for _ in range(20):
        ratio.observe(LONG, 25_000)
    settled = ratio.value
    ratio.observe(LONG, absurd)
    assert 1.15 < max(ratio.value / settled, settled / ratio.value) < 1.25


def test_short_prompts_weigh_less_than_long_ones() -> None:
    # Thirty bytes of question in fifty tokens of chat template say little about a 100 KB prompt.
    ratio = TokenRatio()
    for _ in range(10):
        ratio.observe(LONG, 25_000)
        ratio.observe(30, 60)
    assert ratio.value == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(("prompt_bytes", "prompt_tokens"), [(0, 10), (10, 0), (-5, 10), (10, -5), (0, 0)])
def test_a_report_without_a_length_says_nothing(prompt_bytes: int, prompt_tokens: int) -> None:
    ratio = TokenRatio()
    ratio.observe(prompt_bytes, prompt_tokens)
    assert ratio.value == pytest.approx(0.25)


@given(st.floats(0.01, 2.0), st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=60))
def test_stays_in_range_whatever_is_reported(seed: float, reports: list[tuple[int, int]]) -> None:
    ratio = TokenRatio(seed)
    for prompt_bytes, prompt_tokens in reports:
        ratio.observe(prompt_bytes, prompt_tokens)
        assert LEAST <= ratio.value <= MOST
