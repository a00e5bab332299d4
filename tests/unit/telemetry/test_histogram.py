from hypothesis import given
from hypothesis import strategies as st

from router.telemetry.histogram import Histogram


def test_a_value_on_a_bound_counts_at_that_bound() -> None:
    histogram = Histogram((0.0, 1.0, 5.0))
    for value in (0.0, 0.5, 1.0, 5.0, 5.1):
        histogram.add(value)
    assert histogram.counts == [1, 2, 1, 1]
    assert histogram.count == 5
    assert histogram.total == 11.6


@given(st.lists(st.floats(0, 100)))
def test_every_value_is_in_the_bucket_of_the_least_bound_that_is_not_below_it(values: list[float]) -> None:
    bounds = (0.0, 1.0, 10.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    below = [sum(value <= bound for value in values) for bound in bounds]
    cumulative = [sum(histogram.counts[: i + 1]) for i in range(3)]
    assert cumulative == below
    assert histogram.count == len(values)
