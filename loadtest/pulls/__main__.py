"""Prints what pulls are worth in each event, as a curve over bandwidth.

    python -m loadtest.pulls TRACE [--keep FILE] [--gbps 24,96] [--seeds 3] [--scenario NAME]...

Of the turns asked for within ten minutes of the event: the mean time to the first token without pulls, and
with pulls as a multiple of it at the same seed (median, least, most). In `calm`, of all turns. What is known
already is taken from the file of `--keep`, as long as neither code, trace nor policy has changed; a run that
is cut short goes on where it was. `--table` computes nothing and prints what is kept.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median

from loadtest.kept import Kept, digest, sources
from loadtest.pulls import scenarios
from loadtest.pulls.scenarios import EVENT_AT_S, MEASURED_S, SCENARIOS
from router.base.errors import HomingError
from router.core.plan import Plan
from router.settings.build import build_plan
from router.settings.load import load_policy
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.reading import read_trace
from router.simulator.replay.report import table
from router.simulator.replay.trace import Trace
from router.simulator.replay.workload import choose
from router.simulator.settings import ReplicaSettings

# The replicas of the project's other figures: an accelerator with 600k tokens of KV and four times as much on
# its host.
_BLOCK = 64
_POLICY = "home"
_SETTINGS = ReplicaSettings(
    block_size=_BLOCK,
    # One block is never used.
    kv_blocks=600_000 // _BLOCK + 1,
    host_kv_blocks=2_400_000 // _BLOCK,
    prefill_tps=12_000.0,
    max_model_len=600_000 // _BLOCK * _BLOCK,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay of one scenario."""

    mean_s: float
    pulls: int
    pulled_tokens: int


def play(name: str, trace: Trace, plan: Plan, seed: int, gbps: float) -> Outcome:
    """Replay a scenario, from its beginning to ten minutes after its event."""
    scenario = SCENARIOS[name](trace, seed)
    workload = choose(scenario.trace, scenario.selection, _SETTINGS.context_tokens)
    begins, ends = (0.0, EVENT_AT_S) if name == "calm" else (EVENT_AT_S, EVENT_AT_S + MEASURED_S)
    replay = FleetReplay(
        plan,
        workload,
        _SETTINGS,
        replicas=scenario.replicas,
        seed=seed,
        pull_gbps=gbps,
        gateway_tokens=scenario.gateway_tokens,
        events=scenario.events,
    )
    # Whoever asked within the time may still wait at its end.
    measured = replay.run(until_s=ends + MEASURED_S)
    asked = [
        seconds for seconds, at in zip(measured.ttft_s, measured.asked_s, strict=True) if begins <= at < ends
    ]
    return Outcome(mean(asked) if asked else 0.0, measured.pulled, measured.pulled_tokens)


def curve(
    names: Sequence[str],
    seeds: int,
    bandwidths: Sequence[float],
    outcome_of: Callable[[str, int, float], Outcome | None],
) -> str:
    """The table, of the seeds of which both outcomes are known."""
    rows = [["event", "without pulls", *(f"at {gbps:g} Gb/s" for gbps in bandwidths), "seeds"]]
    for name in names:
        without = {seed: one for seed in range(seeds) if (one := outcome_of(name, seed, 0.0)) is not None}
        if not without:
            continue
        row = [name, f"{median(one.mean_s for one in without.values()):.2f} s"]
        for gbps in bandwidths:
            pairs = [
                (before, after)
                for seed, before in without.items()
                if (after := outcome_of(name, seed, gbps)) is not None and before.mean_s
            ]
            if not pairs:
                row.append("")
                continue
            ratios = [after.mean_s / before.mean_s for before, after in pairs]
            count = round(median(after.pulls for _, after in pairs))
            row.append(f"{median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}), {count} pulls")
        rows.append([*row, str(len(without))])
    return "\n".join(table(rows))


def main(arguments: Sequence[str] | None = None) -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m loadtest.pulls", description=summary)
    parser.add_argument("trace", type=Path, help="one session a line, as `homing replay` takes it")
    parser.add_argument("--keep", type=Path, default=Path("build/pulls.jsonl"), metavar="FILE")
    parser.add_argument("--gbps", default="24,96", help="gigabits a second, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    parser.add_argument(
        "--known", action="store_true", help="the policy's pull.seed_gbps is what paths really carry"
    )
    parser.add_argument("--table", action="store_true", help="compute nothing, print what is kept")
    asked = parser.parse_args(arguments)
    bandwidths = [float(text) for text in asked.gbps.split(",")]
    names = asked.scenario or list(SCENARIOS)
    try:
        trace = read_trace(asked.trace)
        asked.keep.parent.mkdir(parents=True, exist_ok=True)
        kept = Kept(asked.keep)
        made_by = sources(asked.trace, Path(__file__), Path(scenarios.__file__), policies=[_POLICY])
        of = digest(made_by)
        # As a fleet that has been running for a while has learned.
        plan = replace(build_plan(load_policy(_POLICY).value), prefill_tokens_per_s=_SETTINGS.prefill_tps)

        def outcome(name: str, seed: int, gbps: float, *, compute: bool = False) -> Outcome | None:
            is_known = asked.known and gbps > 0.0
            which = f"{of} {name} {seed} {gbps:g}{' known' if is_known else ''}"
            figures = kept.find(which)
            if figures is not None:
                return Outcome(figures["mean_s"], int(figures["pulls"]), int(figures["pulled_tokens"]))
            if not compute:
                return None
            informed = replace(plan, pull=replace(plan.pull, seed_gbps=gbps)) if is_known else plan
            made = play(name, trace, informed, seed, gbps)
            kept.keep(which, asdict(made))
            return made

        # By seeds first: what is cut short has all events at the same ones.
        for seed in range(0 if asked.table else asked.seeds):
            for name in names:
                for gbps in (0.0, *bandwidths):
                    outcome(name, seed, gbps, compute=True)
        print(curve(names, asked.seeds, bandwidths, outcome))
    except HomingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
