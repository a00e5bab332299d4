import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric
from support.statuses import status

from router.base.clock import ManualClock
from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.controlplane.discovery import SourceStatus
from router.controlplane.front import _own_metrics
from router.controlplane.kv_feed import FeedStatus
from router.core.breaks import Cause
from router.core.chain_watch import ChainWatch
from router.core.decide import Decision, Kind
from router.core.estimate.pulls import Breaker
from router.core.fleet import ReplicaStatus, Report
from router.core.observe import Ended, HealthChange, Outcome, Usage, WaitEnd
from router.core.outline import Part
from router.core.pairbook import PairBook
from router.core.plan import Plan, PullRules
from router.core.request import Turn
from router.core.shadow import Shadow
from router.core.strategies.ring import RingOnly
from router.telemetry.access_log import access_log_metrics
from router.telemetry.control import discovery_metrics, feed_metrics, reload_metrics
from router.telemetry.counters import Counters
from router.telemetry.kv import kv_metrics, pull_metrics
from router.telemetry.log_file import LogFile
from router.telemetry.metrics import Metrics
from router.telemetry.otlp import Envelope
from router.telemetry.pairs import pair_metrics
from router.telemetry.shadow import shadow_metrics
from router.telemetry.span_export import SpanExport, trace_metrics

A, B = ReplicaId("a"), ReplicaId('b "quoted"\\')
DOC = Path(__file__).parents[3] / "docs" / "metrics.md"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Fleet:
    def __init__(self, *statuses: ReplicaStatus) -> None:
        self.statuses = statuses

    def replicas(self, now: float) -> tuple[ReplicaStatus, ...]:
        assert now == 100.0
        return self.statuses


class Plane:
    """A data plane that has told clients of two errors."""

    held_bytes = 4096
    connections = frozenset({1, 2, 3})
    pools: ClassVar = {A: [1, 2], B: []}
    tasks = (1, 2, 3, 4)
    errors: ClassVar = {(ErrorKind.UNAUTHORIZED, 401): 2, (ErrorKind.BAD_REQUEST, 413): 1}


LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(?:,|$)')


def parse(text: str) -> tuple[Series, dict[str, str]]:
    """A strict reader of the text format: series by name and labels, and types by family.

    Written from the format's description, apart from the renderer.
    """
    assert text.endswith("\n")
    series: Series = {}
    types: dict[str, str] = {}
    family = ""
    helped = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            assert helped not in types
            continue
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family == helped
            types[family] = kind
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        name = match["name"]
        endings = ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
        assert name in {family + ending for ending in endings}
        labels = {}
        rest = match["labels"] or ""
        while rest:
            label = LABEL.match(rest)
            assert label is not None, rest
            assert label[1] not in labels
            labels[label[1]] = label[2].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
            rest = rest[label.end() :]
        key = (name, frozenset(labels.items()))
        assert key not in series, f"{key} twice"
        series[key] = float(match["value"])
    return series, types


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


@pytest.fixture
def counters(turn: Turn, decided: Callable[..., Decision], ended: Callable[..., Ended]) -> Counters:
    """Counters that have seen one of every fact."""
    counters = Counters()
    decision = decided("a", Kind.HOME, attempt=1, cached_tokens=100)
    counters.on_decision(turn, decision)
    counters.on_ended(ended(decision, usage=Usage(150, 9, 96), ttft_s=0.05, duration_s=1.5))
    counters.on_ended(ended(decided("a", Kind.NEW), Outcome.COMPLETED))
    counters.on_refused(turn, ErrorKind.OVERLOADED, "full", 1.0)
    counters.on_waited(turn, 0.75, WaitEnd.DISPATCHED)
    counters.on_health(HealthChange(A, "healthy", "down", "", 1.0))
    counters.on_restarted(A, 1.0)
    counters.on_moved(SessionKey("k"), A, B, 1.0)
    return counters


FEED = FeedStatus(A, True, "", 9, 1, 0, 0, 500)
FOUND = SourceStatus("dns", 3, "no answer", 5.0, 2)


class Reloads:
    """Settings came twice, the last ones with faults."""

    refused = True

    def tally(self) -> dict[str, int]:
        return {"applied": 1, "refused": 1}


def shadow() -> Shadow:
    made = Shadow(Plan(name="ring", strategy=RingOnly()))
    made.tally.kinds[Kind.HOME, Kind.NEW] = 1
    return made


