"""A comparison as text for people, and as JSON for programs."""

from collections.abc import Sequence
from typing import Any, Final

from router.simulator.replay.compare import COMPARED, Paired, SeedResult, over_seeds, paired
from router.simulator.replay.figures import Figures

_COLUMNS: Final = (
    "policy",
    "hit rate",
    "TTFT mean",
    "p50",
    "p90",
    "p99",
    "max",
    "session p50",
    "p90",
    "moves",
    "pulls",
    "refused",
    "imbalance",
    "TTFT off by",
    "cached off by",
)


def as_json(results: Sequence[SeedResult]) -> dict[str, Any]:
    """The comparison. Over several seeds figures are medians, and each seed's own come with them."""
    answer = _policies(
        {name: over_seeds([result.policies[name] for result in results]) for name in results[0].policies},
        over_seeds([result.bound for result in results]),
    )
    if len(results) > 1:
        answer["seeds"] = [
            {"seed": result.seed, **_policies(result.policies, result.bound)} for result in results
        ]
        answer["paired"] = {
            name: {figure: ratio._asdict() for figure, ratio in ratios.items()}
            for name, ratios in paired(results).items()
        }
    return answer


def _policies(policies: "dict[str, Figures] | Any", bound: Figures) -> dict[str, Any]:
    return {
        "policies": {name: result._asdict() for name, result in policies.items()},
        "bound": {"ttft_ms": bound.ttft_ms, "session_s": bound.session_s, "hit_rate": bound.hit_rate},
    }


def as_text(heading: str, results: Sequence[SeedResult]) -> str:
    """Tables: the figures, and over several seeds the ratios to the first policy."""
    names = list(results[0].policies)
    merged = {name: over_seeds([result.policies[name] for result in results]) for name in names}
    rows = [list(_COLUMNS)]
    rows += [_row(name, result) for name, result in merged.items()]
    bound = _row("bound", over_seeds([result.bound for result in results]))
    rows.append([*bound[:9], *[""] * (len(_COLUMNS) - 9)])
    first = merged[names[0]]
    lines = [
        heading,
        f"{results[0].sessions} sessions, {first.turns} turns answered under {names[0]}, "
        f"{first.left_out} left out (longer than a replica's KV)"
        + (f"; medians over {len(results)} seeds" if len(results) > 1 else ""),
        "",
        *table(rows),
    ]
    if len(results) > 1:
        rows = [["to " + names[0], *COMPARED]]
        rows += [
            [name, *(_ratio(ratio) for ratio in ratios.values())] for name, ratios in paired(results).items()
        ]
        lines += ["", f"ratios over {len(results)} seeds: median (least … most)", *table(rows)]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns: the first flush left, the others flush right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(name: str, result: Figures) -> list[str]:
    return [
        name,
        _figure(result.hit_rate, 3),
        *(_seconds(result.ttft_ms[figure]) for figure in ("mean", "p50", "p90", "p99", "max")),
        *(_seconds(None if value is None else value * 1000) for value in result.session_s.values()),
        str(result.moves),
        str(result.pulls),
        str(result.refused),
        _figure(result.imbalance, 2),
        _share(result.ttft_error),
        _share(result.cached_error),
    ]


def _figure(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _seconds(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.{1 if milliseconds < 100_000 else 0}f} s"


def _ratio(ratio: Paired) -> str:
    if ratio.median is None or ratio.least is None or ratio.most is None:
        return "-"
    return f"{ratio.median:.2f} ({ratio.least:.2f} … {ratio.most:.2f})"
