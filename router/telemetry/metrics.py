"""The router's metrics, built when someone collects them: counts of turns and the state of replicas.

They are OpenTelemetry metric data, so that one set of figures serves every way out. `docs/metrics.md`
describes each, and a test holds the two together.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Protocol

from opentelemetry.sdk.metrics.export import (
    Metric,
)

import router
from router.base.build import kind_of_build
from router.base.clock import Clock
from router.base.errors import ErrorKind
from router.base.ids import ReplicaId
from router.core.breaks import Cause
from router.core.chain_watch import ChainWatch
from router.core.fleet import ReplicaStatus
from router.core.health import State
from router.core.outline import Part
from router.telemetry.counters import Counters, ReplicaCounts
from router.telemetry.points import Builder, Points
from router.telemetry.prometheus import render

Section = Callable[[Builder], Iterable[Metric]]
"""Makes the metrics of one part of the router."""


class StatusSource(Protocol):
    """What metrics ask of the engine."""

    def replicas(self, now: float) -> tuple[ReplicaStatus, ...]: ...


class PlaneSource(Protocol):
    """What metrics ask of the data plane."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def connections(self) -> Sized:
        """Those of clients."""
        ...

    @property
    def tasks(self) -> Sized: ...

    @property
    def pools(self) -> Mapping[ReplicaId, Sized]:
        """The connections to each replica."""
        ...

    @property
    def errors(self) -> Mapping[tuple[ErrorKind, int], int]:
        """Errors of the router's own that clients were told of, by kind and status."""
        ...


