"""A simulated replica's `/metrics`, with the names and labels of vLLM."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from router.simulator.model import EngineModel, Stats
from router.simulator.settings import ReplicaSettings

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# The bounds of vLLM's own histogram of the same name.
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip


class TtftHistogram:
    """Times to first token, in simulated seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(TTFT_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        at = next((at for at, bound in enumerate(TTFT_BUCKETS) if seconds <= bound), len(TTFT_BUCKETS))
        self._counts[at] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, TTFT_BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


class Snapshot(NamedTuple):
    """What one exposition shows."""

    settings: ReplicaSettings
    stats: Stats
    model: EngineModel
    ttft: TtftHistogram
    ended: Mapping[str, int]
    """Requests by finished reason."""
    start_time: float
    """Unix seconds."""


def exposition(shown: Snapshot) -> str:
    """The text format of Prometheus."""
    return "\n".join(_lines(shown)) + "\n"


def _lines(shown: Snapshot) -> Iterator[str]:
    settings, stats, counters = shown.settings, shown.stats, shown.model.counters
    labels = f'engine="0",model_name="{_escaped(settings.model)}"'

    def family(name: str, kind: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
        yield f"# HELP {name} As vLLM's metric of this name."
        yield f"# TYPE {name} {kind}"
        for extra, value in values:
            yield f"{name}{{{labels}{extra}}} {float(value)}"

    yield "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {shown.start_time!r}"
    yield "# HELP vllm:cache_config_info As vLLM's metric of this name."
    yield "# TYPE vllm:cache_config_info gauge"
    config = {
        "block_size": settings.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "engine": 0,
        "num_gpu_blocks": settings.kv_blocks,
    }
    pairs = ",".join(f'{name}="{value}"' for name, value in config.items())
    yield f"vllm:cache_config_info{{{pairs}}} 1.0"

    reasons = (("capacity", stats.waiting), ("deferred", stats.loading))
    gauges: tuple[tuple[str, Iterable[tuple[str, float]]], ...] = (
        ("num_requests_running", [("", stats.running)]),
        ("num_requests_waiting", [("", stats.waiting + stats.loading)]),
        ("num_requests_waiting_by_reason", [(f',reason="{reason}"', value) for reason, value in reasons]),
        ("kv_cache_usage_perc", [("", stats.kv_usage)]),
    )
    for name, values in gauges:
        yield from family(f"vllm:{name}", "gauge", values)

    sources = (
        ("local_compute", counters.computed_tokens),
        ("local_cache_hit", counters.device_tokens),
        ("external_kv_transfer", counters.host_tokens),
    )
    totals: tuple[tuple[str, Iterable[tuple[str, float]]], ...] = (
        ("prefix_cache_queries", [("", counters.queries)]),
        ("prefix_cache_hits", [("", counters.hits)]),
        ("external_prefix_cache_queries", [("", counters.host_queries)]),
        ("external_prefix_cache_hits", [("", counters.host_hits)]),
        ("prompt_tokens", [("", counters.prompt_tokens)]),
        ("prompt_tokens_cached", [("", counters.device_tokens + counters.host_tokens)]),
        ("prompt_tokens_by_source", [(f',source="{source}"', value) for source, value in sources]),
        ("generation_tokens", [("", counters.generated_tokens)]),
        ("num_preemptions", [("", counters.preemptions)]),
        (
            "request_success",
            [(f',finished_reason="{reason}"', count) for reason, count in shown.ended.items()],
        ),
    )
    for name, values in totals:
        yield from family(f"vllm:{name}_total", "counter", values)

    name = "vllm:time_to_first_token_seconds"
    yield from family(name, "histogram", ())
    yield from shown.ttft.lines(name, labels)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