class KvAgents:
    def faults(self) -> dict[ReplicaId, str]:
        return {A: "", B: "no answer"}


class Prefetches:
    started, hits, bytes, wasted_bytes = 4, 3, 1000, 200


class Breakers:
    def breakers(self, now: float) -> dict[ReplicaId, Breaker]:
        return {A: Breaker.CLOSED}


class Workers:
    restarts = 0

    def __len__(self) -> int:
        return 2


class PairReleases:
    released = {True: 1, False: 0}  # noqa: RUF012 - read only


@pytest.fixture
def metrics(counters: Counters) -> Metrics:
    fleet = Fleet(status(A, report=Report(1.0, 5.0, 6.0, 0.75, 800), capacity_tokens=900), status(B))
    walls = iter(range(1_000_000_000, 100_000_000_000, 1_000_000_000))
    chains = ChainWatch()
    chains.turns = 5
    chains.breaks[Part.SYSTEM, Cause.DIGITS] = 2
    chains.lost_tokens[Part.SYSTEM, Cause.DIGITS] = 7000
    log = LogFile("/missing/access.log", most_waiting=0)
    log.write(b"one\n")
    log.write(b"two\n")
    return Metrics(
        counters,
        fleet,
        Plane(),
        ManualClock(100.0),
        chains=chains,
        sections=[
            partial(reload_metrics, Reloads()),
            partial(access_log_metrics, log),
            partial(discovery_metrics, lambda: [FOUND]),
            partial(shadow_metrics, shadow()),
            partial(kv_metrics, KvAgents(), Prefetches()),
            partial(pull_metrics, Breakers(), counters.pulls, ManualClock(100.0)),
            partial(feed_metrics, lambda: [FEED]),
            partial(pair_metrics, PairBook(PullRules()), PairReleases()),
            partial(trace_metrics, SpanExport("http://c:1/", Envelope([], "homing", "1"))),
        ],
        wall_ns=lambda: next(walls),
    )


def test_the_text_reads_back_as_what_was_counted(metrics: Metrics) -> None:
    series, types = parse(metrics.text())
    assert value(series, "homing_decisions_total", replica="a", kind="home", policy="home") == 1
    assert value(series, "homing_retries_total", replica="a") == 1
    assert value(series, "homing_ended_total", replica="a", outcome="completed") == 2
    assert value(series, "homing_refused_total", kind="overloaded") == 1
    assert value(series, "homing_session_moves_total") == 1
    assert value(series, "homing_access_log_lines_total", result="lost") == 1
    assert value(series, "homing_access_log_lines_total", result="written") == 0
    assert value(series, "homing_chain_turns_total") == 5
    assert value(series, "homing_chain_breaks_total", part="system", cause="digits") == 2
    assert value(series, "homing_chain_lost_tokens_total", part="system", cause="digits") == 7000
    assert value(series, "homing_health_changes_total", replica="a", state="down") == 1
    assert value(series, "homing_restarts_total", replica="a") == 1
    assert value(series, "homing_prompt_tokens_total", replica="a") == 150
    assert value(series, "homing_cached_tokens_total", replica="a") == 96
    assert value(series, "homing_predicted_cached_tokens_total", replica="a") == 100
    assert value(series, "homing_completion_tokens_total", replica="a") == 9
    assert value(series, "homing_unreported_total", replica="a") == 1
    assert value(series, "homing_ttft_seconds_count", kind="home") == 1
    assert value(series, "homing_ttft_seconds_bucket", kind="home", le="0.05") == 1
    assert value(series, "homing_ttft_seconds_bucket", kind="home", le="0.025") == 0
    assert value(series, "homing_turn_duration_seconds_sum") == 2.5
    assert value(series, "homing_queue_wait_seconds_sum", end="dispatched") == 0.75
    assert value(series, "homing_queue_wait_seconds_count", end="expired") is None
    assert value(series, "homing_prediction_error_tokens_bucket", le="16.0") == 1
    assert value(series, "homing_prediction_error_tokens_bucket", le="0.0") == 0
    assert types["homing_ttft_seconds"] == "histogram"
    assert types["homing_decisions_total"] == "counter"


def test_the_data_plane_shows_what_it_holds_and_what_it_told_clients(metrics: Metrics) -> None:
    series, types = parse(metrics.text())
    assert value(series, "homing_errors_total", kind="unauthorized", status="401") == 2
    assert value(series, "homing_errors_total", kind="bad_request", status="413") == 1
    assert value(series, "homing_held_bytes") == 4096
    assert value(series, "homing_client_connections") == 3
    assert value(series, "homing_tasks") == 4
    assert value(series, "homing_replica_connections", replica="a") == 2
    assert value(series, "homing_replica_connections", replica=B) == 0
    assert types["homing_errors_total"] == "counter"


