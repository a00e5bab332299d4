"""The published experiment on real engines: `make engine-bench PART=experiment`.

Three engines, a KV agent beside each and a gateway, and a router in front; each arm begins with new ones, so
that none finds what another left. All share this machine's processor, where simulated replicas have their own
each: what one of them is spared, the others have. The clients are the simulated experiment's, and so are the
requests: of as many tokens, which are bytes here.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from loadtest.experiment.arms import ARMS, Arm, is_affine, mode_of
from loadtest.experiment.clients import Outcome, ask_all
from loadtest.experiment.tables import arms_table, turns_table
from loadtest.experiment.workload import Item, agent, workload
from support.real_engines import (
    ARENA_MIB,
    BLOCK,
    AgentProcess,
    GatewayProcess,
    Plan,
    Replica,
    engines,
    make_model,
    roomy,
)
from support.real_router import Router, router_before

_NAMES: Final = "abc"
_KV_TOKENS: Final = 22_000
"""Of each replica, as in the simulated experiment."""
_TOKEN_BYTES: Final = 1
_FRAMING: Final = len("_user\n__assistant\n_")
"""What the model's template puts around a message and its answer; an underscore is a token of its own."""
_ROUND_ROBIN: Final = {"strategy": "round-robin", "queue": {"order": "engine"}}
_SETTLE_S: Final = 3.0
"""For agents, router and pool to have heard of one another."""


def measure(folder: Path, requests: int, concurrency: int) -> None:
    """All arms, and one agent's turns in each, alone and before all else."""
    items = workload(requests, 0, _TOKEN_BYTES, _FRAMING)
    alone = agent(Random(0), "alone", _TOKEN_BYTES, _FRAMING)
    outcomes: dict[str, Outcome] = {}
    turns: dict[str, Outcome] = {}
    for number, arm in enumerate(ARMS):
        place = folder / f"arm-{number}"
        place.mkdir()
        with fleet(place, folder.parent / "model", arm) as (replicas, router):
            turns[arm] = play(replicas, router, [alone], 1)
            outcomes[arm] = play(replicas, router, items, concurrency)
        print(f"{arm}: {outcomes[arm].seconds:.0f} s, {len(outcomes[arm].answered)} answers", flush=True)
    print(f"three engines, {requests} requests, {concurrency} clients")
    print(arms_table({arm: [outcome] for arm, outcome in outcomes.items()}))
    print()
    print(turns_table(turns))


def play(replicas: Sequence[Replica], router: Router, items: Sequence[Item], concurrency: int) -> Outcome:
    """Have the clients ask all items of the router."""
    before = computed_tokens(replicas)
    began = time.monotonic()
    answered = asyncio.run(ask_all(router.url, "tiny", items, concurrency))
    seconds = time.monotonic() - began
    return Outcome(answered, computed_tokens(replicas) - before, seconds)


def computed_tokens(replicas: Sequence[Replica]) -> int:
    """Prompt tokens that the engines say they computed."""
    return int(sum(one.metrics().computed_tokens() for one in replicas))


@contextmanager
def fleet(folder: Path, model: Path, arm: Arm) -> Iterator[tuple[list[Replica], Router]]:
    """The engines, whose agents know the pool and one another as the arm has it, and the router."""
    # Without KV that travels there is no connector: its agent keeps what its engine has no more room for.
    travels = mode_of(arm) != "off"
    arenas = Path(tempfile.mkdtemp(prefix="homing-test-", dir=roomy(len(_NAMES) * ARENA_MIB)))
    agents = [AgentProcess(name, folder, arena_folder=arenas, mode=mode_of(arm)) for name in _NAMES]
    pool = GatewayProcess("pool", folder)
    plans = [
        Plan(name=one.name, agent=one, blocks=_KV_TOKENS // BLOCK + 1, connector={} if travels else None)
        for one in agents
    ]
    started: list[AgentProcess | GatewayProcess] = []
    try:
        for process in (pool, *agents) if travels else ():
            if isinstance(process, AgentProcess):
                process.peers = {peer.name: peer.port for peer in agents if peer is not process}
                process.pools = {pool.name: pool.port}
            process.start()
            started.append(process)
        affine = is_affine(arm)
        with (
            engines(plans, folder, make_model(model)) as made,
            router_before(folder, made, agents=affine, policy=None if affine else _ROUND_ROBIN) as router,
        ):
            time.sleep(_SETTLE_S)
            yield list(made.values()), router
    finally:
        for process in started:
            process.stop()
        shutil.rmtree(arenas)
