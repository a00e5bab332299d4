"""The connector's figures in vLLM's own `/metrics`, through its connector statistics.

A worker's and the scheduler's figures travel as plain mappings to the server's process, and become Prometheus
metrics `vllm:homing_…` there.
"""

from collections.abc import Mapping
from typing import Any

from router.connector import compat
from router.connector.figures import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    add_up,
    label_of,
    name_of,
    summary,
)


class HomingStats(compat.ConnectorStats):  # type: ignore[misc]  # without vLLM's stubs a base is Any
    """Figures since the last ones, as vLLM carries them."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> Any:
        return HomingStats(data=add_up(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return not self.data


class HomingMetrics(compat.PromMetrics):  # type: ignore[misc]  # without vLLM's stubs a base is Any
    """The metrics of all engines of a server."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: dict[str, Any] = {}
        self._label_values = per_engine_labelvalues
        for name, (about, label) in COUNTERS.items():
            self._metrics[name] = self._counter_cls(f"vllm:homing_{name}", about, _names(labelnames, label))
        for name, (about, bounds) in HISTOGRAMS.items():
            self._metrics[name] = self._histogram_cls(
                f"vllm:homing_{name}", about, labelnames=labelnames, buckets=bounds
            )
        for name, (about, label) in GAUGES.items():
            self._metrics[name] = self._gauge_cls(f"vllm:homing_{name}", about, _names(labelnames, label))

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        engine = self._label_values[engine_idx]
        for key, value in transfer_stats_data.items():
            name, label = name_of(key), label_of(key)
            metric = self._metrics.get(name)
            if metric is None:
                continue
            child = metric.labels(*engine, label) if label else metric.labels(*engine)
            if name in GAUGES:
                child.set(value)
            elif name in HISTOGRAMS:
                for one in value:
                    child.observe(one)
            else:
                child.inc(value)


def _names(labelnames: list[str], label: str | None) -> list[str]:
    return labelnames if label is None else [*labelnames, label]
