"""Prints how the shipped policies compare at four loads, each with the first one at the same seed.

    python -m loadtest.cells TRACE [--keep FILE] [--cell NAME]... [--policy NAME]... [--seeds 7]

A row for each policy in each cell: medians, over the seeds, of the ratios to the first policy (mean and 90th
percentile of the time to the first token), of hit rate, longest time to a first token and refusals, and of
how far the median turn's cached tokens and its time to the first token were from what was expected. What is
known already is taken from the file of `--keep`, as long as neither code, trace nor policy has changed; a run
that is cut short goes on where it was. `--table` computes nothing and prints what is kept.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from loadtest.kept import Kept, digest, sources
from router.base.errors import HomingError
from router.settings.build import build_plan
from router.settings.load import load_policy
from router.simulator.replay.bound import Bound
from router.simulator.replay.figures import Figures, figures
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.reading import read_trace
from router.simulator.replay.report import table
from router.simulator.replay.trace import Trace
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings

# The replicas of the project's other figures: an accelerator with 600k tokens of KV and four times as much on
# its host.
_BLOCK: Final = 64
SETTINGS: Final = ReplicaSettings(
    block_size=_BLOCK,
    # One block is never used.
    kv_blocks=600_000 // _BLOCK + 1,
    host_kv_blocks=2_400_000 // _BLOCK,
    prefill_tps=12_000.0,
    max_model_len=600_000 // _BLOCK * _BLOCK,
)

POLICIES: Final = (
    "ring",
    "home",
    "ring-queued",
    "bounded-ring",
    "prefix",
    "least-loaded",
    "two-choices",
    "round-robin",
)
BOUND: Final = "bound"


class Cell(NamedTuple):
    """A fleet under a load."""

    replicas: int
    rate: float
    """Sessions a second."""


CELLS: Final = {
    "light": Cell(8, 0.05),
    "medium": Cell(8, 0.5),
    "very heavy": Cell(8, 2.0),
    "heavy": Cell(4, 0.5),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """What is replayed, and where figures are kept."""

    trace: Trace
    sessions: int
    kept: Kept
    of: str
    """What figures depend on beside cell, policy and seed."""

    def figures(self, cell: str, policy: str, seed: int, *, compute: bool = True) -> dict[str, float] | None:
        """One replay's, kept or made; `None` where there are none."""
        of = f"{self.of} {cell} {policy} {seed}"
        found = self.kept.find(of)
        if found is None and compute:
            found = _told(self._replay(CELLS[cell], policy, seed))
            self.kept.keep(of, found)
        return found

    def _replay(self, cell: Cell, policy: str, seed: int) -> Figures:
        selection = Selection(
            rate=cell.rate, sessions=self.sessions, max_turns=60, think_cap_s=600.0, seed=seed
        )
        workload = choose(self.trace, selection, SETTINGS.context_tokens)
        if policy == BOUND:
            measured = Bound(workload, SETTINGS, replicas=cell.replicas).run()
        else:
            plan = build_plan(load_policy(policy).value)
            measured = FleetReplay(plan, workload, SETTINGS, replicas=cell.replicas, seed=seed).run()
        return figures(measured, workload.left_out)


def _told(of: Figures) -> dict[str, float]:
    return {
        "mean_s": (of.ttft_ms["mean"] or 0.0) / 1000.0,
        "p90_s": (of.ttft_ms["p90"] or 0.0) / 1000.0,
        "max_s": (of.ttft_ms["max"] or 0.0) / 1000.0,
        "hit_rate": of.hit_rate or 0.0,
        "refused": float(of.refused),
        "cached_error": of.cached_error or 0.0,
        "ttft_error": of.ttft_error or 0.0,
    }


def compared(
    cells: Sequence[str],
    policies: Sequence[str],
    seeds: int,
    figures_of: Callable[[str, str, int], dict[str, float] | None],
) -> str:
    """The table, of the seeds of which both policies' figures are known."""
    rows = [
        ["load", "policy", "mean", "p90", "hit rate", "longest", "refused", "cached off", "TTFT off", "seeds"]
    ]
    for cell in cells:
        for policy in policies:
            pairs = [
                (one, other)
                for seed in range(seeds)
                if (one := figures_of(cell, policies[0], seed)) and (other := figures_of(cell, policy, seed))
            ]
            if not pairs:
                continue
            name = f"{cell} ({CELLS[cell].replicas} @ {CELLS[cell].rate:g})"
            of = [other for _, other in pairs]
            rows.append(
                [
                    name,
                    policy,
                    *(_against(pairs, figure, first=policy == policies[0]) for figure in ("mean_s", "p90_s")),
                    f"{median(each['hit_rate'] for each in of):.3f}",
                    f"{median(each['max_s'] for each in of):.0f} s",
                    f"{median(each['refused'] for each in of):g}",
                    f"{median(each['cached_error'] for each in of):.2%}",
                    f"{median(each['ttft_error'] for each in of):.1%}",
                    str(len(pairs)),
                ]
            )
    return "\n".join(table(rows))


def _against(pairs: Sequence[tuple[dict[str, float], dict[str, float]]], figure: str, *, first: bool) -> str:
    """The first policy's own figure, or another's as a multiple of it."""
    if first:
        return f"{median(one[figure] for one, _ in pairs):.2f} s"
    ratios = [other[figure] / one[figure] for one, other in pairs if one[figure]]
    if not ratios:
        return ""
    return f"{median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m loadtest.cells", description=summary)
    parser.add_argument("trace", type=Path, help="one session a line, as `homing replay` takes it")
    parser.add_argument("--keep", type=Path, default=Path("build/cells.jsonl"), metavar="FILE")
    parser.add_argument("--cell", action="append", choices=list(CELLS), help="default: all")
    parser.add_argument(
        "--policy", action="append", choices=[*POLICIES, BOUND], help="default: all; the first is the measure"
    )
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=200, help="drawn from the trace under each seed")
    parser.add_argument("--table", action="store_true", help="compute nothing, print what is kept")
    asked = parser.parse_args(arguments)
    cells, policies = asked.cell or list(CELLS), asked.policy or [*POLICIES, BOUND]
    try:
        asked.keep.parent.mkdir(parents=True, exist_ok=True)
        of = f"{digest(sources(asked.trace, Path(__file__), policies=POLICIES))} {asked.sessions}"
        bench = Bench(read_trace(asked.trace), asked.sessions, Kept(asked.keep), of)
        if not asked.table:
            # By seeds first: what is cut short has all policies at the same ones.
            for seed in range(asked.seeds):
                for cell in cells:
                    for policy in policies:
                        bench.figures(cell, policy, seed)
        print(
            compared(
                cells,
                policies,
                asked.seeds,
                lambda cell, policy, seed: bench.figures(cell, policy, seed, compute=False),
            )
        )
    except HomingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
