"""The figures that are made of what was measured."""

from collections import Counter

from router.simulator.replay.figures import Measured, figures, quantile, spread


def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed():
    values = [float(value) for value in range(1, 11)]
    assert [quantile(values, share) for share in (0.0, 0.1, 0.5, 0.51, 0.9, 0.99, 1.0)] == [
        1,
        1,
        5,
        6,
        9,
        10,
        10,
    ]


def test_a_spread_does_not_depend_on_the_order():
    assert spread([3.0, 1.0, 2.0]) == {"mean": 2.0, "p50": 2.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


def test_figures_are_in_the_units_that_their_names_say():
    measured = Measured(
        ttft_s=[0.5, 1.5],
        session_s=[60.0],
        prompt_tokens=1000,
        cached_tokens=250,
        moves=2,
        refused=1,
        kinds=Counter(new=1, pull=3),
        pulled=4,
        prefilled=[300, 100, 200],
    )
    result = figures(measured, left_out=7)
    assert result.hit_rate == 0.25
    assert result.ttft_ms == {"mean": 1000.0, "p50": 500.0, "p90": 1500.0, "p99": 1500.0, "max": 1500.0}
    assert result.session_s == {"p50": 60.0, "p90": 60.0}
    assert (result.moves, result.pulls, result.refused, result.turns, result.left_out) == (2, 4, 1, 2, 7)
    assert result.imbalance == 1.5


def test_what_was_not_measured_is_none_and_not_zero():
    result = figures(Measured(prefilled=[0, 0]), left_out=0)
    assert (result.hit_rate, result.imbalance) == (None, None)
    assert set(result.ttft_ms.values()) == set(result.session_s.values()) == {None}
