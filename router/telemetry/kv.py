"""Metrics of KV beside the replicas: agents that are there, and what prefetches were good for."""

from collections.abc import Mapping
from typing import Protocol

from opentelemetry.sdk.metrics.export import Metric

from router.base.ids import ReplicaId
from router.telemetry.points import Builder


class AgentSource(Protocol):
    """What metrics ask of whoever listens to KV agents."""

    def faults(self) -> Mapping[ReplicaId, str]:
        """Every agent and gateway, and why it is not there; "" for those that are."""
        ...


class PrefetchSource(Protocol):
    """What metrics ask of whoever prefetches."""

    @property
    def started(self) -> int: ...

    @property
    def hits(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def wasted_bytes(self) -> int: ...


def kv_metrics(agents: AgentSource, prefetches: PrefetchSource, build: Builder) -> list[Metric]:
    """KV agents, gateways and prefetches."""
    return [
        build.gauge(
            "homing_kv_agent_up",
            "1 while the KV agent of a replica, or a KV gateway, answers.",
            "1",
            [({"agent": name}, int(not fault)) for name, fault in agents.faults().items()],
        ),
        build.counter(
            "homing_kv_prefetches",
            "Sessions whose KV was to be brought where their next turn goes.",
            "{prefetch}",
            [({}, prefetches.started)],
        ),
        build.counter(
            "homing_kv_prefetch_hits",
            "Next turns that went where KV of theirs had been brought, or was on its way.",
            "{turn}",
            [({}, prefetches.hits)],
        ),
        build.counter(
            "homing_kv_prefetch_bytes", "KV that prefetches brought.", "By", [({}, prefetches.bytes)]
        ),
        build.counter(
            "homing_kv_prefetch_wasted_bytes",
            "KV that prefetches brought and no turn used.",
            "By",
            [({}, prefetches.wasted_bytes)],
        ),
    ]
