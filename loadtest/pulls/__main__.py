"""Prints what pulls are worth in each event, as a curve over bandwidth.

    python -m loadtest.pulls TRACE [--gbps 24,96] [--seeds 3] [--scenario NAME]...

Of the turns asked for within ten minutes of the event: the mean time to the first token without pulls, and
with pulls as a multiple of it at the same seed (median, least, most). In `calm`, of all turns.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from loadtest.pulls.scenarios import EVENT_AT_S, MEASURED_S, SCENARIOS
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


def curve(names: list[str], trace: Trace, seeds: int, bandwidths: list[float]) -> str:
    """The table."""
    # As a fleet that has been running for a while has learned.
    plan = replace(build_plan(load_policy("home").value), prefill_tokens_per_s=_SETTINGS.prefill_tps)
    rows = [["event", "without pulls", *(f"at {gbps:g} Gb/s" for gbps in bandwidths)]]
    for name in names:
        without = [play(name, trace, plan, seed, 0.0) for seed in range(seeds)]
        row = [name, f"{median(outcome.mean_s for outcome in without):.2f} s"]
        for gbps in bandwidths:
            pulled = [play(name, trace, plan, seed, gbps) for seed in range(seeds)]
            ratios = [
                after.mean_s / before.mean_s
                for before, after in zip(without, pulled, strict=True)
                if before.mean_s
            ]
            count = round(median(outcome.pulls for outcome in pulled))
            row.append(f"{median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}), {count} pulls")
        rows.append(row)
    return "\n".join(table(rows))


def main() -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m loadtest.pulls", description=summary)
    parser.add_argument("trace", type=Path, help="one session a line, as `homing replay` takes it")
    parser.add_argument("--gbps", default="24,96", help="gigabits a second, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    arguments = parser.parse_args()
    bandwidths = [float(text) for text in arguments.gbps.split(",")]
    print(
        curve(arguments.scenario or list(SCENARIOS), read_trace(arguments.trace), arguments.seeds, bandwidths)
    )


if __name__ == "__main__":
    main()
