"""The prefill curve, learned from first tokens."""

from math import inf, nan
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.core.estimate.prefill import Curve, PrefillCurve

RATES = st.floats(500.0, 100_000.0)


def prompts(rng: Random) -> tuple[float, float]:
    """Missing tokens and context as agents have them: mostly a few hundred behind tens of thousands."""
    context = 10 ** rng.uniform(2, 5.3)
    return min(context, 10 ** rng.uniform(2, 5.3)), context


def test_before_anything_is_known_the_seed_counts() -> None:
    curve = PrefillCurve(8000.0).curve
    assert curve.seconds(8000, 8000) == pytest.approx(1.0 + curve.base_s, rel=0.01)
    assert curve.work_s(8000, 8000) == pytest.approx(1.0, rel=0.01)


@settings(max_examples=30)
@given(
    wrong=st.floats(0.1, 10),
    rate=RATES,
    doubling=st.floats(20_000.0, 1e7),
    base=st.floats(0.001, 0.1),
    seed_of_prompts=st.integers(0, 1000),
)
def test_it_finds_a_curve_of_any_rate_and_bend(
    wrong: float, rate: float, doubling: float, base: float, seed_of_prompts: int
) -> None:
    rng = Random(seed_of_prompts)
    truth = Curve(base, 1 / rate, 1 / rate / doubling, 3e-6)
    learned = PrefillCurve(rate * wrong)
    for _ in range(400):
        missing, context = prompts(rng)
        learned.observe(missing, context, truth.seconds(missing, context) * rng.lognormvariate(0, 0.1))
    errors = []
    for _ in range(200):
        missing, context = prompts(rng)
        expected = truth.seconds(missing, context)
        errors.append(abs(learned.curve.seconds(missing, context) / expected - 1))
    assert sorted(errors)[100] < 0.25
    assert sorted(errors)[180] < 0.5


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(-10, 1e6), st.floats(-10, 1e6), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
@example([(100.0, 200_000.0, 3599.0)] * 50)
@example([(200_000.0, 200_000.0, 1e-9)] * 50)
def test_whatever_it_is_told_more_never_takes_less_time_and_all_is_finite(
    told: list[tuple[float, float, float]],
) -> None:
    learned = PrefillCurve(8000.0)
    for missing, context, seconds in told:
        learned.observe(missing, context, seconds)
    curve = learned.curve
    times = [curve.seconds(n, 200_000) for n in (0, 100, 1000, 10_000, 100_000, 200_000)]
    assert times[0] >= 0.0
    assert times == sorted(times)
    assert times[-1] < inf
    assert curve.seconds(1000, 1000) <= curve.seconds(1000, 100_000)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([1e-6, 1000.0]))
def test_a_tenth_of_absurd_observations_does_not_spoil_it(seed: int, absurd: float) -> None:
    rng = Random(seed)
    truth = Curve(0.02, 1 / 12_000, 0.0, 3e-6)
    learned = PrefillCurve(8000.0)
    for number in range(600):
        missing, context = prompts(rng)
        seconds = absurd if number % 10 == 9 else truth.seconds(missing, context)
        learned.observe(missing, context, seconds)
    for missing, context in ((700, 80_000), (10_000, 40_000), (80_000, 80_000)):
        assert learned.curve.seconds(missing, context) == pytest.approx(
            truth.seconds(missing, context), rel=0.35
        )


@pytest.mark.parametrize("seconds", [0.0, -3.0, 1e6, nan, inf])
def test_a_time_that_cannot_be_says_nothing(seconds: float) -> None:
    learned = PrefillCurve(8000.0)
    before = learned.curve
    assert not learned.observe(1000, 1000, seconds)
    assert learned.curve is before


@pytest.mark.parametrize(("missing", "context"), [(0, 10), (-1, 10), (11, 10), (nan, 10), (1, inf)])
def test_a_prompt_that_cannot_be_says_nothing(missing: float, context: float) -> None:
    assert not PrefillCurve(8000.0).observe(missing, context, 1.0)


def test_a_prediction_that_is_right_teaches_nothing() -> None:
    learned = PrefillCurve(8000.0)
    assert not learned.observe(8000, 8000, learned.curve.seconds(8000, 8000) * 1.01)
    assert learned.observe(8000, 8000, learned.curve.seconds(8000, 8000) * 1.3)


def test_it_follows_a_replica_that_became_half_as_fast() -> None:
    rng = Random(3)
    learned = PrefillCurve(12_000.0)
    for rate in (12_000, 6_000):
        truth = Curve(0.02, 1 / rate, 0.0, 3e-6)
        for _ in range(400):
            missing, context = prompts(rng)
            learned.observe(missing, context, truth.seconds(missing, context))
        assert learned.curve.seconds(20_000, 60_000) == pytest.approx(20_000 / rate, rel=0.1)


def test_it_tells_what_is_brought_from_the_host_from_what_is_computed() -> None:
    rng = Random(4)
    learned = PrefillCurve(8000.0)
    truth = Curve(0.02, 1 / 12_000, 0.0, 1 / 50_000)
    for _ in range(400):
        missing, context = prompts(rng)
        reloaded = (context - missing) * rng.choice((0.0, 0.5, 1.0))
        learned.observe(missing, context, truth.seconds(missing, context, reloaded), reloaded)
    assert learned.curve.reload_s == pytest.approx(1 / 50_000, rel=0.1)
    assert learned.curve.seconds(700, 80_000, 79_300) == pytest.approx(
        truth.seconds(700, 80_000, 79_300), rel=0.1
    )


def test_it_tells_what_others_cost_from_what_is_always_there() -> None:
    rng = Random(6)
    learned = PrefillCurve(8000.0)
    truth = Curve(0.004, 1 / 12_000, 0.0, 3e-6, 0.03)
    for _ in range(400):
        missing, context = 10 ** rng.uniform(1.5, 4), 80_000
        shared = rng.random() < 0.6
        learned.observe(missing, context, truth.seconds(missing, context, shared=shared), shared=shared)
    for shared in (False, True):
        assert learned.curve.seconds(100, 80_000, shared=shared) == pytest.approx(
            truth.seconds(100, 80_000, shared=shared), rel=0.15
        )


def test_a_replica_that_has_had_turns_for_hours_is_known_as_well_as_after_minutes() -> None:
    rng, learned = Random(1), PrefillCurve(8000.0)
    off = []
    for number in range(20_000):
        missing, shared = rng.choice((100, 300, 700, 1500, 8000)), rng.random() < 0.5
        took = (missing / 12_000 + (0.03 if shared else 0.0)) * rng.uniform(0.7, 1.4)
        learned.observe(missing, rng.randrange(20_000, 200_000), took, shared=shared)
        if number >= 1000:
            off.append(abs(learned.curve.work_s(8000, 100_000) * 12_000 / 8000 - 1.0))
    off.sort()
    # What each turn is off by, it is 10 % in the median, and 99 in a hundred times under half.
    assert off[len(off) // 2] < 0.15
    assert off[int(0.99 * len(off))] < 0.6
