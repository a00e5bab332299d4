"""Simulated replicas pull as real ones do: by a signed hint, within its limits, from whoever has most."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.kv_fleet import until

from router.base.errors import SettingsError
from router.kv import messages as m
from router.kv.config import AgentConfig, GatewayConfig, Mode, Peer
from router.kv.gateway import Gateway
from router.kv.hint import sign
from router.kv.remote import Remote, dial
from router.kv.wire import Type
from router.simulator.agent import KvBeside, SimulatedAgent
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings

SECRET = b"a secret of the fleet, 32 bytes .."
BLOCK = 16
TEXT = "the same words again and again " * 128
"""About a thousand tokens."""


@asynccontextmanager
async def replicas(
    names: str = "ab",
    *,
    mode: Mode = "both",
    pools: tuple[Peer, ...] = (),
    token_bytes: int = 1000,
    **beside: Any,
) -> AsyncIterator[dict[str, SimulatedReplica]]:
    """Replicas whose agents know one another, once they are connected."""
    async with AsyncExitStack() as stack:
        made = {}
        for name in names:
            config = AgentConfig(name=name, secret=SECRET, port=0, socket=Path(), mode=mode)
            settings = ReplicaSettings(name=name, model="m", prefill_tps=1e6, kv_bytes_per_token=token_bytes)
            replica = SimulatedReplica(settings, kv=KvBeside(config=config, **beside))
            made[name] = await stack.enter_async_context(replica)
        for name, one in made.items():
            others = [Peer(name=o, host="127.0.0.1", port=made[o].kv_port) for o in names if o != name]
            one.meet([*others, *pools])
        await until(lambda: all(map(connected, made.values())))
        yield made


def agent_of(replica: SimulatedReplica) -> SimulatedAgent:
    assert replica.api.agent is not None
    return replica.api.agent


def connected(replica: SimulatedReplica) -> bool:
    return all(source.is_connected for source in agent_of(replica)._sources.values())


def figures(replica: SimulatedReplica) -> dict[str, float]:
    return agent_of(replica).figures()


async def ask(replica: SimulatedReplica, request: str, prompt: str = TEXT, **hint: Any) -> int:
    """One turn with a hint; how many of its prompt's tokens were not computed."""
    made = {
        "v": 1, "session": "s", "tenant": "", "sources": [], "epoch": 1, "stall_ms": 30_000,
        "deadline_ms": 30_000, "system_tokens": 32, "exp": int(time.time()) + 60, **hint,
    }  # fmt: skip
    secret = made.pop("secret", SECRET)
    signed = sign(made, secret=secret, replica=replica.settings.name, request=request)
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": 2,
        "kv_transfer_params": {"homing": signed},
    }
    async with httpx.AsyncClient(base_url=replica.url, timeout=50) as client:
        answer = await client.post("/v1/completions", json=body, headers={"X-Request-Id": request})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] > 900
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def full(replica: SimulatedReplica) -> int:
    """Tokens of a whole prompt's full blocks, of the replica's last request."""
    length = replica.requests[-1].prompt_tokens
    assert length is not None
    return (length - 1) // BLOCK * BLOCK


async def router_of(replica: SimulatedReplica) -> Remote:
    return await dial("127.0.0.1", replica.kv_port, secret=SECRET, name="router", role="router", max_block=1)


async def test_what_one_has_the_other_pulls() -> None:
    async with replicas() as made:
        assert await ask(made["a"], "r1") == 0
        assert await ask(made["b"], "r2", sources=["a"]) == full(made["b"]) > 900
        assert figures(made["b"])["pulled_blocks"] == full(made["b"]) // BLOCK
        assert made["b"].model.counters.computed_tokens < 100
        assert await ask(made["b"], "r3", sources=["a"]) == full(made["b"])
        assert figures(made["b"])["pulls"] == 1, "the second time it is there"


