"""The bench's command line: `python -m loadtest.bench`. Exit status: 0 measured, 1 not, 2 usage."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from loadtest.bench import machine, report
from loadtest.bench.command import RESULTS, TREE, Command, add_programs, date, program_places
from loadtest.bench.contenders import OURS, TRACED, YARDSTICK, Contender, contenders
from loadtest.bench.figures import summarise
from loadtest.bench.loads import LOADS
from loadtest.bench.rounds import Bench, Entrant

_COMMAND: Final = Command("bench")
_ROUNDS: Final = 5
_QUICK_ROUNDS: Final = 2
_QUICK_FACTOR: Final = 5


class _Wanted(NamedTuple):
    name: str
    contender: Contender


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return _COMMAND.run(lambda: _bench(arguments), stopped="stopped, with all that it had started")


def _bench(arguments: argparse.Namespace) -> int:
    run = _measured(arguments)
    print(report.table(run))
    print(report.legend(run))
    whole = not arguments.only and not arguments.load and not arguments.quick
    if whole or arguments.output is not None:
        _write(run, arguments.output or RESULTS)
    return 0


def _measured(arguments: argparse.Namespace) -> report.Run:
    only = arguments.only
    wanted = [one for one in contenders().values() if (one.name in only if only else not one.on_request)]
    found, absent = _COMMAND.found(
        [_Wanted(one.name, one) for one in wanted], program_places(arguments), unpack=arguments.unpack
    )
    entrants = [Entrant(one.contender, program) for one, program in found]
    loads = [load for load in LOADS if not arguments.load or load.name in arguments.load]
    if arguments.quick:
        loads = [load.shortened(_QUICK_FACTOR) for load in loads]
    rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _ROUNDS)
    cores = machine.share_out(frozenset(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cores.rest)
    began = date()
    with (
        tempfile.TemporaryDirectory(prefix="homing-bench-") as folder,
        Bench(entrants, loads, cores, Path(folder), _COMMAND.say) as bench,
    ):
        samples = list(bench.rounds(rounds))
    # By load, then as the contenders are listed, whatever order the rounds had.
    names = [entrant.contender.name for entrant in entrants]
    yardstick = OURS if TRACED in names and YARDSTICK not in names else YARDSTICK
    places_of = {load.name: place for place, load in enumerate(loads)}
    samples.sort(key=lambda sample: (places_of[sample.load], names.index(sample.proxy), sample.round))
    return report.Run(
        date=began,
        machine=machine.describe(),
        versions=_versions(entrants),
        setups={entrant.contender.name: entrant.contender.setup for entrant in entrants},
        absent=absent,
        # Ours beside itself is held to no limit.
        ours=OURS if OURS in names and yardstick != OURS else "",
        yardstick=yardstick,
        rounds=rounds,
        loads=loads,
        figures=summarise(samples, yardstick),
        samples=samples,
    )


def _versions(entrants: Sequence[Entrant]) -> Mapping[str, str]:
    found = {one.contender.name: one.contender.version(one.found) for one in entrants}
    if commit := _commit():
        found |= {
            one.contender.name: f"{found[one.contender.name]} ({commit})"
            for one in entrants
            if one.contender.ours
        }
    return found | {
        "Python": sys.version.split()[0],
        "uvloop": version("uvloop"),
        "httptools": version("httptools"),
    }


def _commit() -> str:
    """The commit of this tree, with a mark where files differ from it; "" outside a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=TREE,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _write(run: report.Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{run.date[:10]}.json"
    path.write_bytes(
        orjson.dumps(report.document(run), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )
    path.with_suffix(".md").write_text(report.markdown(run), "utf-8")
    print(f"written: {path} and {path.with_suffix('.md').name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description="Measures what each proxy costs, all in one run on the same work. Linux only, two cores.",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"measured rounds (default {_ROUNDS})")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=list(contenders()),
        metavar="PROXY",
        help="only these proxies",
    )
    parser.add_argument(
        "--load",
        nargs="+",
        default=[],
        choices=[load.name for load in LOADS],
        metavar="LOAD",
        help="only these loads",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a fifth of the requests, {_QUICK_ROUNDS} rounds: to see that it works, not to quote",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write the results there (a whole run writes to loadtest/results without being asked)",
    )
    add_programs(parser)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError("a whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
