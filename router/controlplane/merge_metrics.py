"""Makes one Prometheus text of several workers': what one router would have said that did it all.

Each worker counts its own turns, so counters and histograms add up, and so do gauges of what a worker holds.
What every worker sees alike, a replica's state say, is told once.
"""

import math
from collections.abc import Iterable
from typing import Final

# Gauges of what a worker itself has.
_ADDED: Final = frozenset(
    {
        "homing_held_bytes",
        "homing_client_connections",
        "homing_replica_connections",
        "homing_replica_in_flight",
        "homing_replica_pending_tokens",
        "homing_replica_held",
        "homing_trace_spans_waiting",
        "homing_pair_offers",
    }
)

# Counters of what happens to replicas, sources and files: each worker sees all of it.
_SEEN_BY_ALL: Final = frozenset(
    {
        "homing_health_changes_total",
        "homing_restarts_total",
        "homing_discovery_faults_total",
        "homing_kv_feed_batches_total",
        "homing_kv_feed_gaps_total",
        "homing_kv_feed_losses_total",
        "homing_reloads_total",
    }
)

_EARLIEST: Final = frozenset({"homing_start_time_seconds"})


class _Family:
    def __init__(self, name: str, help_line: str) -> None:
        self.name = name
        self.help_line = help_line
        self.type_line = ""
        self.samples: dict[str, float] = {}

    def add(self, sample: str, value: float) -> None:
        known = self.samples.get(sample)
        if known is None:
            self.samples[sample] = value
        elif self.name in _EARLIEST:
            self.samples[sample] = min(known, value)
        elif self.name in _ADDED or (not self.type_line.endswith(" gauge") and self.name not in _SEEN_BY_ALL):
            self.samples[sample] = known + value
        else:
            self.samples[sample] = max(known, value)


def merge_metrics(texts: Iterable[str]) -> str:
    """One text. Each is as `telemetry.prometheus` writes it; a line that is not is passed over."""
    families: dict[str, _Family] = {}
    for text in texts:
        family: _Family | None = None
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                family = families.setdefault(name, _Family(name, line))
            elif line.startswith("# TYPE ") and family is not None:
                family.type_line = line
            elif family is not None and line.startswith(family.name):
                sample, _, value = line.rpartition(" ")
                number = _number(value)
                if sample and number is not None:
                    family.add(sample, number)
    return "".join(_written(family) for family in families.values())


def _written(family: _Family) -> str:
    lines = [family.help_line, family.type_line]
    lines += (f"{sample} {_text(value)}" for sample, value in family.samples.items())
    return "\n".join(lines) + "\n"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(value: float) -> str:
    if math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else f"{'+' if value > 0 else '-'}Inf"
