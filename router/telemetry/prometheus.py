"""Writes OpenTelemetry metric data as Prometheus text, format 0.0.4.

Only what `metrics` builds: cumulative sums, gauges and histograms with explicit bounds. Names are written
as they are, with the endings that the format wants.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Metric, Sum

_LABEL_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def render(metrics: Iterable[Metric]) -> str:
    """One block for each metric. Raises `TypeError` for a kind of data that `metrics` does not build."""
    return "".join(line for metric in metrics for line in _block(metric))


def _block(metric: Metric) -> Iterator[str]:
    data = metric.data
    match data:
        case Sum(is_monotonic=True):
            name, kind = f"{metric.name}_total", "counter"
        case Gauge():
            name, kind = metric.name, "gauge"
        case Histogram():
            name, kind = metric.name, "histogram"
        case _:
            raise TypeError(f"{metric.name}: {type(data).__name__} cannot be written as Prometheus text")
    yield f"# HELP {name} {(metric.description or '').translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {name} {kind}\n"
    if isinstance(data, Histogram):
        for spread in data.data_points:
            labels = _labels(spread.attributes or {})
            below = 0
            for bound, count in zip((*spread.explicit_bounds, math.inf), spread.bucket_counts, strict=True):
                below += count
                yield f"{name}_bucket{_braces([*labels, _label('le', _number(bound))])} {below}\n"
            yield f"{name}_sum{_braces(labels)} {_number(spread.sum)}\n"
            yield f"{name}_count{_braces(labels)} {spread.count}\n"
    else:
        for point in data.data_points:
            yield f"{name}{_braces(_labels(point.attributes or {}))} {_number(point.value)}\n"


def _labels(attributes: Mapping[str, object]) -> list[str]:
    return [_label(key, str(value)) for key, value in attributes.items()]


def _label(key: str, value: str) -> str:
    return f'{key}="{value.translate(_LABEL_ESCAPES)}"'


def _braces(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
