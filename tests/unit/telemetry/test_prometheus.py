import math

import pytest
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)

from router.telemetry.prometheus import render

CUMULATIVE = AggregationTemporality.CUMULATIVE


def point(value: float, **labels: str) -> NumberDataPoint:
    return NumberDataPoint(labels, 1, 2, value)


def gauge(*points: NumberDataPoint, description: str = "What it is.") -> Metric:
    return Metric("homing_x", description, "1", Gauge(points))


def test_a_gauge_is_written_with_help_type_and_labels() -> None:
    assert render([gauge(point(3, replica="a", state="down"), point(0.25))]) == (
        "# HELP homing_x What it is.\n# TYPE homing_x gauge\n"
        'homing_x{replica="a",state="down"} 3\nhoming_x 0.25\n'
    )


def test_a_counter_ends_in_total() -> None:
    counter = Metric("homing_x", "d", "1", Sum([point(7)], CUMULATIVE, is_monotonic=True))
    assert render([counter]) == "# HELP homing_x_total d\n# TYPE homing_x_total counter\nhoming_x_total 7\n"


def test_a_histogram_is_cumulative_and_ends_at_infinity() -> None:
    spread = HistogramDataPoint({"kind": "home"}, 1, 2, 6, 9.5, (1, 0, 5), (0.5, 1.0), 0.0, 0.0)
    assert render([Metric("homing_x", "d", "s", Histogram([spread], CUMULATIVE))]) == (
        "# HELP homing_x d\n# TYPE homing_x histogram\n"
        'homing_x_bucket{kind="home",le="0.5"} 1\n'
        'homing_x_bucket{kind="home",le="1.0"} 1\n'
        'homing_x_bucket{kind="home",le="+Inf"} 6\n'
        'homing_x_sum{kind="home"} 9.5\n'
        'homing_x_count{kind="home"} 6\n'
    )


def test_label_values_and_help_are_escaped_as_the_format_wants() -> None:
    text = render([gauge(point(1, replica='a"\\\nb'), description='say "\\\n"')])
    assert '# HELP homing_x say "\\\\\\n"\n' in text
    assert 'homing_x{replica="a\\"\\\\\\nb"} 1\n' in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (10**20, "1" + "0" * 20),
        (1e-7, "1e-07"),
        (0.1, "0.1"),
    ],
)
def test_numbers_are_written_in_full(value: float, text: str) -> None:
    assert render([gauge(point(value))]).splitlines()[-1] == f"homing_x {text}"


def test_a_metric_without_points_still_says_that_it_exists() -> None:
    assert render([gauge()]) == "# HELP homing_x What it is.\n# TYPE homing_x gauge\n"


def test_a_sum_that_may_fall_is_not_passed_off_as_a_counter() -> None:
    up_and_down = Metric("homing_x", "d", "1", Sum([point(7)], CUMULATIVE, is_monotonic=False))
    with pytest.raises(TypeError, match="homing_x: Sum cannot be written"):
        render([up_and_down])
