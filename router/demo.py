"""`homing demo`: simulated replicas with KV agents, the router, and agent sessions whose turns go home."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import httpx
import orjson

from router.base.errors import HomingError
from router.base.ids import ReplicaId
from router.core.session import Session
from router.explain import table
from router.kv.config import AgentConfig, Peer
from router.settings.credentials import Secrets
from router.settings.fields import Address
from router.settings.flags import config_from_flags
from router.simulator.agent import KvBeside
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings
from router.wiring import Router

_SESSIONS: Final = 6
_TURNS: Final = 5
_REPLICAS: Final = 3
_MODEL: Final = "demo-model"
_AGENT_BYTES: Final = 64 << 30
"""What each KV agent holds; simulated ones take no memory for it."""

# After this turn a replica is drained, as before an upgrade: its sessions go on elsewhere with their KV.
_DRAIN_AFTER: Final = 2
# After this one another is killed, and its KV is lost.
_KILL_AFTER: Final = 3

# What agents tell the router once a second is waited for before the drain, for 20 s at most.
_LOOK_S: Final = 0.05
_LOOKS: Final = 400

# Long enough that a cold prompt can be told from a warm one at a glance.
_SYSTEM: Final = "You are a careful coding agent. Read before you write. " * 90
_FILE: Final = "def area(width, height):\n    return width * height\n\n" * 220
_NEW_LINES: Final = "assert area(2, 3) == 6\n" * 30

_USUAL: Final = ("127.0.0.1:8080", "127.0.0.1:9090")
_ANY: Final = ("127.0.0.1:0", "127.0.0.1:0")


@dataclass(frozen=True, slots=True)
class _Row:
    """One turn, as its client saw it."""

    session: str
    turn: int
    replica: str
    kind: str
    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int


async def run_demo(*, keep: bool, stop_event: Callable[[], asyncio.Event]) -> int:
    """Run it and print what happened; with `keep`, stay up until `stop_event()` is set."""
    stop = stop_event()
    async with AsyncExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        secret = secrets.token_bytes(32)
        replicas = [await stack.enter_async_context(_replica(number, secret)) for number in range(_REPLICAS)]
        for one in replicas:
            one.meet([_peer(other) for other in replicas if other is not one])
        choices = (_USUAL, _ANY) if keep else (_ANY,)
        router = await stack.enter_async_context(_running_router(replicas, secret, choices))
        # When all end, one after the other, that one hangs up on the others is no news.
        stack.callback(logging.disable, logging.WARNING)
        data = f"http://127.0.0.1:{router.dataplane.port}"
        admin = f"http://127.0.0.1:{router.admin.port}"
        print(f"{_REPLICAS} simulated vLLM replicas ({_MODEL}); router {data}; dashboard {admin}/")
        print(
            f"{_SESSIONS} agent sessions of {_TURNS} turns, all at once; after turn {_DRAIN_AFTER} one"
            f" replica is drained, after turn {_KILL_AFTER} another is killed\n",
            flush=True,
        )
        rows: list[_Row] = []
        async with httpx.AsyncClient(base_url=data, timeout=60.0, trust_env=False) as client:
            agents = [_Agent(client, f"agent-{number + 1}") for number in range(_SESSIONS)]
            for turn in range(1, _TURNS + 1):
                rows += await asyncio.gather(*(agent.take_turn(turn) for agent in agents))
                if turn == _DRAIN_AFTER:
                    await _all_told(router)
                    drained = rows[-1].replica
                    router.engine.drain(ReplicaId(drained), True)
                if turn == _KILL_AFTER:
                    router.engine.drain(ReplicaId(drained), False)
                    victim = next(row.replica for row in reversed(rows) if row.replica != drained)
                    await replicas[int(victim.removeprefix("r"))].kill()
        rows.sort(key=lambda row: (row.session, row.turn))
        print(_report(rows, drained, victim))
        if keep and not stop.is_set():
            await replicas[int(victim.removeprefix("r"))].restart()
            print(f"\nstill running: base URL {data}/v1, model {_MODEL}; {victim} is back; Ctrl-C stops it")
            print(
                f"dashboard {admin}/; its token for what changes anything: {router.admin.token}", flush=True
            )
            await stop.wait()
    return 0


def _replica(number: int, secret: bytes) -> SimulatedReplica:
    """A replica with its KV agent, which is called what the router calls the replica."""
    config = AgentConfig(name=f"r{number}", secret=secret, port=0, socket=Path(), arena_bytes=_AGENT_BYTES)
    settings = ReplicaSettings(name=f"sim-{number}", model=_MODEL)
    return SimulatedReplica(settings, kv=KvBeside(config=config))


def _peer(replica: SimulatedReplica) -> Peer:
    name = replica.settings.name.replace("sim-", "r")
    return Peer(name=name, host="127.0.0.1", port=replica.kv_port)


async def _all_told(router: Router) -> None:
    """Wait until every session's KV agent has told the router that it holds it."""
    engine = router.engine

    def is_told(session: Session) -> bool:
        return any(
            place.told_by == "agent" and place.tokens > session.resident_tokens / 2
            for place in engine.whereabouts(session.key)
        )

    for _ in range(_LOOKS):
        if all(map(is_told, engine.sessions(_SESSIONS))):
            return
        await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def _running_router(
    replicas: Sequence[SimulatedReplica], secret: bytes, choices: Sequence[tuple[str, str]]
) -> AsyncIterator[Router]:
    """The real router, on the first pair of addresses (data, admin) that is free."""
    router = await _start(replicas, secret, choices)
    try:
        yield router
    finally:
        await router.close()


