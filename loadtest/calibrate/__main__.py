"""The calibration's command line: `python -m loadtest.calibrate`. Exit status: 0 agrees, 1 not, 2 usage."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.calibrate import counts
from loadtest.calibrate.errors import CalibrateError
from loadtest.calibrate.scenarios import by_chance, rules

_TREE: Final = Path(__file__).parents[2]
_GOLDEN: Final = _TREE / "tests" / "golden" / "vllm-scheduler.jsonl.gz"
_GOLDEN_SEEDS: Final = 40


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="homing-calibrate-") as folder:
            model = _model(arguments.engine, Path(folder) / "model")
            return _counts(arguments, model)
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
        counts.write(_GOLDEN, recorded[: len(list(rules())) + _GOLDEN_SEEDS])
        print(f"written: {_GOLDEN.relative_to(_TREE)}")
    return 1 if found.differing else 0


def _model(python: Path, folder: Path) -> Path:
    script = _TREE / "tools" / "engine" / "make_model.py"
    ended = subprocess.run([python, script, folder], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise CalibrateError(f"no model could be made:\n{ended.stderr[-2000:]}")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.calibrate", description=__doc__)
    parser.add_argument(
        "--engine",
        type=Path,
        default=os.environ.get("HOMING_ENGINE", _TREE / ".venv-engine" / "bin" / "python"),
        help="the Python that has vLLM (or HOMING_ENGINE)",
    )
    parser.add_argument("--seeds", type=int, default=400, help="scripts made by chance")
    parser.add_argument(
        "--record", action="store_true", help="write the record that the tests hold the model to"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
