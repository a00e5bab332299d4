"""Metrics of KV beside the replicas: agents that are there, how pulls go, what prefetches were good for."""

from collections.abc import Mapping
from typing import Protocol

from opentelemetry.sdk.metrics.export import Metric

from router.base.clock import Clock
from router.base.ids import ReplicaId
from router.core.estimate.pulls import Breaker
from router.telemetry.counters import PullResult
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


class PullSource(Protocol):
    """What metrics ask of the books of pulls."""

    def breakers(self, now: float) -> Mapping[ReplicaId, Breaker]: ...


def pull_metrics(
    pulls: PullSource, results: Mapping[PullResult, int], clock: Clock, build: Builder
) -> list[Metric]:
    """How the router's pulls went, and from whom it pulls nothing for it."""
    return [
        build.counter(
            "homing_pulls",
            "Turns that were to pull KV from another replica or a pool, by how that went.",
            "{turn}",
            [({"result": result.value}, results.get(result, 0)) for result in PullResult],
        ),
        build.gauge(
            "homing_pull_breaker",
            "1 for the state of the breaker of a source of pulls, 0 for the others.",
            "1",
            [
                ({"source": source, "state": state.value}, int(state is now))
                for source, now in pulls.breakers(clock.now()).items()
                for state in Breaker
            ],
        ),
    ]


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