def test_the_state_of_every_replica_is_a_gauge(metrics: Metrics) -> None:
    series, types = parse(metrics.text())
    expected = {
        "in_flight": 3,
        "pending_tokens": 40,
        "working_set_tokens": 500,
        "sessions": 2,
        "index_segments": 60,
        "recent_failures": 0.25,
        "trust_ratio": 0.875,
        "held": 5,
        "free_tokens": 300_000,
        "horizon_tokens": 8192,
        "capacity_tokens": 900,
        "running": 5,
        "waiting": 6,
        "kv_usage_ratio": 0.75,
        "report_age_seconds": 0.5,
        "draining": 0,
    }
    for name, figure in expected.items():
        assert value(series, f"homing_replica_{name}", replica="a") == figure
        assert types[f"homing_replica_{name}"] == "gauge"
    health = {
        state: value(series, "homing_replica_health", replica="a", state=state)
        for state in ("starting", "healthy", "probation", "down")
    }
    assert health == {"starting": 0, "healthy": 1, "probation": 0, "down": 0}


def test_what_a_replica_did_not_report_is_absent_and_not_zero(metrics: Metrics) -> None:
    series, _ = parse(metrics.text())
    assert value(series, "homing_replica_in_flight", replica=B) == 3
    for name in ("running", "waiting", "kv_usage_ratio", "report_age_seconds", "capacity_tokens"):
        assert value(series, f"homing_replica_{name}", replica=B) is None


def test_series_of_a_replica_end_when_it_leaves(counters: Counters) -> None:
    metrics = Metrics(counters, Fleet(status(B)), Plane(), ManualClock(100.0))
    assert 'replica="a"' not in metrics.text()


def test_a_router_that_has_done_nothing_has_metrics_too() -> None:
    series, _ = parse(Metrics(Counters(), Fleet(), Plane(), ManualClock(100.0)).text())
    assert value(series, "homing_session_moves_total") == 0
    assert value(series, "homing_turn_duration_seconds_count") == 0


def test_points_carry_the_routers_start_and_the_time_of_collection(metrics: Metrics) -> None:
    for metric in metrics.collect():
        for point in metric.data.data_points:
            assert (point.start_time_unix_nano, point.time_unix_nano) == (1_000_000_000, 2_000_000_000)


def test_histogram_counts_agree_with_their_buckets(metrics: Metrics) -> None:
    points = [p for m in metrics.collect() for p in m.data.data_points if isinstance(p, HistogramDataPoint)]
    assert points
    for point in points:
        assert point.count == sum(point.bucket_counts)
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1


def written_name(metric: Metric) -> str:
    return f"{metric.name}_total" if type(metric.data).__name__ == "Sum" else metric.name


def test_the_document_describes_every_metric_and_no_other(metrics: Metrics) -> None:
    rows = re.findall(r"^\| `(homing_\w+)` \| (\w+) \|([^|]*)\|", DOC.read_text(), re.MULTILINE)
    documented = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    built = {}
    kinds = {"Sum": "counter", "Gauge": "gauge", "Histogram": "histogram"}
    for metric in metrics.collect():
        labels = {label for point in metric.data.data_points for label in point.attributes or {}}
        built[written_name(metric)] = (kinds[type(metric.data).__name__], frozenset(labels))
    # What the parent of several workers puts before theirs.
    built |= {
        name: (kind, frozenset())
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", _own_metrics(Workers(), 1), re.MULTILINE)
    }
    assert documented == built
    assert len(rows) == len(documented)


def test_the_document_queries_only_metrics_that_exist(metrics: Metrics) -> None:
    queried = set(re.findall(r"homing_\w+", DOC.read_text().partition("```promql")[2]))
    exist = {name for name, _ in parse(metrics.text())[0]}
    assert queried <= exist


def test_label_values_never_come_from_clients(counters: Counters) -> None:
    text = Metrics(counters, Fleet(status(A)), Plane(), ManualClock(100.0)).text()
    labels = set(re.findall(r'(\w+)="', text))
    assert labels == {
        "replica",
        "kind",
        "end",
        "policy",
        "outcome",
        "state",
        "le",
        "version",
        "build",
        "status",
    }
