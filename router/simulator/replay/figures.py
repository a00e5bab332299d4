"""What a replay measured, and the figures that are made of it. Knows neither policy nor fleet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Final, NamedTuple

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


@dataclass(slots=True)
class Measured:
    """One policy's turns, as they came."""

    ttft_s: list[float] = field(default_factory=list)
    """From a turn's arrival at the router to its first token, of each turn that was answered."""
    asked_s: list[float] = field(default_factory=list)
    """When each of those turns arrived."""
    expected: list[tuple[int, int, float, float]] = field(default_factory=list)
    """Of each turn that came to its end: cached tokens as expected and as delivered, and seconds from its
    dispatch to its first token, likewise."""
    pulled: int = 0
    """Pulls, those of turns that were placed or failed over included."""
    pulled_tokens: int = 0
    died: int = 0
    """Turns whose replica was killed; they were asked again."""
    session_s: list[float] = field(default_factory=list)
    """From the first turn's arrival to the last answer's end, of each session that came to its end.
    Sub-agents' not included."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """As the replicas counted, of the turns that were answered."""
    moves: int = 0
    """How often a session's home changed."""
    refused: int = 0
    """Turns refused, each of which ended its session."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Decisions by kind."""
    prefilled: list[int] = field(default_factory=list)
    """Prompt tokens computed by each replica."""


class Figures(NamedTuple):
    """One policy's result. `None` where nothing was measured."""

    hit_rate: float | None
    ttft_ms: dict[str, float | None]
    session_s: dict[str, float | None]
    moves: int
    pulls: int
    refused: int
    turns: int
    left_out: int
    imbalance: float | None
    """Prompt tokens computed by the replica that computed most, as a multiple of the mean."""
    ttft_error: float | None = None
    """How far the time from dispatch to first token was from what the router expected, as a share of it: the
    median turn's."""
    cached_error: float | None = None
    """The same of cached tokens, as a share of those that were delivered."""


def figures(measured: Measured, left_out: int) -> Figures:
    """The figures of a replay that left so many turns out."""
    ttft_ms = [seconds * 1000 for seconds in measured.ttft_s]
    session = spread(measured.session_s)
    total = sum(measured.prefilled)
    return Figures(
        hit_rate=_rounded(measured.cached_tokens / measured.prompt_tokens)
        if measured.prompt_tokens
        else None,
        ttft_ms=spread(ttft_ms),
        session_s={name: session[name] for name in ("p50", "p90")},
        moves=measured.moves,
        pulls=measured.pulled,
        refused=measured.refused,
        turns=len(measured.ttft_s),
        left_out=left_out,
        imbalance=_rounded(max(measured.prefilled) * len(measured.prefilled) / total) if total else None,
        ttft_error=_median_error([turn[2:] for turn in measured.expected]),
        cached_error=_median_error([turn[:2] for turn in measured.expected]),
    )


def _median_error(turns: Sequence[tuple[float, float]]) -> float | None:
    """Of pairs of what was expected and what came, of which nothing came teaches nothing."""
    errors = [abs(expected - came) / came for expected, came in turns if came > 0]
    return _rounded(median(errors)) if errors else None


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, quantiles and maximum; all `None` of nothing."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("mean", *(name for name, _ in QUANTILES)))
    # Summed in ascending order: the same turns give the same mean, in whatever order they came.
    summary: dict[str, float | None] = {"mean": _rounded(sum(ordered) / len(ordered))}
    return summary | {name: _rounded(quantile(ordered, share)) for name, share in QUANTILES}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least of the ascending values that at least this share of them does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _rounded(value: float) -> float:
    # Six places: more than any of these means, and short enough to read.
    return round(value, 6)
