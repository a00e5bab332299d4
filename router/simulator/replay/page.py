"""A comparison as one HTML page: the tables, and plots drawn in it. It loads nothing."""

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import Final

from router.simulator.replay.compare import SeedResult
from router.simulator.replay.figures import quantile

# Told apart by people who confuse red and green, too (after Okabe and Ito).
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")

_WIDTH, _HEIGHT = 720, 300
_LEFT, _BOTTOM = 60, 30

_SHARES: Final = [*(share / 100 for share in range(1, 100)), 0.995, 0.999, 1.0]

_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>homing replay</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
pre{overflow-x:auto;background:#f6f6f6;padding:1em}svg{width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:#444}
</style></head><body>
"""


def page(text: str, results: Sequence[SeedResult]) -> str:
    """The page: `text` is the comparison as tables; plots are of the first seed."""
    first = results[0]
    of_seed = f" (seed {first.seed})" if len(results) > 1 else ""
    ttft = {name: sorted(measured.ttft_s) for name, measured in first.measured.items()}
    loads = {name: measured.prefilled for name, measured in first.measured.items()}
    return (
        f"{_HEAD}<h1>Replay</h1>\n<pre>{escape(text)}</pre>\n"
        f"<h2>Time to first token{of_seed}</h2>\n"
        "<p>How long (upwards, logarithmic) the quickest turns (share to the right) waited at most.</p>\n"
        f"{_curves(ttft)}\n"
        f"<h2>Prompt tokens computed by each replica{of_seed}</h2>\n{_bars(loads)}\n</body></html>\n"
    )


def _curves(series: dict[str, list[float]]) -> str:
    """Quantile curves on a logarithmic axis of whole decades."""
    known = {name: values for name, values in series.items() if values}
    if not known:
        return "<p>No turn was answered.</p>"
    # Below a millisecond nothing is told apart.
    low = floor(log10(max(0.001, min(values[0] for values in known.values()))))
    high = floor(log10(max(0.001, *(values[-1] for values in known.values())))) + 1
    across, up = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - 10

    def y(seconds: float) -> float:
        return 10 + up * (high - log10(max(seconds, 10.0**low))) / (high - low)

    marks = []
    for decade in range(low, high + 1):
        at = y(10.0**decade)
        marks.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - 10}" stroke="#ddd"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**decade:g} s</text>')
    for share in range(0, 101, 10):
        x = _LEFT + across * share / 100
        marks.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{share} %</text>')
    for name, values in known.items():
        points = " ".join(
            f"{_LEFT + across * share:.1f},{y(quantile(values, share)):.1f}" for share in _SHARES
        )
        colour = _colour(list(series), name)
        marks.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return _drawing(_HEIGHT, marks) + _legend(list(series))


def _bars(loads: dict[str, list[int]]) -> str:
    """A group of bars for each replica."""
    most = max((max(tokens, default=0) for tokens in loads.values()), default=0)
    replicas = max((len(tokens) for tokens in loads.values()), default=0)
    if not most:
        return "<p>Nothing was computed.</p>"
    across, up = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - 10
    group = across / replicas
    bar = group * 0.8 / len(loads)
    marks = [
        f'<text x="{_LEFT - 6}" y="14" text-anchor="end">{most / 1e6:.2f} M</text>',
        f'<text x="{_LEFT - 6}" y="{_HEIGHT - _BOTTOM}" text-anchor="end">0</text>',
    ]
    for number in range(replicas):
        x = _LEFT + group * (number + 0.4)
        marks.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">r{number}</text>')
        for place, (name, tokens) in enumerate(loads.items()):
            height = up * tokens[number] / most
            marks.append(
                f'<rect x="{_LEFT + group * number + bar * place:.1f}" y="{10 + up - height:.1f}" '
                f'width="{bar:.1f}" height="{height:.1f}" fill="{_colour(list(loads), name)}"/>'
            )
    return _drawing(_HEIGHT, marks) + _legend(list(loads))


def _drawing(height: int, marks: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(marks)}</svg>\n'


def _legend(names: Sequence[str]) -> str:
    return (
        "<p>"
        + " ".join(f'<span style="color:{_colour(names, name)}">■</span> {escape(name)}' for name in names)
        + "</p>"
    )


def _colour(names: Sequence[str], name: str) -> str:
    return _COLOURS[names.index(name) % len(_COLOURS)]
