"""The race's table: each scenario, each router, medians over the seeds with the least and the greatest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from loadtest.race.cell import Cell
from loadtest.race.routers import OURS
from loadtest.race.scenarios import CROWDED, SCENARIOS

_SPREAD: Final = ("hit rate", "TTFT mean s", "p90")
"""The figures that the race is about: shown with the least and the greatest."""


class Column(NamedTuple):
    """One figure of the table."""

    title: str
    of: Callable[[Cell], float]
    shown: str
    """Format of a value."""
    best: Callable[[Iterable[float]], float] | None
    """`min` or `max`; `None` where neither is better."""


COLUMNS: Final = (
    Column("hit rate", lambda cell: cell.hit_rate, ".3f", max),
    Column("TTFT mean s", lambda cell: cell.ttft_s.get("mean", 0.0), ".2f", min),
    Column("p50", lambda cell: cell.ttft_s.get("p50", 0.0), ".2f", min),
    Column("p90", lambda cell: cell.ttft_s.get("p90", 0.0), ".2f", min),
    Column("p99", lambda cell: cell.ttft_s.get("p99", 0.0), ".1f", min),
    Column("session p50 s", lambda cell: cell.session_s["p50"], ".0f", min),
    Column("turns/s", lambda cell: cell.turns_per_s, ".2f", max),
    Column("imbalance", lambda cell: cell.imbalance, ".2f", min),
    Column("core", lambda cell: cell.core, ".2f", min),
    Column("ms/turn", lambda cell: cell.cpu_ms_a_turn, ".2f", min),
    Column("MiB", lambda cell: cell.memory_mib, ".0f", min),
    Column("failed", lambda cell: float(cell.failed - cell.cut), ".0f", None),
    Column("cut", lambda cell: float(cell.cut), ".0f", None),
)


def grouped(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Those that count, by scenario and router, in the order of the seeds."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        if not cell.void:
            groups.setdefault((cell.scenario, cell.router), []).append(cell)
    return groups


def tables(cells: Sequence[Cell], names: Sequence[str]) -> str:
    """Markdown. `names`: the routers, in order."""
    groups = grouped(cells)
    parts = []
    for scenario in (*SCENARIOS.values(), CROWDED):
        rows = {name: groups[scenario.name, name] for name in names if (scenario.name, name) in groups}
        if rows:
            parts += [f"### {scenario.name}: {scenario.about}\n", _table(rows), *_verdict(rows)]
    return "\n".join(parts)


def _table(rows: Mapping[str, Sequence[Cell]]) -> str:
    best = {
        column.title: column.best(_value(column, cells) for cells in rows.values())
        for column in COLUMNS
        if column.best is not None
    }
    lines = [
        f"| router | runs | {' | '.join(column.title for column in COLUMNS)} |",
        f"|---|{'---|' * (len(COLUMNS) + 1)}",
    ]
    for name, cells in rows.items():
        shown = [_shown(column, cells, best.get(column.title)) for column in COLUMNS]
        lines.append(f"| {name} | {len(cells)} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _shown(column: Column, cells: Sequence[Cell], best: float | None) -> str:
    values = [column.of(cell) for cell in cells]
    text = format(median(values), column.shown)
    if best is not None and text == format(best, column.shown):
        text = f"**{text}**"
    if len(values) > 1 and column.title in _SPREAD:
        text += f" ({min(values):{column.shown}}–{max(values):{column.shown}})"
    return text


def _value(column: Column, cells: Sequence[Cell]) -> float:
    return median([column.of(cell) for cell in cells])


def _verdict(rows: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Where ours is not best of the figures that count, by how much, and in how many of the seeds."""
    if OURS not in rows or len(rows) < 2:
        return []
    said = []
    for column in COLUMNS:
        if column.title not in _SPREAD or column.best is None:
            continue
        ours = _value(column, rows[OURS])
        others = [(_value(column, cells), name) for name, cells in rows.items() if name != OURS]
        figure, name = max(others) if column.best is max else min(others)
        ahead = ours >= figure if column.best is max else ours <= figure
        ratio = ours / figure if figure else 0.0
        said.append(
            f"- {column.title}: {'best' if ahead else '**not best**'}, {ratio:.2f} × that of {name}, the "
            f"{'next' if ahead else 'best'}"
        )
    return ["\n".join(said) + "\n"]


def by_place(cells: Sequence[Cell], scenario: str, names: Sequence[str]) -> str:
    """Markdown: mean and p90 of the time to the first token by place of the turn, medians over the seeds."""
    groups = grouped(cells)
    rows = {name: groups[scenario, name] for name in names if (scenario, name) in groups}
    if not rows:
        return ""
    places = list(next(iter(rows.values()))[0].by_place)
    lines = [f"| router | {' | '.join(places)} |", f"|---|{'---|' * len(places)}"]
    for name, cells_of in rows.items():
        shown = []
        for place in places:
            spreads: list[Mapping[str, Any]] = [
                cell.by_place[place] for cell in cells_of if cell.by_place.get(place, {}).get("count")
            ]
            if not spreads:
                shown.append("–")
                continue
            mean, p90 = (median(spread[what] for spread in spreads) for what in ("mean", "p90"))
            shown.append(f"{mean:.2f} / {p90:.2f}")
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"
