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

from loadtest.experiment.arms import ARMS
from loadtest.experiment.simulated import Fleet, play
from loadtest.experiment.tables import arms_table, turns_table
from loadtest.experiment.workload import agent, workload


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
    fleets = [replace(fleet, seed=fleet.seed + number) for number in range(arguments.seeds)]
    items = {one.seed: workload(arguments.requests, one.seed) for one in fleets}
    print(arms_table({arm: [play(arm, items[one.seed], one) for one in fleets] for arm in ARMS}))
    print()
    alone = replace(fleet, concurrency=1)
    print(turns_table({arm: play(arm, [agent(Random(fleet.seed), "agent")], alone) for arm in ARMS}))


if __name__ == "__main__":
    main()
