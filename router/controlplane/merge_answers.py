"""Makes one answer of several workers' to the same question of the admin API.

What workers have each of their own adds up: turns, tokens, what is held. What they see alike, or tell one
another, is told once: replicas, sessions. Lists of events become one, the latest first. Knows answers as
plain JSON values, and from the names of their fields what to do with them.
"""

from collections.abc import Sequence
from typing import Any, Final

# Fields by which two rows are one.
_NAMED_BY: Final = {
    "replicas": ("name",),
    "sources": ("source",),
    "feeds": ("replica",),
    "agents": ("agent",),
    # Each worker pulls for itself, so one may have had enough of a source that another goes on with.
    "breakers": ("source", "state"),
    "sessions": ("key",),
    "whereabouts": ("place", "told_by"),
    "flows": ("source", "target"),
    "notices": ("about", "name", "text"),
    "kinds": ("live", "shadow"),
    "disagreements": (),
}

# Rows of different workers are different rows, in this order.
_ORDERED_BY: Final = {
    "decisions": ("time", True),
    "moves": ("time", True),
    "stays": ("since", False),
    "turns": ("time", False),
    "held": ("due_in_s", False),
}

_BOUNDED: Final = frozenset({*_ORDERED_BY, "sessions"})

# Of each worker's own, though not a whole number.
_ADDED: Final = frozenset({"turns_per_s", "mean_turns_per_s", "recent_failures"})

# The same for all workers, or as good as: what replicas report of themselves, what workers tell one another.
_MOST: Final = frozenset(
    {
        "age_s",
        "block_tokens",
        "blocks",
        "capacity_tokens",
        "free_tokens",
        "gaps",
        "batches",
        "losses",
        "unplaced",
        "faults",
        "horizon_tokens",
        "host_kv_tokens",
        "index_segments",
        "kv_capacity_tokens",
        "kv_usage",
        "last_turn_at",
        "restarts",
        "running",
        "searched",
        "sessions_known",
        "start_time",
        "up_s",
        "waiting",
        "window_s",
        "working_set_tokens",
    }
)
_LEAST: Final = frozenset({"idle_s", "report_age_s", "slice_s", "ends_in_s", "trust", "draining_for_s"})

# Where all must have it so that the whole has it.
_ALL: Final = frozenset({"live", "up"})

# Of the rows and answers that are told once, also these are.
_ONCE: Final = {
    "replicas": frozenset({"sessions"}),
    "sessions": frozenset({"resident_tokens", "turns", "moves", "total", "matching"}),
    "overview": frozenset({"replicas", "sessions", "healthy", "draining", "starting", "down", "probation"}),
    "discovery": frozenset({"replicas"}),
}

# Shares of two sums.
_SHARES: Final = {"hit_rate": ("cached_tokens", "prompt_tokens")}


def merge_answers(endpoint: str, answers: Sequence[Any], limit: int) -> Any:
    """One answer. `endpoint` is the call's first word after `/api/`; lists have `limit` rows at most.

    Figures that cannot be added up, such as percentiles, are their mean, weighted by turns where these are
    told beside them.
    """
    return _Merging(endpoint, limit).values("", answers)


class _Merging:
    def __init__(self, endpoint: str, limit: int) -> None:
        self._once = _ONCE.get(endpoint, frozenset())
        self._limit = limit

    def values(self, key: str, values: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        told = [value for value in values if value is not None]
        if not told:
            return None
        first = told[0]
        if len(told) == 1:
            return first
        if isinstance(first, dict):
            return self._mappings([value for value in told if isinstance(value, dict)])
        if isinstance(first, list):
            return self._lists(key, [value for value in told if isinstance(value, list)])
        if isinstance(first, bool):
            return all(told) if key in _ALL else any(told)
        if isinstance(first, int | float):
            return self._numbers(key, values, weights)
        # A reason that one of them has to give.
        return next((value for value in told if value), first)

    def _numbers(self, key: str, values: Sequence[Any], weights: Sequence[float] | None) -> float:
        pairs = [
            (value, weight)
            for value, weight in zip(values, weights or [1.0] * len(values), strict=True)
            if isinstance(value, int | float)
        ]
        numbers = [value for value, _ in pairs]
        if key in _MOST or key in self._once:
            return max(numbers)
        if key in _LEAST:
            return min(numbers)
        if key in _ADDED or all(isinstance(number, int) for number in numbers):
            return sum(numbers)
        weight = sum(weight for _, weight in pairs)
        if not weight:
            return sum(numbers) / len(numbers)
        return round(sum(value * weight for value, weight in pairs) / weight, 4)

    def _mappings(self, mappings: Sequence[dict[str, Any]]) -> dict[str, Any]:
        keys = dict.fromkeys(key for mapping in mappings for key in mapping)
        turns = [mapping.get("turns") for mapping in mappings]
        weights = [float(each) if isinstance(each, int) else 0.0 for each in turns]
        merged = {
            key: self.values(
                key, [mapping.get(key) for mapping in mappings], weights if any(weights) else None
            )
            for key in keys
        }
        for share, (part, whole) in _SHARES.items():
            if share in merged and isinstance(merged.get(whole), int):
                merged[share] = round(merged[part] / merged[whole], 4) if merged[whole] else None
        return merged

    def _lists(self, key: str, lists: Sequence[list[Any]]) -> list[Any]:
        rows = [row for each in lists for row in each]
        if rows and all(isinstance(row, dict) for row in rows):
            return self._rows(key, rows)
        if any(isinstance(row, int | float) for row in rows):
            return self._columns(key, lists)
        return list(dict.fromkeys(row for row in rows if isinstance(row, str))) or rows

    def _rows(self, key: str, rows: list[dict[str, Any]]) -> list[Any]:
        order, latest_first = _ORDERED_BY.get(key, ("", False))
        if order:
            rows = sorted(rows, key=lambda row: _sortable(row.get(order)), reverse=latest_first)
        named_by = _NAMED_BY.get(key, ())
        if named_by:
            groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
            for row in rows:
                groups.setdefault(tuple(row.get(name) for name in named_by), []).append(row)
            rows = [self._mappings(group) for group in groups.values()]
        return rows[: self._limit] if key in _BOUNDED else rows

    def _columns(self, key: str, lists: Sequence[list[Any]]) -> list[Any]:
        """Series that end at the same moment, and may have begun at different ones."""
        length = max(map(len, lists))
        padded = [[None] * (length - len(each)) + each for each in lists]
        return [self.values(key, column) for column in zip(*padded, strict=True)]


def _sortable(value: Any) -> tuple[int, Any]:
    return (1, value) if isinstance(value, int | float) else (2, value) if isinstance(value, str) else (0, 0)
