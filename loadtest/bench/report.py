"""The results as people and programs read them: one table in Markdown, and JSON with every sample. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from loadtest.bench.figures import Figures, Sample, Spread, Verdict, verdicts
from loadtest.bench.loads import CHUNKS, SESSIONS, STEP_S, Load


class Run(NamedTuple):
    """One run of the bench, measured."""

    date: str
    """UTC, ISO 8601, to the minute."""
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    """Of each proxy, and of what the load runs on."""
    setups: Mapping[str, str]
    """How each proxy that was measured routes."""
    absent: Mapping[str, str]
    """Proxies that were not measured, and why."""
    ours: str
    yardstick: str
    rounds: int
    loads: Sequence[Load]
    figures: Sequence[Figures]
    samples: Sequence[Sample]


_COLUMNS: Final = (
    "Load",
    "Proxy",
    "µs a unit",
    "of {yardstick}",
    "p50 ms",
    "p99 ms",
    "units/s",
    "core",
    "Ours: limit",
    "Remarks",
)


def table(run: Run) -> str:
    """The table, its columns aligned, so that it reads as it is."""
    loads = {load.name: load for load in run.loads}
    head = [column.format(yardstick=run.yardstick) for column in _COLUMNS]
    rows = [_row(figures, loads[figures.load], run) for figures in run.figures]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [_line(head, widths), _line(["-" * width for width in widths], widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)]) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _row(figures: Figures, load: Load, run: Run) -> list[str]:
    return [
        f"{load.title}, a {load.unit}",
        figures.proxy,
        _spread(figures.cpu_us, 1),
        _spread(figures.cpu_ratio, 2) if figures.cpu_ratio and figures.proxy != run.yardstick else "",
        f"{figures.p50_ms.median:.2f}",
        f"{figures.p99_ms.median:.2f}",
        f"{figures.per_s.median:,.0f}",
        f"{figures.core.median:.0%}",
        _limits(verdicts(figures, load)) if figures.proxy == run.ours else "",
        "; ".join(remarks(figures)),
    ]


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f}–{spread.greatest:.{digits}f})"


def _limits(found: Sequence[Verdict]) -> str:
    return "; ".join(
        f"{verdict.what} {verdict.measured:.2f} ≤ {verdict.limit:g}: pass"
        if verdict.kept
        else f"{verdict.what} {verdict.measured:.2f} > {verdict.limit:g}: MISS"
        for verdict in found
    )


def remarks(figures: Figures) -> list[str]:
    """What a reader must know before trusting a row."""
    found = []
    if figures.failed:
        found.append(f"FAILED {figures.failed} requests")
    if figures.misnamed:
        found.append(f"MISNAMED the replica in {figures.misnamed} answers")
    if figures.moved:
        found.append(f"{figures.moved} of {SESSIONS} sessions moved")
    if figures.disturbed_rounds:
        found.append(f"machine disturbed in {figures.disturbed_rounds} of {figures.rounds} rounds")
    return found


def markdown(run: Run) -> str:
    """The page that is kept beside the JSON."""
    machine = run.machine
    lines = [
        f"# Bench of {run.date}",
        "",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']},"
        f" kernel {machine['kernel']}. {_counted(run.rounds)}.",
        "",
        table(run),
        legend(run),
    ]
    return "\n".join(lines)


def legend(run: Run) -> str:
    """What the columns mean, and what was measured."""
    lines = [
        f"µs a unit: processor time of the proxy's processes, a request or a streamed chunk (a stream has"
        f" {CHUNKS}, {STEP_S * 1000:g} ms apart); median over the rounds (least–greatest)."
        f' "of {run.yardstick}": the same as a share of {run.yardstick}\'s in the same round.'
        " p50, p99: of a request, from sending to its last byte; of streams, a chunk's way from replica to"
        " client."
        " core: share of its one core that the proxy used; well below 100 % the load was the limit, and"
        " units/s says nothing of the proxy.",
        "",
    ]
    lines += [f"- {name} {run.versions[name]}: {setup}" for name, setup in run.setups.items()]
    lines += [f"- {name}: not measured ({why})" for name, why in run.absent.items()]
    gauges = [sample.gauge_ms for sample in run.samples]
    lines.append(
        f"- the machine: a fixed piece of work took {min(gauges):.1f} to {max(gauges):.1f} ms of processor"
        f" time, and other work at most {max(sample.others for sample in run.samples):.0%} of all cores"
    )
    others = ", ".join(
        f"{name} {version}" for name, version in run.versions.items() if name not in run.setups
    )
    return "\n".join([*lines, f"- the load: {others}", ""])


def _counted(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def document(run: Run) -> dict[str, object]:
    """Everything, for programs."""
    loads = {load.name: load for load in run.loads}
    return {
        "version": 1,
        "date": run.date,
        "machine": dict(run.machine),
        "versions": dict(run.versions),
        "setups": dict(run.setups),
        "absent": dict(run.absent),
        "yardstick": run.yardstick,
        "rounds": run.rounds,
        "loads": [load._asdict() for load in run.loads],
        "figures": [_figures(figures) for figures in run.figures],
        "limits": [
            {"load": figures.load, **verdict._asdict(), "kept": verdict.kept}
            for figures in run.figures
            if figures.proxy == run.ours
            for verdict in verdicts(figures, loads[figures.load])
        ],
        "samples": [sample._asdict() for sample in run.samples],
    }


def _figures(figures: Figures) -> dict[str, object]:
    return {
        key: value._asdict() if isinstance(value, Spread) else value
        for key, value in figures._asdict().items()
    }