async def test_without_a_source_nothing_is_pulled() -> None:
    async with replicas() as made:
        await ask(made["a"], "r1")
        assert await ask(made["b"], "r2", sources=[]) == 0
        assert await ask(made["b"], "r3", prompt=f"x{TEXT}", sources=["nobody"]) == 0


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"secret": b"another"}, "signature"),
        ({"exp": 1}, "expired"),
        ({"v": 2}, "version"),
        ({"sources": "a"}, "malformed"),
    ],
)
async def test_a_hint_that_is_not_the_routers_is_not_followed(wrong: dict[str, Any], kind: str) -> None:
    async with replicas() as made:
        await ask(made["a"], "r1")
        assert await ask(made["b"], "r2", **{"sources": ["a"], **wrong}) == 0
        assert figures(made["b"])[f"hint:{kind}"] == 1


async def test_another_tenants_kv_is_not_there() -> None:
    async with replicas() as made:
        await ask(made["a"], "r1", tenant="one")
        assert await ask(made["b"], "r2", tenant="two", sources=["a"]) == 0


async def test_at_the_deadline_what_has_come_is_kept() -> None:
    # A million bytes a second: a second for all of it.
    async with replicas(pull_gbps=0.008) as made:
        await ask(made["a"], "r1")
        cached = await ask(made["b"], "r2", sources=["a"], deadline_ms=400)
        assert 0 < cached < full(made["b"])
        assert figures(made["b"])["ended:deadline"] == 1
        assert figures(made["b"])["pulled_blocks"] * BLOCK == cached


async def test_a_pull_that_falls_silent_ends_by_the_stall() -> None:
    async with replicas(pull_failures=1.0) as made:
        await ask(made["a"], "r1")
        cached = await ask(made["b"], "r2", sources=["a"], stall_ms=50)
        assert 0 < cached <= full(made["b"]) // 2
        assert figures(made["b"])["ended:stall"] == 1


async def test_a_source_that_dies_leaves_what_has_come() -> None:
    async with replicas(pull_gbps=0.008) as made:
        await ask(made["a"], "r1")
        turn = asyncio.ensure_future(ask(made["b"], "r2", sources=["a"]))
        await until(lambda: figures(made["b"]).get("pulls"))
        await made["a"].kill()
        assert await turn < full(made["b"])
        assert figures(made["b"])["ended:lost"] == 1


async def test_many_requests_for_one_prefix_are_one_fetch() -> None:
    async with replicas(pull_gbps=0.04) as made:
        await ask(made["a"], "r1")
        turns = [ask(made["b"], f"q{number}", sources=["a"]) for number in range(20)]
        cached = await asyncio.gather(*turns)
        assert set(cached) == {full(made["b"])}
        assert figures(made["b"])["pulls"] == 1


async def test_a_client_that_leaves_takes_its_pull_along() -> None:
    async with replicas(pull_gbps=0.001) as made:
        await ask(made["a"], "r1")
        turn = asyncio.ensure_future(ask(made["b"], "r2", sources=["a"]))
        await until(lambda: figures(made["b"]).get("pulls"))
        turn.cancel()
        await until(lambda: made["b"].in_flight == 0)
        await until(lambda: figures(made["b"]).get("ended:cancelled"))
        await until(lambda: len(made["b"].api.running.tasks) == 0)


