"""Metrics of the control plane: settings that were put in force, sources of replicas, KV events."""

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


class FeedStatus(Protocol):
    """What metrics ask of one replica's KV events."""

    @property
    def replica(self) -> str: ...

    @property
    def live(self) -> bool: ...

    @property
    def batches(self) -> int: ...

    @property
    def gaps(self) -> int: ...

    @property
    def losses(self) -> int: ...

    @property
    def blocks(self) -> int: ...


def feed_metrics(feeds: Callable[[], Sequence[FeedStatus]], build: Builder) -> list[Metric]:
    """How well KV events are followed."""
    statuses = feeds()

    def each(read: Callable[[FeedStatus], int]) -> list[tuple[Mapping[str, str], float | None]]:
        return [({"replica": status.replica}, read(status)) for status in statuses]

    return [
        build.gauge(
            "homing_kv_feed_live",
            "1 while a replica's KV events are followed, 0 while bookkeeping has to do.",
            "1",
            each(lambda status: int(status.live)),
        ),
        build.gauge(
            "homing_kv_feed_blocks",
            "Blocks that a replica's KV events say are there.",
            "{block}",
            each(lambda status: status.blocks),
        ),
        build.counter(
            "homing_kv_feed_batches",
            "Batches of a replica's KV events that were taken in.",
            "{batch}",
            each(lambda status: status.batches),
        ),
        build.counter(
            "homing_kv_feed_gaps",
            "Batches of a replica's KV events that were missing and asked for again.",
            "{batch}",
            each(lambda status: status.gaps),
        ),
        build.counter(
            "homing_kv_feed_losses",
            "Times that what a replica's KV events had said was let go.",
            "{loss}",
            each(lambda status: status.losses),
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
