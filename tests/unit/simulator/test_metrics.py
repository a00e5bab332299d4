"""The exposition: vLLM's names and labels, and figures that are the model's."""

from router.simulator.metrics import Snapshot, TtftHistogram, exposition
from router.simulator.model import EngineModel, Job
from router.simulator.settings import ReplicaSettings


def test_names_labels_and_figures() -> None:
    settings = ReplicaSettings(model='m"1', kv_blocks=100, prefill_tps=1000.0)
    model = EngineModel(settings)
    hashes = list(range(100))
    model.submit(Job("a", 160, 1, hashes), 0.0)
    model.advance(5.0)
    model.submit(Job("b", 320, 50, hashes), 5.0)
    model.advance(5.2)
    ttft = TtftHistogram()
    ttft.observe(0.3)
    ended = {"stop": 1, "abort": 2}
    text = exposition(Snapshot(settings, model.stats(5.2), model, ttft, ended, 1790000000.25))
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = 'engine="0",model_name="m\\"1"'

    def value(name: str, extra: str = "") -> float:
        return float(values[f"{name}{{{labels}{extra}}}"])

    assert float(values["process_start_time_seconds"]) == 1790000000.25
    config = next(name for name in values if name.startswith("vllm:cache_config_info{"))
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="100"' in config
    assert value("vllm:num_requests_running") == 1
    assert value("vllm:num_requests_waiting") == 0
    assert 0.2 <= value("vllm:kv_cache_usage_perc") <= 0.22
    assert value("vllm:prefix_cache_queries_total") == 480
    assert value("vllm:prefix_cache_hits_total") == 160
    assert value("vllm:prompt_tokens_by_source_total", ',source="local_cache_hit"') == 160
    assert value("vllm:prompt_tokens_by_source_total", ',source="local_compute"') == 320
    assert value("vllm:request_success_total", ',finished_reason="abort"') == 2
    assert value("vllm:time_to_first_token_seconds_bucket", ',le="0.25"') == 0
    assert value("vllm:time_to_first_token_seconds_bucket", ',le="0.5"') == 1
    assert value("vllm:time_to_first_token_seconds_bucket", ',le="+Inf"') == 1
    assert value("vllm:time_to_first_token_seconds_sum") == 0.3
    assert text.endswith("\n")


def test_a_time_beyond_all_bounds_is_counted() -> None:
    ttft = TtftHistogram()
    ttft.observe(1e6)
    lines = list(ttft.lines("x", 'a="b"'))
    assert lines[-4:] == [
        'x_bucket{a="b",le="2560.0"} 0.0',
        'x_bucket{a="b",le="+Inf"} 1.0',
        'x_count{a="b"} 1.0',
        'x_sum{a="b"} 1000000.0',
    ]
