"""One arm of the experiment: simulated replicas with their KV agents, a pool, a router, and clients.

All of it in one process and in virtual time, over real sockets and by the real protocols.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import httpx
import orjson

from loadtest.experiment.virtual import LoopClock, VirtualLoop
from loadtest.experiment.workload import ANSWER_TOKENS, Item
from router.kv.config import AgentConfig, GatewayConfig, Mode, Peer
from router.kv.gateway import Gateway
from router.settings.credentials import Secrets
from router.settings.fields import Address
from router.settings.flags import config_from_flags
from router.simulator.agent import KvBeside
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings
from router.simulator.transfers import Transfers
from router.wiring import Router

Arm = Literal["off", "push-pool", "both", "affinity + both"]
ARMS: Final[tuple[Arm, ...]] = ("off", "push-pool", "both", "affinity + both")

_SECRET: Final = b"the secret of an experiment that has none"
_MODEL: Final = "experiment"
_POOL_BLOCKS: Final = 1 << 20
_AGENT_BYTES: Final = 64 << 30
_SETTLE_S: Final = 3.0
"""For agents, router and pool to have heard of one another."""
_RAMP_S: Final = 30.0
"""In which the clients begin, one after the other."""
_LIMIT_S: Final = 600.0


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


@dataclass(frozen=True, slots=True)
class Answered:
    """One request."""

    kind: str
    turn: int
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm measured."""

    answered: tuple[Answered, ...]
    computed_tokens: int
    """Prompt tokens that the replicas computed."""
    seconds: float
    """From the first request to the last answer."""

    @property
    def hit_rate(self) -> float:
        return sum(one.cached_tokens for one in self.answered) / sum(
            one.prompt_tokens for one in self.answered
        )

    def ttft_s(self, share: float) -> float:
        """The time to first token that so large a share of the requests stayed within."""
        times = sorted(one.ttft_s for one in self.answered)
        return times[min(len(times) - 1, int(share * len(times)))]


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
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{router.dataplane.port}",
                timeout=_LIMIT_S,
                trust_env=False,
                limits=httpx.Limits(max_connections=None),
            )
        )
        waiting = list(reversed(items))
        answered: list[Answered] = []

        async def work(starts_s: float) -> None:
            await asyncio.sleep(starts_s)
            while waiting:
                await _converse(client, waiting.pop(), answered)

        async with asyncio.TaskGroup() as group:
            for number in range(fleet.concurrency):
                starts_s = number * _RAMP_S / fleet.concurrency
                group.create_task(work(starts_s), name=f"client {number}")
        computed = sum(replica.model.counters.computed_tokens for replica in replicas)
        return Outcome(tuple(answered), computed, loop.time() - began)


async def _converse(client: httpx.AsyncClient, item: Item, answered: list[Answered]) -> None:
    """Ask an item's requests, each once the one before is answered."""
    messages = list(item.opening)
    for turn, (added, tool_s) in enumerate(zip(["", *item.additions], [0.0, *item.tools_s], strict=True), 1):
        if added:
            await asyncio.sleep(tool_s)
            messages.append({"role": "user", "content": added})
        said, one = await _ask(client, item, turn, messages)
        answered.append(one)
        messages.append({"role": "assistant", "content": said})


async def _ask(
    client: httpx.AsyncClient, item: Item, turn: int, messages: list[dict[str, str]]
) -> tuple[str, Answered]:
    loop = asyncio.get_running_loop()
    body = {
        "model": _MODEL,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ANSWER_TOKENS,
        "min_tokens": ANSWER_TOKENS,
    }
    headers = {"X-Session-ID": item.session} if item.session else {}
    began, first = loop.time(), None
    said: list[str] = []
    usage: dict[str, Any] = {}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                first = first if first is not None else loop.time()
                event = orjson.loads(line[6:])
                usage = event.get("usage") or usage
                said += [choice["delta"].get("content") or "" for choice in event["choices"]]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    ttft_s = (first or loop.time()) - began
    return "".join(said), Answered(item.kind, turn, ttft_s, usage["prompt_tokens"], cached)


@asynccontextmanager
async def _replicas(arm: Arm, fleet: Fleet) -> AsyncIterator[list[SimulatedReplica]]:
    """The replicas, whose agents know the pool and one another as the arm has it."""
    mode: Mode = "both" if arm.endswith("both") else "push-pool" if arm == "push-pool" else "off"
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
    """Round-robin, which knows nothing of KV; or the router's own policy, which hints where to pull from."""
    is_affine = arm == "affinity + both"
    loaded = config_from_flags(
        [one.url for one in replicas],
        policy="home" if is_affine else "round-robin",
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
    )
    secrets = Secrets()
    if is_affine:
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