async def test_no_pull_is_begun_without_room_or_gain() -> None:
    async with replicas() as made:
        await ask(made["a"], "r1")
        api = made["b"].api
        prospect = await agent_of(made["b"]).prospect("x", "", None, list(range(100)))
        assert prospect.blocks == 0
        assert api.running.wanted(prospect._replace(blocks=3), [1, 2, 3]) == 0, "48 tokens"
        assert api.running.wanted(prospect._replace(blocks=4), [1, 2, 3, 4]) == 4
        room = api.model.cache.free
        hashes = list(range(room))
        assert api.running.wanted(prospect._replace(blocks=room * 2 // 3 + 1), hashes) == 0
        assert api.running.wanted(prospect._replace(blocks=room * 2 // 3), hashes) == room * 2 // 3


async def test_the_router_hears_what_is_held_and_has_it_sent_ahead_and_released() -> None:
    async with replicas() as made:
        await ask(made["a"], "r1")
        blocks = full(made["a"]) // BLOCK
        router = await router_of(made["a"])
        changes = await router.call(Type.HOLDINGS, m.Holdings(b"", 0), m.Changes, 30.0)
        assert [(one.session, one.blocks >= blocks) for one in changes.held] == [("s", True)]
        assert (changes.block_tokens, changes.complete) == (BLOCK, True)
        other = await router_of(made["b"])
        wish = m.Prefetch("", "s", ["nobody", "a"], 30_000)
        done = await other.call(Type.PREFETCH, wish, m.Done, 30.0)
        assert (done.blocks >= blocks, done.reason) == (True, "done")
        assert done.size == done.blocks * BLOCK * 1000
        gone = await other.call(Type.PREFETCH, m.Prefetch("", "none", ["a"], 30_000), m.Done, 30.0)
        assert (gone.blocks, gone.reason) == (0, "gone")
        released = await other.call(Type.RELEASE, m.OfSession("", "s"), m.Done, 30.0)
        assert 0 < released.blocks < done.blocks, "its first two blocks are a system prompt's"
        router.close()
        other.close()


async def test_what_is_pushed_to_a_pool_others_pull_from_it(tmp_path: Path) -> None:
    # A pool is given a byte a block.
    config = GatewayConfig(
        name="pool", secret=SECRET, port=0, metrics_port=None, arena_folder=tmp_path, memory_bytes=10_000
    )
    gateway = Gateway(config)
    await gateway.start()
    try:
        pool = Peer(name="pool", host="127.0.0.1", port=gateway.server.port, is_pool=True)
        async with replicas(mode="push-pool", pools=(pool,)) as made:
            assert set(agent_of(made["a"])._sources) == {"pool"}
            await ask(made["a"], "r1")
            await until(lambda: len(gateway.store) >= full(made["a"]) // BLOCK)
            assert await ask(made["b"], "r2", sources=["a", "pool"]) == full(made["b"])
    finally:
        await gateway.close()


async def test_an_agent_keeps_no_more_than_it_has_room_for() -> None:
    async with AsyncExitStack() as stack:
        config = AgentConfig(
            name="a", secret=SECRET, port=0, socket=Path(), arena_bytes=70 * BLOCK * 1000, mode="off"
        )
        settings = ReplicaSettings(name="a", model="m", prefill_tps=1e6, kv_bytes_per_token=1000)
        replica = await stack.enter_async_context(SimulatedReplica(settings, kv=KvBeside(config=config)))
        for number in range(4):
            await ask(replica, f"r{number}", prompt=f"{number}{TEXT}", session=f"s{number}")
            assert 0 < figures(replica)["blocks"] <= 70


async def test_a_restarted_replica_has_an_agent_that_holds_nothing() -> None:
    async with replicas() as made:
        await ask(made["a"], "r1")
        port = made["a"].kv_port
        life = agent_of(made["a"]).life
        await made["a"].restart()
        assert made["a"].kv_port == port
        assert agent_of(made["a"]).life != life
        await until(lambda: connected(made["a"]) and connected(made["b"]))
        assert await ask(made["b"], "r2", sources=["a"]) == 0


@pytest.mark.parametrize(
    ("wrong", "field"), [({"pull_gbps": 0.0}, "pull_gbps"), ({"pull_failures": 1.5}, "pull_failures")]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float], field: str) -> None:
    config = AgentConfig(name="a", secret=SECRET, socket=Path())
    with pytest.raises(SettingsError, match=field):
        KvBeside(config=config, **wrong)  # type: ignore[arg-type]
