"""Metrics of KV beside the replicas."""

from router.base.clock import ManualClock
from router.base.ids import ReplicaId
from router.core.estimate.pulls import Breaker
from router.telemetry.counters import PullResult
from router.telemetry.kv import kv_metrics, pull_metrics
from router.telemetry.points import Builder
from router.telemetry.prometheus import render


class Agents:
    def faults(self) -> dict[ReplicaId, str]:
        return {ReplicaId("a"): "", ReplicaId("pool"): "no answer in 3 s"}


class Prefetches:
    started, hits, bytes, wasted_bytes = 4, 3, 1000, 200


def test_agents_and_prefetches_show() -> None:
    text = render(kv_metrics(Agents(), Prefetches(), Builder(1, 2)))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'homing_kv_agent_up{agent="a"} 1',
        'homing_kv_agent_up{agent="pool"} 0',
        "homing_kv_prefetches_total 4",
        "homing_kv_prefetch_hits_total 3",
        "homing_kv_prefetch_bytes_total 1000",
        "homing_kv_prefetch_wasted_bytes_total 200",
    ]


class Pulls:
    def breakers(self, now: float) -> dict[ReplicaId, Breaker]:
        assert now == 7.0
        return {ReplicaId("a"): Breaker.OPEN}


def test_pulls_and_breakers_show() -> None:
    results = {PullResult.CAME: 5, PullResult.FELL_BACK: 1}
    text = render(pull_metrics(Pulls(), results, ManualClock(7.0), Builder(1, 2)))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'homing_pulls_total{result="came"} 5',
        'homing_pulls_total{result="fell_back"} 1',
        'homing_pulls_total{result="unreported"} 0',
        'homing_pull_breaker{source="a",state="closed"} 0',
        'homing_pull_breaker{source="a",state="open"} 1',
        'homing_pull_breaker{source="a",state="returning"} 0',
    ]
