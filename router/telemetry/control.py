"""Metrics of the control plane: settings that were put in force or refused, and where replicas are found."""

from collections.abc import Callable, Mapping, Sequence
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


class DiscoveryStatus(Protocol):
    """What metrics ask of one source that replicas are found by."""

    @property
    def source(self) -> str: ...

    @property
    def replicas(self) -> int: ...

    @property
    def fault(self) -> str: ...

    @property
    def faults(self) -> int: ...


def discovery_metrics(sources: Callable[[], Sequence[DiscoveryStatus]], build: Builder) -> list[Metric]:
    """What sources find, and whether they can."""
    statuses = sources()
    return [
        build.gauge(
            "homing_discovery_replicas",
            "Replicas that a source named last.",
            "{replica}",
            [({"source": status.source}, status.replicas) for status in statuses],
        ),
        build.gauge(
            "homing_discovery_failing",
            "1 while a source cannot find out, so that what it named last is in use.",
            "1",
            [({"source": status.source}, int(bool(status.fault))) for status in statuses],
        ),
        build.counter(
            "homing_discovery_faults",
            "Times that a source could not find out.",
            "{fault}",
            [({"source": status.source}, status.faults) for status in statuses],
        ),
    ]


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
