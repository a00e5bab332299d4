"""What the connector counts, as plain mappings that can be added up and sent from process to process.

Keys are `name` or `name:label`; lists are observations, all else are counts, except the gauges, of which the
latest value holds.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Figures: TypeAlias = dict[str, Any]

COUNTERS: Final[Mapping[str, tuple[str, str | None]]] = {
    "asks": ("Requests that the agent was asked about.", None),
    "offers": ("Requests by what became of the question.", "outcome"),
    "offered_blocks": ("Blocks offered to the scheduler for loading.", None),
    "loads": ("Loads by why they ended.", "reason"),
    "loaded_blocks": ("Blocks copied into the engine.", None),
    "missing_blocks": ("Blocks of loads that did not come and were computed.", None),
    "saved_blocks": ("Blocks copied from the engine for the agent.", None),
    "lost_blocks": ("Full blocks that were not saved, for want of a slot.", None),
    "faults": ("Errors inside the connector, each answered by computing.", "where"),
}
"""Name → what it counts, and the name of its label."""

HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...]]]] = {
    "load_seconds": (
        "From a load's order to its end.",
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0),
    ),
}
"""Name → what is observed, and the upper bounds of its buckets in seconds."""

GAUGES: Final[Mapping[str, tuple[str, str | None]]] = {
    "agent_connected": ("1 while the KV agent serves this engine.", None),
    "agent": ("The KV agent's own figures.", "figure"),
}
"""Name → what it shows, and the name of its label."""


class Counting:
    """Figures since they were last taken."""

    __slots__ = ("_figures",)

    def __init__(self) -> None:
        self._figures: Figures = {}

    def add(self, name: str, amount: int = 1, *, label: str | None = None) -> None:
        """Count `amount` more."""
        key = name if label is None else f"{name}:{label}"
        self._figures[key] = self._figures.get(key, 0) + amount

    def observe(self, name: str, value: float) -> None:
        """One observation more."""
        self._figures.setdefault(name, []).append(value)

    def show(self, name: str, value: float, *, label: str | None = None) -> None:
        """The value of a gauge from now on."""
        self._figures[name if label is None else f"{name}:{label}"] = value

    def take(self) -> Figures | None:
        """What was counted since the last call; `None`: nothing."""
        if not self._figures:
            return None
        taken, self._figures = self._figures, {}
        return taken


def add_up(one: Figures, other: Mapping[str, Any]) -> Figures:
    """Two of them as one, the later one second."""
    total = dict(one)
    for key, value in other.items():
        if name_of(key) in GAUGES or key not in total:
            total[key] = list(value) if isinstance(value, list) else value
        else:
            total[key] = total[key] + value
    return total


def summary(figures: Mapping[str, Any]) -> dict[str, int | float]:
    """One number for each, for a line in the log; gauges are left out."""
    return {
        key: round(sum(value) / max(1, len(value)), 4) if isinstance(value, list) else value
        for key, value in figures.items()
        if name_of(key) not in GAUGES
    }


def name_of(key: str) -> str:
    """The figure's name without its label."""
    return key.partition(":")[0]


def label_of(key: str) -> str:
    """The label's value, or `""`."""
    return key.partition(":")[2]
