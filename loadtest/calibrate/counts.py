"""Blocks and cached tokens: the model beside vLLM's own scheduler, step by step, on the same scripts."""

import gzip
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.calibrate.errors import CalibrateError
from loadtest.calibrate.script import Record, Script, differences, from_line, to_line
from loadtest.calibrate.simulated import SimulatedScheduler

_NOTHING = Record((), 0, 0)


class Comparison(NamedTuple):
    """What was compared, and what differs."""

    scripts: int
    requests: int
    steps: int
    preempted: int
    differing: tuple[str, ...]
    """A line a script: its name and the fields of the first step that differs."""


def record(scripts: Sequence[Script], python: Path, model: Path) -> list[tuple[Script, Record]]:
    """What vLLM does with them. `python` has vLLM, `model` is a folder with a model's configuration."""
    tree = Path(__file__).parents[2]
    ended = subprocess.run(
        [python, "-m", "loadtest.calibrate.vllm_scheduler", model],
        input="".join(to_line(script, _NOTHING) + "\n" for script in scripts),
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
    )
    if ended.returncode != 0:
        raise CalibrateError(f"vLLM's scheduler ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    return [from_line(line) for line in ended.stdout.splitlines()]


def compare(recorded: Sequence[tuple[Script, Record]]) -> Comparison:
    differing = []
    for script, real in recorded:
        found = differences(real, SimulatedScheduler(script.limits).run(script))
        if found:
            listed = ", ".join(f"{field}: {said}" for field, said in found.items())
            differing.append(f"{script.name}: {listed}")
    steps = [step for _, real in recorded for step in real.steps]
    return Comparison(
        len(recorded),
        sum(len(tick.submits) for script, _ in recorded for tick in script.ticks),
        len(steps),
        sum(len(step.preempted) for step in steps),
        tuple(differing),
    )


def write(path: Path, recorded: Sequence[tuple[Script, Record]]) -> None:
    """The same bytes for the same records."""
    lines = "".join(to_line(script, real) + "\n" for script, real in recorded)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read(path: Path) -> Iterator[tuple[Script, Record]]:
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        yield from_line(line)
