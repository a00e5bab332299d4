"""Prints what KV that travels is worth behind a round-robin router, and what affinity adds.

    python -m loadtest.experiment [--requests 960] [--seeds 1] [--gbps 100] [--concurrency 60]

Three simulated replicas; of the requests 20 % share a long system prompt, 40 % are turns of sessions that
call tools, 40 % are short questions of their own. Arms: `off` (nothing travels), `push-pool` (new KV is
pushed to a pool, and pulled from there), `both` (and from the other replicas), and `both` behind the router's
own policy. Then one agent of eight turns, alone. In virtual time: what else the machine does changes nothing.
"""

import argparse
import logging
from dataclasses import replace
from random import Random
from statistics import median

from loadtest.experiment.arms import ARMS, Fleet, Outcome, play
from loadtest.experiment.workload import agent, workload
from router.simulator.replay.report import table


def arms(fleet: Fleet, requests: int, seeds: int) -> str:
    """The table of the arms: medians over the seeds."""
    rows = [["arm", "TTFT p50", "p95", "hit rate", "prefill tokens", "prefill work"]]
    base: list[Outcome] = []
    for arm in ARMS:
        outcomes = [
            play(arm, workload(requests, fleet.seed + seed), replace(fleet, seed=fleet.seed + seed))
            for seed in range(seeds)
        ]
        base = base or outcomes
        work = median(
            one.computed_tokens / off.computed_tokens - 1.0 for one, off in zip(outcomes, base, strict=True)
        )
        rows.append(
            [
                arm,
                f"{median(one.ttft_s(0.5) for one in outcomes) * 1000:.0f} ms",
                f"{median(one.ttft_s(0.95) for one in outcomes) * 1000:.0f} ms",
                f"{median(one.hit_rate for one in outcomes):.0%}",
                f"{median(one.computed_tokens for one in outcomes):.0f}",
                f"{work:+.0%}",
            ]
        )
    return "\n".join(table(rows))


def one_agent(fleet: Fleet) -> str:
    """The table of one agent's eight turns, alone on the fleet."""
    item = agent(Random(fleet.seed), "agent")
    rows = [["arm", "prefill tokens", *(f"turn {turn + 1}" for turn in range(len(item.additions) + 1))]]
    for arm in ARMS:
        outcome = play(arm, [item], replace(fleet, concurrency=1))
        times = [f"{one.ttft_s * 1000:.0f} ms" for one in outcome.answered]
        rows.append([arm, f"{outcome.computed_tokens}", *times])
    return "\n".join(table(rows))


def main() -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m loadtest.experiment", description=summary)
    parser.add_argument("--requests", type=int, default=960)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--gbps", type=float, default=100.0, help="gigabits a second of each replica")
    parser.add_argument("--concurrency", type=int, default=60, help="clients")
    parser.add_argument("--prefill-tps", type=float, default=4000.0, help="prompt tokens a second")
    parser.add_argument("--kv-tokens", type=int, default=22_000, help="that a replica has room for")
    arguments = parser.parse_args()
    # An arm's end is no news.
    logging.getLogger("router").setLevel(logging.ERROR)
    fleet = Fleet(
        gbps=arguments.gbps,
        concurrency=arguments.concurrency,
        prefill_tps=arguments.prefill_tps,
        kv_tokens=arguments.kv_tokens,
        seed=arguments.seed,
    )
    print(arms(fleet, arguments.requests, arguments.seeds))
    print()
    print(one_agent(fleet))


if __name__ == "__main__":
    main()
