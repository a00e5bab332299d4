"""Metrics of KV beside the replicas."""

from router.base.ids import ReplicaId
from router.telemetry.kv import kv_metrics
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
