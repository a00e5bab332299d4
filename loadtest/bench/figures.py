"""From samples to figures: medians over rounds, ratios within a round, limits kept or not. Pure."""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from loadtest.bench.loads import Load

T = TypeVar("T")


class Sample(NamedTuple):
    """One proxy under one load in one round."""

    round: int
    load: str
    proxy: str
    cpu_us: float
    """Processor time of the proxy's processes, µs a request or a streamed chunk."""
    p50_ms: float
    p99_ms: float
    """Of a request, from sending to its last byte; of streams, a chunk's way from replica to client."""
    per_s: float
    """Requests or chunks a second."""
    core: float
    """Share of its core that the proxy used, 0 … 1. Well below 1 the load was the limit, not the proxy."""
    others: float
    """Share of the machine that other work took, 0 … 1."""
    gauge_ms: float
    """Processor time of a fixed piece of work, the slower of just before and just after."""
    disturbed: bool
    """Other work took more than is allowed, or the cores were slowed, also when measured again."""
    failed: int
    moved: int
    """Sessions that were not always answered by one replica, so far in the run."""
    misnamed: int
    """Answers whose header named the wrong replica, so far in the run; 0 for proxies without one."""


class Spread(NamedTuple):
    """The median over the rounds, and the least and the greatest."""

    median: float
    least: float
    greatest: float


class Figures(NamedTuple):
    """One proxy under one load, over all rounds."""

    load: str
    proxy: str
    cpu_us: Spread
    p50_ms: Spread
    p99_ms: Spread
    per_s: Spread
    core: Spread
    cpu_ratio: Spread | None
    """To the yardstick in the same round; `None` where that has no sample."""
    p50_ratio: Spread | None
    p99_ratio: Spread | None
    rounds: int
    disturbed_rounds: int
    failed: int
    moved: int
    misnamed: int


class Verdict(NamedTuple):
    """One limit, and whether it is kept."""

    what: str
    limit: float
    measured: float

    @property
    def kept(self) -> bool:
        return self.measured <= self.limit


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values do not exceed. NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def turn_order(contenders: Sequence[T], round: int) -> list[T]:
    """The order of one round: each round begins one further, so that none always goes first."""
    start = round % len(contenders)
    return [*contenders[start:], *contenders[:start]]


def summarise(samples: Iterable[Sample], yardstick: str) -> list[Figures]:
    """Figures for each load and proxy, in the order in which they first come."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.load, sample.proxy), []).append(sample)
    return [
        _figures(own, {other.round: other for other in groups.get((load, yardstick), [])})
        for (load, _), own in groups.items()
    ]


def _figures(own: list[Sample], yardstick: dict[int, Sample]) -> Figures:
    pairs = [(sample, yardstick[sample.round]) for sample in own if sample.round in yardstick]
    return Figures(
        load=own[0].load,
        proxy=own[0].proxy,
        cpu_us=_spread([sample.cpu_us for sample in own]),
        p50_ms=_spread([sample.p50_ms for sample in own]),
        p99_ms=_spread([sample.p99_ms for sample in own]),
        per_s=_spread([sample.per_s for sample in own]),
        core=_spread([sample.core for sample in own]),
        cpu_ratio=_spread([mine.cpu_us / its.cpu_us for mine, its in pairs]) if pairs else None,
        p50_ratio=_spread([mine.p50_ms / its.p50_ms for mine, its in pairs]) if pairs else None,
        p99_ratio=_spread([mine.p99_ms / its.p99_ms for mine, its in pairs]) if pairs else None,
        rounds=len(own),
        disturbed_rounds=sum(sample.disturbed for sample in own),
        failed=sum(sample.failed for sample in own),
        moved=max(sample.moved for sample in own),
        misnamed=max(sample.misnamed for sample in own),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def verdicts(figures: Figures, load: Load) -> list[Verdict]:
    """What ours is held to under a load; empty where there was nothing to compare with."""
    if figures.cpu_ratio is None or figures.p50_ratio is None or figures.p99_ratio is None:
        return []
    return [
        Verdict("processor time", load.limit, figures.cpu_ratio.median),
        Verdict("p50", 1.0, figures.p50_ratio.median),
        Verdict("p99", 1.0, figures.p99_ratio.median),
    ]
