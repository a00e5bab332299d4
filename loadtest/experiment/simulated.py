"""One arm of the experiment: simulated replicas with their KV agents, a pool, a router, and clients.

All of it in one process and in virtual time, over real sockets and by the real protocols.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from loadtest.experiment.arms import Arm, is_affine, mode_of
from loadtest.experiment.clients import Outcome, ask_all
from loadtest.experiment.virtual import LoopClock, VirtualLoop
from loadtest.experiment.workload import Item
from router.kv.config import AgentConfig, GatewayConfig, Peer
from router.kv.gateway import Gateway
from router.settings.credentials import Secrets
from router.settings.fields import Address
from router.settings.flags import config_from_flags
from router.simulator.agent import KvBeside
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings
from router.simulator.transfers import Transfers
from router.wiring import Router

_SECRET: Final = b"the secret of an experiment that has none"
_MODEL: Final = "experiment"
_POOL_BLOCKS: Final = 1 << 20
_AGENT_BYTES: Final = 64 << 30
_SETTLE_S: Final = 3.0
"""For agents, router and pool to have heard of one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the arms have in common."""

    replicas: int = 3
    prefill_tps: float = 4000.0
    decode_tps: float = 50.0
    kv_tokens: int = 22_000
    gbps: float = 100.0
    concurrency: int = 60
    seed: int = 0


def play(arm: Arm, items: Sequence[Item], fleet: Fleet) -> Outcome:
    """Run one arm to its end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_play(arm, items, fleet))


async def _play(arm: Arm, items: Sequence[Item], fleet: Fleet) -> Outcome:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with AsyncExitStack() as stack:
        replicas = await stack.enter_async_context(_replicas(arm, fleet))
        router = await stack.enter_async_context(_router(arm, replicas, fleet))
        await asyncio.sleep(_SETTLE_S)  # dialling asks other threads for addresses: in real time
        loop.skip()
        began = loop.time()
        answered = await ask_all(
            f"http://127.0.0.1:{router.dataplane.port}", _MODEL, items, fleet.concurrency
        )
        computed = sum(replica.model.counters.computed_tokens for replica in replicas)
        return Outcome(answered, computed, loop.time() - began)


@asynccontextmanager
async def _replicas(arm: Arm, fleet: Fleet) -> AsyncIterator[list[SimulatedReplica]]:
    """The replicas, whose agents know the pool and one another as the arm has it."""
    mode = mode_of(arm)
    async with AsyncExitStack() as stack:
        gateway = Gateway(
            # A simulated block is one byte.
            GatewayConfig(name="pool", secret=_SECRET, port=0, metrics_port=None, memory_bytes=_POOL_BLOCKS)
        )
        await gateway.start()
        stack.push_async_callback(gateway.close)
        transfers = Transfers(fleet.gbps)
        made: list[SimulatedReplica] = []
        for number in range(fleet.replicas):
            name = f"r{number}"
            settings = ReplicaSettings(
                name=name,
                model=_MODEL,
                prefill_tps=fleet.prefill_tps,
                decode_tps=fleet.decode_tps,
                kv_blocks=fleet.kv_tokens // 16 + 1,
            )
            config = AgentConfig(
                name=name, secret=_SECRET, port=0, socket=Path(), arena_bytes=_AGENT_BYTES, mode=mode
            )
            beside = KvBeside(config=config, transfers=transfers, seed=fleet.seed)
            # Without KV that travels there is no agent: one keeps what its engine has no more room for.
            replica = SimulatedReplica(settings, kv=None if mode == "off" else beside)
            made.append(await stack.enter_async_context(replica))
        pool = Peer(name="pool", host="127.0.0.1", port=gateway.server.port, is_pool=True)
        for one in made:
            others = [
                Peer(name=other.settings.name, host="127.0.0.1", port=other.kv_port)
                for other in made
                if other is not one
            ]
            one.meet([*others, pool])
        yield made


@asynccontextmanager
async def _router(arm: Arm, replicas: Sequence[SimulatedReplica], fleet: Fleet) -> AsyncIterator[Router]:
    loaded = config_from_flags(
        [one.url for one in replicas],
        policy="home" if is_affine(arm) else "round-robin",
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
    )
    secrets = Secrets()
    if is_affine(arm):
        secrets = Secrets(secret=_SECRET)
        with_agents = tuple(
            each.model_copy(update={"kv_agent": Address("127.0.0.1", one.kv_port)})
            for each, one in zip(loaded.value.replicas, replicas, strict=True)
        )
        loaded = replace(loaded, value=loaded.value.model_copy(update={"replicas": with_agents}))
    clock = LoopClock(asyncio.get_running_loop())
    router = Router(loaded, secrets, clock=clock, rng=Random(fleet.seed))
    await router.start()
    try:
        yield router
    finally:
        await router.close()
