"""The connector's figures become Prometheus metrics of each engine."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.connector.adapter import HomingConnector
from router.connector.metrics import HomingStats


def test_figures_are_shown_for_each_engine_with_their_labels() -> None:
    registry = CollectorRegistry()

    def of(kind: type) -> object:
        return lambda *args, **kwargs: kind(*args, **kwargs, registry=registry)

    metrics = HomingConnector.build_prom_metrics(
        SimpleNamespace(kv_transfer_config=None),
        {Counter: of(Counter), Gauge: of(Gauge), Histogram: of(Histogram)},
        ["model_name", "engine"],
        {0: ["tiny", "0"], 1: ["tiny", "1"]},
    )
    metrics.observe(
        {"asks": 2, "offers:absent": 1, "agent:blocks": 7, "load_seconds": [0.2, 0.3], "new": 1}, 1
    )
    metrics.observe({"asks": 1, "agent:blocks": 5, "agent_connected": 1.0}, 1)
    text = generate_latest(registry).decode()
    for line in (
        'vllm:homing_asks_total{engine="1",model_name="tiny"} 3.0',
        'vllm:homing_offers_total{engine="1",model_name="tiny",outcome="absent"} 1.0',
        'vllm:homing_agent{engine="1",figure="blocks",model_name="tiny"} 5.0',
        'vllm:homing_agent_connected{engine="1",model_name="tiny"} 1.0',
        'vllm:homing_load_seconds_count{engine="1",model_name="tiny"} 2.0',
    ):
        assert line in text.splitlines(), text


def test_statistics_of_several_workers_add_up_and_are_emptied() -> None:
    one = HomingConnector.build_kv_connector_stats({"asks": 1})
    both = one.aggregate(HomingStats(data={"asks": 2, "agent:blocks": 4}))
    assert both.to_dict() == {"asks": 3, "agent:blocks": 4}
    assert both.reduce() == {"asks": 3}
    assert not both.is_empty()
    both.reset()
    assert both.is_empty()
    assert HomingConnector.build_kv_connector_stats().is_empty()