async def _start(
    replicas: Sequence[SimulatedReplica], secret: bytes, choices: Sequence[tuple[str, str]]
) -> Router:
    for number, (listen, admin) in enumerate(choices, start=1):
        loaded = config_from_flags([one.url for one in replicas], listen=listen, admin=admin)
        with_agents = tuple(
            each.model_copy(update={"kv_agent": Address("127.0.0.1", one.kv_port)})
            for each, one in zip(loaded.value.replicas, replicas, strict=True)
        )
        config = loaded.value.model_copy(update={"replicas": with_agents})
        router = Router(replace(loaded, value=config), Secrets(secret=secret))
        try:
            await router.start()
        except HomingError:
            await router.close()
            if number == len(choices):
                raise
        else:
            return router
    raise ValueError("no addresses to choose from")


class _Agent:
    """A client that sends its whole history with each turn, as agents do."""

    def __init__(self, client: httpx.AsyncClient, session: str) -> None:
        self._client = client
        self._session = session
        self._messages: list[dict[str, str]] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": f"I am {session}. Please review this file.\n{_FILE}"},
        ]

    async def take_turn(self, turn: int) -> _Row:
        """Send the conversation, read the streamed answer, and add both sides to the history."""
        body = {
            "model": _MODEL,
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 24,
        }
        text: list[str] = []
        usage: dict[str, Any] = {}
        ttft_s: float | None = None
        sent = perf_counter()
        async with self._client.stream(
            "POST", "/v1/chat/completions", json=body, headers={"X-Session-ID": self._session}
        ) as response:
            if response.status_code != 200:
                raise HomingError((await response.aread()).decode())
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                if ttft_s is None:
                    ttft_s = perf_counter() - sent
                event = orjson.loads(line[6:])
                usage = event.get("usage") or usage
                text += [choice["delta"].get("content") or "" for choice in event["choices"]]
            headers = response.headers
        self._messages.append({"role": "assistant", "content": "".join(text)})
        self._messages.append({"role": "user", "content": f"Tool result {turn}:\n{_NEW_LINES}"})
        return _Row(
            self._session,
            turn,
            headers["x-homing-replica"],
            headers["x-homing-decision"],
            (ttft_s or 0.0) * 1000,
            usage["prompt_tokens"],
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )


def _report(rows: Sequence[_Row], drained: str, victim: str) -> str:
    """The turns as a table, and what they come to."""
    header = ("session", "turn", "replica", "kind", "TTFT ms", "prompt", "cached")
    cells = [
        (
            row.session if row.turn == 1 else "",
            str(row.turn),
            row.replica,
            row.kind,
            f"{row.ttft_ms:.0f}",
            str(row.prompt_tokens),
            str(row.cached_tokens),
        )
        for row in rows
    ]
    home = [row for row in rows if row.kind == "home"]
    cold = [row for row in rows if row.kind == "new"]
    pulled = [row for row in rows if row.kind == "pull"]
    moved = sum(row.kind == "failover" for row in rows)
    hit = sum(row.cached_tokens for row in rows) / sum(row.prompt_tokens for row in rows)
    return (
        f"{table(header, cells)}\n\n"
        f"Mean time to first token: first turns {_mean_ttft(cold):.0f} ms, at home {_mean_ttft(home):.0f} ms,"
        f" pulled {_mean_ttft(pulled):.0f} ms."
        f" {drained} was drained after turn {_DRAIN_AFTER}, {victim} killed after turn {_KILL_AFTER}:"
        f" {_turns(len(pulled))} pulled KV from another replica, {_turns(moved)} failed over, none was lost."
        f" Prompt tokens from cache: {hit:.0%}."
    )


def _turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"


def _mean_ttft(rows: Sequence[_Row]) -> float:
    return sum(row.ttft_ms for row in rows) / len(rows) if rows else 0.0
