"""What steps cost: constant by default, growing where the settings say so."""

import pytest

from router.simulator.cost import Pace, StepCost
from router.simulator.settings import ReplicaSettings


def test_by_default_nothing_grows() -> None:
    cost = StepCost(ReplicaSettings(prefill_tps=1000.0, decode_tps=50.0))
    assert cost.prefill_s(0, 500) == cost.prefill_s(90_000, 500) == 0.5
    assert cost.pace(1, 10) == cost.pace(200, 1_000_000) == (0.02, 0.0)
    assert cost.step_s == 0


def test_a_prompt_token_costs_twice_where_so_many_stand_before_it() -> None:
    cost = StepCost(ReplicaSettings(prefill_tps=1000.0, prefill_double_tokens=4000.0))
    assert cost.prefill_s(0, 1) == pytest.approx(0.001, rel=1e-3)
    assert cost.prefill_s(4000, 1) == pytest.approx(0.002, rel=1e-3)
    assert cost.prefill_s(0, 4000) == pytest.approx(6.0)  # 1.5 times 4 s


def test_a_prompt_costs_the_same_in_whatever_chunks() -> None:
    cost = StepCost(ReplicaSettings(prefill_tps=1000.0, prefill_double_tokens=3000.0))
    chunks = sum(cost.prefill_s(behind, 100) for behind in range(0, 5000, 100))
    assert chunks == pytest.approx(cost.prefill_s(0, 5000))


def test_a_step_takes_longer_with_more_sequences_and_with_longer_ones() -> None:
    cost = StepCost(ReplicaSettings(decode_tps=50.0, decode_double_seqs=10.0, decode_double_tokens=10_000.0))
    assert cost.pace(1, 0).step_s == pytest.approx(0.02)
    assert cost.pace(11, 0).step_s == pytest.approx(0.04)
    assert cost.pace(1, 10_000).step_s == pytest.approx(0.04)


def test_a_pace_adds_up_its_steps() -> None:
    cost = StepCost(ReplicaSettings(decode_tps=50.0, decode_double_tokens=1000.0))
    steps = sum(cost.pace(3, 300 + 3 * step).step_s for step in range(40))
    assert cost.pace(3, 300).after_s(40) == pytest.approx(steps)


@pytest.mark.parametrize("pace", [Pace(0.02, 0.0), Pace(0.02, 0.003), Pace(0.02, 1e-9)])
@pytest.mark.parametrize("steps", [0, 1, 7, 5000])
def test_a_pace_says_how_many_steps_fit(pace: Pace, steps: int) -> None:
    assert abs(pace.steps_within(pace.after_s(steps)) - steps) <= 1
    assert pace.steps_within(pace.after_s(steps) + pace.step_s / 2) == steps


def test_no_step_fits_in_no_time() -> None:
    assert Pace(0.02, 0.003).steps_within(-1e-12) == 0
