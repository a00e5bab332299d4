"""An agent's figures as its scraper sees them: names, help texts, labels. Counts nothing itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from router.kv.breaker import BreakerState
from router.kv.exposition import Figure
from router.kv.sources import Source
from router.kv.store import Zone

PULL_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def agent_figures(
    stats: Mapping[str, float],
    sources: Sequence[Source],
    now: float,
    *,
    hints_refused: Mapping[str, int],
    connections_refused: Mapping[str, int],
    evicted: Mapping[Zone, int],
) -> Iterator[Figure]:
    """All but the histogram. `stats` is what the engine is told, too."""
    for name, value in stats.items():
        yield Figure.of(name, _HELP[name], value)
    yield Figure.by(
        "source_up",
        "Whether a source is connected.",
        "source",
        [(s.name, s.is_connected) for s in sources],
    )
    yield Figure(
        "source_state",
        "1 for the state that a source's breaker is in.",
        tuple(
            ((("source", one.name), ("state", state.value)), float(one.breaker.state(now) is state))
            for one in sources
            for state in BreakerState
        ),
    )
    yield Figure(
        "source_pulls_failed_total",
        "Pulls from a source that failed, by reason.",
        tuple(
            ((("source", one.name), ("reason", reason)), float(count))
            for one in sources
            for reason, count in one.failed.items()
        ),
    )
    yield Figure.by(
        "source_bytes_per_second", "Speed of a source's latest pulls.", "source",
        [(s.name, s.bytes_per_s) for s in sources],
    )  # fmt: skip
    yield Figure.by(
        "source_mismatch", "Whether a source's namespace differs.", "source",
        [(s.name, bool(s.mismatch)) for s in sources],
    )  # fmt: skip
    yield Figure.by(
        "hints_refused_by_reason_total",
        "Hints that were not followed.",
        "reason",
        hints_refused.items(),
    )
    yield Figure.by(
        "connections_refused_total", "Connections turned away.", "reason", connections_refused.items()
    )
    yield Figure.by(
        "evicted_total",
        "Blocks given up for room.",
        "zone",
        [(zone, count) for zone, count in evicted.items()],
    )


_HELP: Final = {
    "queries_total": "Prefixes that engines asked for.",
    "query_blocks_total": "Blocks that engines asked for.",
    "hit_blocks_total": "Blocks of those that could be had.",
    "pulled_bytes_total": "Bytes from sources.",
    "served_bytes_total": "Bytes to peers.",
    "pushed_bytes_total": "Bytes to the pool.",
    "pulls_total": "Loads and prefetches.",
    "pulls_failed_total": "Loads and prefetches that ended before all was there.",
    "prefetched_blocks_total": "Blocks that came before they were asked for.",
    "prefetch_hit_blocks_total": "Of those, blocks that an engine then loaded.",
    "prefetch_wasted_bytes_total": "Bytes of those that were given up before an engine loaded them.",
    "loads_short_total": "Loads of which the engine had to compute a rest.",
    "damaged_total": "Blocks whose bytes were not what they should be.",
    "quarantined_total": "Slots that are not used any more, since their bytes changed.",
    "conflicts_total": "Blocks that were offered again with other bytes.",
    "dropped_total": "Blocks of the engine that were not stored or not pushed.",
    "evicted_blocks_total": "Blocks given up for room.",
    "hints_refused_total": "Hints that were not followed.",
    "push_queue_blocks": "Blocks that wait to be pushed.",
    "breaker_open": "Sources that nothing is pulled from at the moment.",
    "pool_pressure": "1 while nothing is pulled from the pool.",
    "slots": "Blocks that the arena has room for.",
    "slots_free": "Slots without a block.",
    "blocks": "Blocks held.",
}
