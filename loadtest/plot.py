"""`python -m loadtest.plot PREFIX`: what Locust's `--csv PREFIX` wrote, as one picture, `PREFIX.svg`.

For each kind of session the times to the first token by turn, and for each the median, p90 and p99, on a
logarithmic axis.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Final, NamedTuple

_SHOWN: Final = (("50%", "p50", "#56b4e9"), ("90%", "p90", "#0072b2"), ("99%", "p99", "#d55e00"))
"""Locust's columns, their names, and colours that people who confuse red and green tell apart."""

_LEFT: Final = 80
_HEIGHT: Final = 360
_BOTTOM: Final = 60
_GROUP: Final = 110


class Row(NamedTuple):
    """The times to the first token of one kind of turn, in ms."""

    name: str
    turns: int
    values: tuple[float, ...]
    """As in `_SHOWN`."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.plot", description=__doc__.partition("\n")[0])
    parser.add_argument("prefix", help="what --csv was given")
    arguments = parser.parse_args(argv)
    path = Path(f"{arguments.prefix}_stats.csv")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = read(list(csv.DictReader(file)))
        target = Path(f"{arguments.prefix}.svg")
        target.write_text(picture(rows), "utf-8")
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    print(f"written: {target}")
    return 0


def read(lines: Sequence[dict[str, str]]) -> list[Row]:
    """The rows of times to the first token. Raises `ValueError` where there are none."""
    rows = []
    for number, line in enumerate(lines, 2):
        if line.get("Type") != "TTFT" or line.get("Request Count") == "0":
            continue
        try:
            values = tuple(float(line[column]) for column, _, _ in _SHOWN)
            rows.append(Row(line["Name"], int(line["Request Count"]), values))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"line {number} is none of Locust's: a name, a count and percentiles are needed"
            ) from None
    if not rows:
        raise ValueError("no turn got a first token")
    # By kind, and within a kind by the first of its turns.
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple[str, int]:
    kind, _, turns = row.name.rpartition(" turn")
    digits = turns.removeprefix("s").strip().partition("-")[0].rstrip("+")
    return kind, int(digits) if digits.isdigit() else 0


def picture(rows: Sequence[Row]) -> str:
    """The SVG."""
    values = [max(1.0, value) for row in rows for value in row.values]
    low, high = floor(log10(min(values))), max(floor(log10(min(values))) + 1, ceil(log10(max(values))))
    width = _LEFT + _GROUP * len(rows) + 20
    up = _HEIGHT - _BOTTOM - 40

    def y(value: float) -> float:
        return 40 + up * (high - log10(max(value, 10.0**low))) / (high - low)

    marks = []
    for decade in range(low, high + 1):
        at = y(10.0**decade)
        marks.append(f'<path d="M{_LEFT} {at:.1f}H{width - 20}" stroke="#ddd"/>')
        marks.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10**decade:,} ms</text>')
    for place, (_, name, colour) in enumerate(_SHOWN):
        marks.append(f'<text x="{_LEFT + 60 * place}" y="20" fill="{colour}">■ {name}</text>')
    bar = _GROUP * 0.7 / len(_SHOWN)
    for number, row in enumerate(rows):
        left = _LEFT + _GROUP * number + _GROUP * 0.15
        for place, (value, (_, _, colour)) in enumerate(zip(row.values, _SHOWN, strict=True)):
            top = min(y(value), 39.0 + up)
            marks.append(
                f'<rect x="{left + bar * place:.1f}" y="{top:.1f}" width="{bar - 2:.1f}" '
                f'height="{40 + up - top:.1f}" fill="{colour}"><title>{value:g} ms</title></rect>'
            )
        middle = left + _GROUP * 0.35
        marks.append(
            f'<text x="{middle:.1f}" y="{_HEIGHT - 38}" text-anchor="middle">{escape(row.name)}</text>'
        )
        marks.append(
            f'<text x="{middle:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{row.turns} turns</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        'font-family="system-ui,sans-serif" font-size="11">'
        "<title>Time to first token by turn</title>"
        f"{''.join(marks)}</svg>\n"
    )


if __name__ == "__main__":
    sys.exit(main())
