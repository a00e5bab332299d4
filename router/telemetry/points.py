"""Makes metric data points for one moment. Knows no figure by name."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData

from router.telemetry.histogram import Histogram

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE

Labels = Mapping[str, str]
Points = Iterable[tuple[Labels, float | None]]


class Builder:
    """Makes metric data for one moment. A point whose value is `None` is left out: absent is not zero."""

    def __init__(self, start_ns: int, now_ns: int) -> None:
        self._start_ns = start_ns
        self._now_ns = now_ns

    def gauge(self, name: str, description: str, unit: str, points: Points) -> Metric:
        return Metric(name, description, unit, Gauge(self._numbers(points)))

    def counter(self, name: str, description: str, unit: str, points: Points) -> Metric:
        return Metric(name, description, unit, Sum(self._numbers(points), _CUMULATIVE, is_monotonic=True))

    def histogram(
        self, name: str, description: str, unit: str, spreads: Iterable[tuple[Labels, Histogram]]
    ) -> Metric:
        points = [
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=self._start_ns,
                time_unix_nano=self._now_ns,
                count=spread.count,
                sum=spread.total,
                bucket_counts=tuple(spread.counts),
                explicit_bounds=spread.bounds,
                # The extremes since the start say little and are not kept: the SDK's own way to say so.
                min=math.inf,
                max=-math.inf,
            )
            for labels, spread in spreads
        ]
        return Metric(name, description, unit, HistogramData(points, _CUMULATIVE))

    def _numbers(self, points: Points) -> list[NumberDataPoint]:
        return [
            NumberDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=self._start_ns,
                time_unix_nano=self._now_ns,
                value=value,
            )
            for labels, value in points
            if value is not None
        ]
