"""Data points of one moment: what is absent has none."""

from router.telemetry.histogram import Histogram
from router.telemetry.points import Builder


def test_points_carry_their_time_and_absent_ones_are_left_out():
    gauge = Builder(1, 2).gauge("g", "d", "1", [({"a": "b"}, 3.0), ({}, None), ({}, 0)])
    points = [
        (dict(p.attributes), p.value, p.start_time_unix_nano, p.time_unix_nano)
        for p in gauge.data.data_points
    ]
    assert points == [({"a": "b"}, 3.0, 1, 2), ({}, 0, 1, 2)]


def test_counters_only_grow_and_add_up():
    data = Builder(1, 2).counter("c", "d", "1", [({}, 4)]).data
    assert (data.is_monotonic, data.aggregation_temporality.name) == (True, "CUMULATIVE")


def test_a_histogram_shows_its_buckets_and_no_extremes():
    spread = Histogram((1.0, 2.0))
    spread.add(1.5)
    [point] = Builder(1, 2).histogram("h", "d", "s", [({"k": "v"}, spread)]).data.data_points
    assert (point.count, point.sum, tuple(point.bucket_counts)) == (1, 1.5, (0, 1, 0))
    assert (point.min, point.max) == (float("inf"), float("-inf"))