class Metrics:
    """Reads the counters, the fleet and the data plane, and `sections` of those that keep their own count.

    `wall_ns` is Unix nanoseconds.
    """

    def __init__(
        self,
        counters: Counters,
        fleet: StatusSource,
        plane: PlaneSource,
        clock: Clock,
        *,
        chains: ChainWatch | None = None,
        sections: Iterable[Section] = (),
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._counters = counters
        self._fleet = fleet
        self._plane = plane
        self._clock = clock
        self._chains = chains
        self._sections = tuple(sections)
        self._wall_ns = wall_ns
        self._start_ns = wall_ns()

    def text(self) -> str:
        """All metrics as Prometheus text."""
        return render(self.collect())

    def collect(self) -> list[Metric]:
        """All metrics as they stand. Series of replicas that left the fleet end here."""
        replicas = self._fleet.replicas(self._clock.now())
        self._counters.retain(status.id for status in replicas)
        build = Builder(self._start_ns, self._wall_ns())
        return [
            build.gauge(
                "homing_info",
                "The router's version and whether its hot path is compiled, as labels.",
                "1",
                [({"version": router.__version__, "build": kind_of_build()}, 1)],
            ),
            build.gauge(
                "homing_start_time_seconds",
                "Unix time at which the router started.",
                "s",
                [({}, self._start_ns / 1e9)],
            ),
            *_plane(build, self._plane, replicas),
            *_turns(build, self._counters),
            *(_chains(build, self._chains) if self._chains is not None else ()),
            *_replica_counts(build, self._counters.replicas),
            *_replica_state(build, replicas),
            *(metric for section in self._sections for metric in section(build)),
        ]


def _plane(build: Builder, plane: PlaneSource, replicas: tuple[ReplicaStatus, ...]) -> list[Metric]:
    return [
        build.counter(
            "homing_errors",
            "Requests that got an error of the router's own, by kind and status.",
            "{request}",
            [
                ({"kind": kind.value, "status": str(status)}, count)
                for (kind, status), count in plane.errors.items()
            ],
        ),
        build.gauge(
            "homing_held_bytes", "Bytes of bodies that the router holds.", "By", [({}, plane.held_bytes)]
        ),
        build.gauge(
            "homing_client_connections",
            "Open connections of clients.",
            "{connection}",
            [({}, len(plane.connections))],
        ),
        build.gauge("homing_tasks", "Tasks of the data plane.", "{task}", [({}, len(plane.tasks))]),
        build.gauge(
            "homing_replica_connections",
            "Open connections to a replica, idle ones included.",
            "{connection}",
            [
                ({"replica": status.id}, len(plane.pools[status.id]))
                for status in replicas
                if status.id in plane.pools
            ],
        ),
    ]


def _turns(build: Builder, counters: Counters) -> list[Metric]:
    return [
        build.counter(
            "homing_refused",
            "Turns that got no replica, by kind of refusal.",
            "{turn}",
            [({"kind": kind.value}, count) for kind, count in counters.refused.items()],
        ),
        build.counter(
            "homing_session_moves", "Sessions that changed their home.", "{move}", [({}, counters.moves)]
        ),
        build.histogram(
            "homing_ttft_seconds",
            "First dispatch to first answer byte of streamed turns, by kind of decision.",
            "s",
            [({"kind": kind.value}, spread) for kind, spread in counters.ttft.items() if spread.count],
        ),
        build.histogram(
            "homing_queue_wait_seconds",
            "Time that turns were held in the router, by how it ended.",
            "s",
            [({"end": end.value}, spread) for end, spread in counters.waits.items() if spread.count],
        ),
        build.histogram(
            "homing_overhead_seconds",
            "Time from a whole request to its sending on to a replica, less the time that it was held.",
            "s",
            [({}, counters.overhead)],
        ),
        build.histogram(
            "homing_turn_duration_seconds",
            "Dispatch to end of turns that completed.",
            "s",
            [({}, counters.duration)],
        ),
        build.histogram(
            "homing_ttft_error_ratio",
            "Distance between expected and seen time to a first token, as a share of the latter.",
            "1",
            [({}, counters.ttft_error)],
        ),
        build.histogram(
            "homing_prediction_error_tokens",
            "Distance between predicted and delivered cached tokens of a turn.",
            "{token}",
            [({}, counters.prediction_error)],
        ),
    ]


def _chains(build: Builder, chains: ChainWatch) -> list[Metric]:
    def each(counts: Mapping[tuple[Part, Cause], int]) -> Points:
        return [
            ({"part": part.value, "cause": cause.value}, count) for (part, cause), count in counts.items()
        ]

    return [
        build.counter(
            "homing_chain_turns",
            "Turns whose session had one before them to go on from.",
            "{turn}",
            [({}, chains.turns)],
        ),
        build.counter(
            "homing_chain_breaks",
            "Those that did not go on from it, by the part of the prompt that differs and the cause.",
            "{turn}",
            each(chains.breaks),
        ),
        build.counter(
            "homing_chain_lost_tokens",
            "Prompt tokens that would have been cached, had these gone on, estimated.",
            "{token}",
            each(chains.lost_tokens),
        ),
    ]


def _replica_counts(build: Builder, replicas: Mapping[ReplicaId, ReplicaCounts]) -> list[Metric]:
    def each(read: Callable[[ReplicaCounts], int]) -> Points:
        return [({"replica": replica}, read(counts)) for replica, counts in replicas.items()]

    return [
        build.counter(
            "homing_decisions",
            "Turns given to a replica, by replica, kind of decision and policy.",
            "{turn}",
            [
                ({"replica": replica, "kind": kind.value, "policy": policy}, count)
                for replica, counts in replicas.items()
                for policy, kinds in counts.decisions.items()
                for kind, count in kinds.items()
            ],
        ),
        build.counter(
            "homing_ended",
            "Turns that are over, by replica and outcome.",
            "{turn}",
            [
                ({"replica": replica, "outcome": outcome.value}, count)
                for replica, counts in replicas.items()
                for outcome, count in counts.outcomes.items()
            ],
        ),
        build.counter(
            "homing_retries",
            "Decisions for turns that another replica had failed.",
            "{turn}",
            each(lambda counts: counts.retries),
        ),
        build.counter(
            "homing_prompt_tokens",
            "Prompt tokens of turns with reported prompt and cached tokens.",
            "{token}",
            each(lambda counts: counts.prompt_tokens),
        ),
        build.counter(
            "homing_cached_tokens",
            "Prompt tokens that the replica reported as cached, of the same turns.",
            "{token}",
            each(lambda counts: counts.cached_tokens),
        ),
        build.counter(
            "homing_predicted_cached_tokens",
            "Prompt tokens that the router expected to be cached, of the same turns.",
            "{token}",
            each(lambda counts: counts.predicted_tokens),
        ),
        build.counter(
            "homing_completion_tokens",
            "Completion tokens that replicas reported.",
            "{token}",
            each(lambda counts: counts.completion_tokens),
        ),
        build.counter(
            "homing_unreported",
            "Completed turns for which the replica did not report both prompt and cached tokens.",
            "{turn}",
            each(lambda counts: counts.unreported),
        ),
        build.counter(
            "homing_health_changes",
            "Changes of a replica's health, by the state entered.",
            "{change}",
            [
                ({"replica": replica, "state": state}, count)
                for replica, counts in replicas.items()
                for state, count in counts.health_changes.items()
            ],
        ),
        build.counter(
            "homing_restarts",
            "Restarts of a replica that were noticed.",
            "{restart}",
            each(lambda counts: counts.restarts),
        ),
    ]


def _replica_state(build: Builder, replicas: tuple[ReplicaStatus, ...]) -> list[Metric]:
    def gauge(
        name: str, description: str, unit: str, read: Callable[[ReplicaStatus], float | None]
    ) -> Metric:
        points = [({"replica": status.id}, read(status)) for status in replicas]
        return build.gauge(f"homing_replica_{name}", description, unit, points)

    return [
        build.gauge(
            "homing_replica_health",
            "1 for the state that a replica is in, 0 for the others.",
            "1",
            [
                ({"replica": status.id, "state": state.value}, int(status.health == state))
                for status in replicas
                for state in State
            ],
        ),
        gauge("draining", "1 while a replica is given no further turns.", "1", lambda r: int(r.draining)),
        gauge("in_flight", "Turns of this router on a replica.", "{turn}", lambda r: r.in_flight),
        gauge(
            "pending_tokens",
            "Uncached prompt tokens sent to a replica and not yet prefilled.",
            "{token}",
            lambda r: r.pending_tokens,
        ),
        gauge("held", "Turns that wait in the router to go to a replica.", "{turn}", lambda r: r.held),
        gauge(
            "free_tokens",
            "Tokens of a replica's KV that are neither in use nor spoken for; absent where unknown.",
            "{token}",
            lambda r: r.free_tokens,
        ),
        gauge(
            "horizon_tokens",
            "Tokens to prefill that may be on their way to a replica before turns wait in the router.",
            "{token}",
            lambda r: r.horizon_tokens,
        ),
        gauge("sessions", "Living sessions at home on a replica.", "{session}", lambda r: r.sessions),
        gauge(
            "working_set_tokens",
            "Tokens of the living sessions at home on a replica.",
            "{token}",
            lambda r: r.working_set_tokens,
        ),
        gauge(
            "capacity_tokens",
            "Tokens that fit a replica's KV cache; absent where unknown.",
            "{token}",
            lambda r: r.capacity_tokens,
        ),
        gauge(
            "index_segments",
            "Prompt segments believed to lie on a replica.",
            "{segment}",
            lambda r: r.index_segments,
        ),
        gauge(
            "recent_failures",
            "Failures of a replica lately, halved every ten seconds.",
            "{failure}",
            lambda r: r.recent_failures,
        ),
        gauge(
            "trust_ratio",
            "Cached tokens that a replica delivers for each one that it is believed to hold.",
            "1",
            lambda r: r.trust,
        ),
        gauge(
            "running",
            "Requests that a replica reports as running; absent where unknown.",
            "{request}",
            lambda r: r.report.running if r.report is not None else None,
        ),
        gauge(
            "waiting",
            "Requests that a replica reports as waiting; absent where unknown.",
            "{request}",
            lambda r: r.report.waiting if r.report is not None else None,
        ),
        gauge(
            "kv_usage_ratio",
            "Share of its KV blocks that a replica reports as in use; absent where unknown.",
            "1",
            lambda r: r.report.kv_usage if r.report is not None else None,
        ),
        gauge(
            "report_age_seconds",
            "Time since a replica's metrics were last read; absent before the first time.",
            "s",
            lambda r: r.report_age_s,
        ),
    ]
