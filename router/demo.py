"""`homing demo`: three simulated replicas, the router, and agent sessions whose turns go home."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import httpx
import orjson

from router.base.errors import HomingError
from router.explain import table
from router.settings.credentials import Secrets
from router.settings.flags import config_from_flags
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings
from router.wiring import Router

_SESSIONS: Final = 6
_TURNS: Final = 4
_REPLICAS: Final = 3
_MODEL: Final = "demo-model"

# After this turn a replica is killed, so that what happens to its sessions can be seen.
_KILL_AFTER: Final = 2

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
        replicas = [
            await stack.enter_async_context(
                SimulatedReplica(ReplicaSettings(name=f"sim-{number}", model=_MODEL))
            )
            for number in range(_REPLICAS)
        ]
        urls = [replica.url for replica in replicas]
        router = await stack.enter_async_context(_running_router(urls, (_USUAL, _ANY) if keep else (_ANY,)))
        data = f"http://127.0.0.1:{router.dataplane.port}"
        admin = f"http://127.0.0.1:{router.admin.port}"
        print(f"{_REPLICAS} simulated vLLM replicas ({_MODEL}); router {data}; admin {admin}")
        print(
            f"{_SESSIONS} agent sessions of {_TURNS} turns, all at once; after turn {_KILL_AFTER} one replica"
            " is killed\n",
            flush=True,
        )
        rows: list[_Row] = []
        async with httpx.AsyncClient(base_url=data, timeout=60.0, trust_env=False) as client:
            agents = [_Agent(client, f"agent-{number + 1}") for number in range(_SESSIONS)]
            for turn in range(1, _TURNS + 1):
                rows += await asyncio.gather(*(agent.take_turn(turn) for agent in agents))
                if turn == _KILL_AFTER:
                    victim = rows[-1].replica
                    await replicas[int(victim.removeprefix("r"))].kill()
        rows.sort(key=lambda row: (row.session, row.turn))
        print(_report(rows, victim))
        if keep and not stop.is_set():
            await replicas[int(victim.removeprefix("r"))].restart()
            print(f"\nstill running: base URL {data}/v1, model {_MODEL}; {victim} is back; Ctrl-C stops it")
            print(f"admin {admin}; its token for writes: {router.admin.token}", flush=True)
            await stop.wait()
    return 0


@asynccontextmanager
async def _running_router(urls: Sequence[str], choices: Sequence[tuple[str, str]]) -> AsyncIterator[Router]:
    """The real router, on the first pair of addresses (data, admin) that is free."""
    router = await _start(urls, choices)
    try:
        yield router
    finally:
        await router.close()


async def _start(urls: Sequence[str], choices: Sequence[tuple[str, str]]) -> Router:
    for number, (listen, admin) in enumerate(choices, start=1):
        router = Router(config_from_flags(urls, listen=listen, admin=admin), Secrets())
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


def _report(rows: Sequence[_Row], victim: str) -> str:
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
    moved = sum(row.kind == "failover" for row in rows)
    hit = sum(row.cached_tokens for row in rows) / sum(row.prompt_tokens for row in rows)
    return (
        f"{table(header, cells)}\n\n"
        f"Mean time to first token: first turns {_mean_ttft(cold):.0f} ms, at home {_mean_ttft(home):.0f} ms."
        f" {victim} was killed after turn {_KILL_AFTER}: {moved} turns failed over, none was lost."
        f" Prompt tokens from cache: {hit:.0%}."
    )


def _mean_ttft(rows: Sequence[_Row]) -> float:
    return sum(row.ttft_ms for row in rows) / len(rows) if rows else 0.0
