"""Metrics of the control plane: settings that were put in force, and those that were not."""

from collections.abc import Mapping
from typing import Protocol

from opentelemetry.sdk.metrics.export import Metric

from router.telemetry.points import Builder


class ReloadSource(Protocol):
    """What metrics ask of whoever reloads settings."""

    def tally(self) -> Mapping[str, int]:
        """Attempts by outcome."""
        ...

    @property
    def refused(self) -> bool:
        """Whether the latest attempt was refused."""
        ...


def reload_metrics(source: ReloadSource, build: Builder) -> list[Metric]:
    """Attempts to put settings in force."""
    return [
        build.counter(
            "homing_reloads",
            "Attempts to put settings in force, by outcome.",
            "{attempt}",
            [({"outcome": outcome}, count) for outcome, count in source.tally().items()],
        ),
        build.gauge(
            "homing_reload_refused",
            "1 while the latest settings that came were refused, so that older ones are in force.",
            "1",
            [({}, int(source.refused))],
        ),
    ]
