"""The calibration's command line: `python -m loadtest.calibrate`. Exit status: 0 agrees, 1 not, 2 usage."""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.bench import machine
from loadtest.calibrate import counts, times
from loadtest.calibrate.episodes import LIMITS, rounds
from loadtest.calibrate.errors import CalibrateError
from loadtest.calibrate.measure import measure, warm_up
from loadtest.calibrate.scenarios import by_chance, rules
from loadtest.calibrate.server import server

_TREE: Final = Path(__file__).parents[2]
_COUNTS: Final = _TREE / "tests" / "golden" / "vllm-scheduler.jsonl.gz"
_COUNTS_SEEDS: Final = 40
_TIMES: Final = _TREE / "tests" / "golden" / "vllm-times.json.gz"
_MODEL_NAME: Final = "Llama of 3.3 M parameters, random weights, float32"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="homing-calibrate-") as folder:
            if arguments.what == "refit":
                return _report(times.read(_TIMES)[0], record=arguments.record)
            model = _model(arguments.engine, Path(folder) / "model")
            status = 0
            if arguments.what in ("counts", "all"):
                status |= _counts(arguments, model)
            if arguments.what in ("times", "all"):
                status |= _times(arguments, model)
            return status
    except CalibrateError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1


def _counts(arguments: argparse.Namespace, model: Path) -> int:
    scripts = [*rules(), *map(by_chance, range(arguments.seeds))]
    recorded = counts.record(scripts, arguments.engine, model)
    found = counts.compare(recorded)
    print(
        f"{found.scripts} scripts, {found.requests} requests, {found.steps} steps, {found.preempted}"
        f" preempted: the model parts from vLLM's scheduler in {len(found.differing)} scripts"
    )
    for line in found.differing[:20]:
        print(line)
    if arguments.record:
        counts.write(_COUNTS, recorded[: len(list(rules())) + _COUNTS_SEEDS])
        print(f"written: {_COUNTS.relative_to(_TREE)}")
    return 1 if found.differing else 0


def _times(arguments: argparse.Namespace, model: Path) -> int:
    measurement = asyncio.run(_measurement(arguments.engine, model))
    return _report(measurement, record=arguments.record)


async def _measurement(python: Path, model: Path) -> times.Measurement:
    async with server(python, model, LIMITS) as engine:
        about = {
            "machine": "{processor}, {cores} cores".format(**machine.describe()),
            "vLLM": await engine.version(),
            "model": _MODEL_NAME,
        }
        await warm_up(engine)
        before = await engine.counters()
        measured = await measure(engine, list(rounds(0)))
        after = await engine.counters()
    totals = times.Totals(
        after.queries - before.queries, after.hits - before.hits, after.preemptions - before.preemptions
    )
    return times.Measurement(about, LIMITS, totals, tuple(measured))


def _report(measurement: times.Measurement, *, record: bool) -> int:
    differing = times.cached_differences(measurement)
    requests = sum(len(one.requests) for one in measurement.rounds)
    print(f"{requests} requests over HTTP: {len(differing)} with other cached tokens than in the model")
    for line in differing[:20]:
        print(line)
    growing = times.fit(measurement, times.GROWING)
    print(times.table(measurement, times.fit(measurement, times.CONSTANT), growing))
    if record:
        times.write(_TIMES, measurement, growing.parameters)
        print(f"written: {_TIMES.relative_to(_TREE)}")
    return 1 if differing else 0


def _model(python: Path, folder: Path) -> Path:
    script = _TREE / "tools" / "engine" / "make_model.py"
    ended = subprocess.run([python, script, folder], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise CalibrateError(f"no model could be made:\n{ended.stderr[-2000:]}")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.calibrate", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        default="all",
        choices=("all", "counts", "times", "refit"),
        help="counts: blocks and cached tokens; times: what requests take; refit: of the recorded times",
    )
    parser.add_argument(
        "--engine",
        type=Path,
        default=os.environ.get("HOMING_ENGINE", _TREE / ".venv-engine" / "bin" / "python"),
        help="the Python that has vLLM (or HOMING_ENGINE)",
    )
    parser.add_argument("--seeds", type=int, default=400, help="scripts made by chance")
    parser.add_argument("--record", action="store_true", help="write the records that the tests use")
    return parser


if __name__ == "__main__":
    sys.exit(main())
