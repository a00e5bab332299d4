"""The race's command line: `python -m loadtest.race`. Exit status: 0 raced, 1 not, 2 usage.

Each run is written down as soon as it is over, and is not made again: what was stopped goes on where it was.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import uvloop

from loadtest.agents.profile import load_profile
from loadtest.bench import machine
from loadtest.bench.command import RESULTS, Command, add_programs, date, program_places
from loadtest.bench.debian import Found
from loadtest.bench.errors import BenchError
from loadtest.race import cell as cells
from loadtest.race import report
from loadtest.race.cell import Cell
from loadtest.race.routers import Router, routers
from loadtest.race.scenarios import CROWDED, MEASURED_S, REPLICAS, SCENARIOS, WARM_S, Scenario

_COMMAND: Final = Command("race")
_TRIES: Final = 3
"""How often a run is made that is void."""

_SLOWER: Final = 0.6
"""Each time at this share of the pace before: what a busy machine was too slow for, it may not be then."""

_KNOWN: Final = {**SCENARIOS, CROWDED.name: CROWDED}

_AROUND_S: Final = 8.0
"""What starting and stopping takes, about."""


class _Entrant(NamedTuple):
    router: Router
    found: Found
    version: str


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return _COMMAND.run(
        lambda: _raced(arguments),
        stopped="stopped, with all that it had started; the same command goes on",
    )


def _raced(arguments: argparse.Namespace) -> int:
    record: Path = arguments.results / "race.jsonl"
    if not arguments.report:
        _race(arguments, record)
    _write(record, arguments.results)
    return 0


def _race(arguments: argparse.Namespace, record: Path) -> None:
    if arguments.first:
        cells.go_first()
    entrants = _entrants(arguments)
    scenarios = [_KNOWN[name] for name in arguments.scenario or SCENARIOS]
    until = time.monotonic() + arguments.budget if arguments.budget else None
    profile = load_profile("race")
    record.parent.mkdir(parents=True, exist_ok=True)
    known = {(one.scenario, one.router, one.seed) for one in _read(record) if not one.void}
    todo = [
        (seed, scenario, entrant)
        for seed, scenario, entrant in _order(entrants, scenarios, arguments.seeds)
        if (scenario.name, entrant.router.name, seed) not in known
    ]
    takes_s = (WARM_S + MEASURED_S) / arguments.scale + _AROUND_S
    _COMMAND.say(f"{len(todo)} runs to make, {len(todo) * takes_s / 60:.0f} minutes")
    cores = frozenset(os.sched_getaffinity(0))
    for number, (seed, scenario, entrant) in enumerate(todo, 1):
        for attempt in range(_TRIES):
            scale = arguments.scale * _SLOWER**attempt
            takes_s = (WARM_S + MEASURED_S) / scale + _AROUND_S
            if until is not None and time.monotonic() + takes_s > until:
                _COMMAND.say("the time is up; the same command goes on")
                return
            with tempfile.TemporaryDirectory(prefix="homing-race-") as folder:
                one = uvloop.run(
                    cells.run(
                        entrant.router,
                        entrant.found,
                        scenario,
                        seed,
                        profile=profile,
                        scale=scale,
                        folder=Path(folder),
                        cores=cores,
                    )
                )
            line = {"at": date(), "version": entrant.version, **cells.document(one)}
            with record.open("ab") as file:
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            _COMMAND.say(f"{number} of {len(todo)}: {_told(one)}")
            if not one.void:
                break


def _told(one: Cell) -> str:
    ttft_s = one.ttft_s
    return (
        f"{one.scenario} {one.router} seed {one.seed}: {one.turns} turns, hit {one.hit_rate:.3f}, TTFT mean"
        f" {ttft_s.get('mean', 0):.2f} p90 {ttft_s.get('p90', 0):.2f} s, {one.failed} failed ({one.cut} cut),"
        f" busy {one.busy:.0%}, others {one.others:.0%}, timers {one.late_ms:.1f} ms late"
        + (": VOID" if one.void else "")
    )


def _order(
    entrants: Sequence[_Entrant], scenarios: Sequence[Scenario], seeds: int
) -> Iterator[tuple[int, Scenario, _Entrant]]:
    """One seed after the other, so that what is stopped half-way compares all the same."""
    for seed in range(1, seeds + 1):
        for place, scenario in enumerate(scenarios):
            first = (seed + place) % len(entrants)
            for entrant in (*entrants[first:], *entrants[:first]):
                yield seed, scenario, entrant


def _entrants(arguments: argparse.Namespace) -> list[_Entrant]:
    wanted = [one for one in routers().values() if not arguments.only or one.name in arguments.only]
    found, _ = _COMMAND.found(wanted, program_places(arguments), unpack=arguments.unpack)
    return [_Entrant(one, program, one.contender.version(program)) for one, program in found]


def _read(record: Path) -> list[Cell]:
    return [
        Cell(**{key: value for key, value in line.items() if key not in _BESIDE}) for line in _lines(record)
    ]


_BESIDE: Final = ("at", "version")


def _lines(record: Path) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    return [orjson.loads(line) for line in record.read_bytes().splitlines()]


def _write(record: Path, folder: Path) -> None:
    """The tables of all runs on record, beside it."""
    lines = _lines(record)
    made = _read(record)
    if not made:
        raise BenchError(f"{record} holds no run")
    versions = {str(line["router"]): str(line["version"]) for line in lines}
    names = [name for name in routers() if name in versions]
    legend = "\n".join(f"- **{name}** {versions[name]}: {routers()[name].setup}" for name in names)
    described = ", ".join(f"{key} {value}" for key, value in machine.describe().items())
    scales = ", ".join(f"{scale:g}" for scale in sorted({one.scale for one in made}))
    counted = [one for one in made if not one.void]
    busy = max((one.busy for one in counted), default=0.0)
    late_ms = max((one.late_ms for one in counted), default=0.0)
    text = (
        f"# The race, {lines[-1]['at']}\n\n"
        f"{REPLICAS} simulated replicas; {WARM_S:g} s to come in, then {MEASURED_S:g} s measured; {scales}"
        " simulated seconds a real one. Medians over the seeds (least–greatest)."
        f" {len(made) - len(counted)} void runs were left out; in the others the machine was at most"
        f" {busy:.0%} busy{_said_of_others(counted)}, and 99 of 100 of the fleet's timers were at most"
        f" {late_ms:.1f} ms late.\n\n"
        f"Machine: {described}.\n\n{legend}\n\n"
        f"{report.tables(made, names)}\n"
        "### Time to the first token by turn, `medium`: mean / p90, s\n\n"
        f"{report.by_place(made, 'medium', names)}"
    )
    (folder / "race.md").write_text(text, "utf-8")
    print(text)


def _said_of_others(counted: Sequence[Cell]) -> str:
    if not any(one.first for one in counted):
        return ""
    own = max(one.busy - one.others for one in counted)
    return f" (at most {own:.0%} by the race, which took precedence over all other work)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.race",
        description="The same sessions through one router after the other. Linux only.",
    )
    names = list(routers())
    parser.add_argument(
        "--only", nargs="+", default=[], choices=names, metavar="ROUTER", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--scenario",
        nargs="+",
        default=[],
        choices=list(_KNOWN),
        metavar="NAME",
        help=f"of {', '.join(_KNOWN)}",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="workloads, from seed 1 (default 3)"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=20.0,
        metavar="X",
        help="simulated seconds a real one, less where that makes void runs (default 20)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="S", help="begin no run that would end later; the next call goes on"
    )
    parser.add_argument(
        "--first",
        action="store_true",
        help="take precedence over other work on the machine (real-time priority; needs root)",
    )
    parser.add_argument(
        "--report", action="store_true", help="run nothing; write the tables of what is on record"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    add_programs(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
