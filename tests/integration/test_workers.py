"""One router of several processes, as a shell and its clients see it."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.fleet import words

from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings
from router.wiring import Router as Single

HOMING = Path(sys.executable).parent / "homing"
TOKEN = {"Authorization": "Bearer t0ken"}
LONG_S = 120.0
"""A machine that is busy takes a quarter of a minute for each process that starts."""

pytestmark = pytest.mark.timeout(400)


class Router:
    """`homing serve --workers N` as a process, and a client of each of its ports."""

    def __init__(self, process: asyncio.subprocess.Process, data: str, admin: str) -> None:
        self.process = process
        self.data = httpx.AsyncClient(base_url=data, timeout=LONG_S, trust_env=False)
        self.admin = httpx.AsyncClient(base_url=admin, timeout=LONG_S, trust_env=False, headers=TOKEN)

    async def ask(self, path: str, **query: object) -> Any:
        answer = await self.admin.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def workers(self) -> list[int]:
        """The process ids of those that serve."""
        assert self.process.pid is not None
        return children_of(self.process.pid)

    async def metric(self, name: str) -> float:
        text = (await self.admin.get("/metrics")).text
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line)
        )

    async def stop(self) -> int:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LONG_S):
            return await self.process.wait()


def children_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(status[1]) == parent and status[0] != "Z":
                    found.append(int(entry.name))
    return found


async def until(true: Callable[[], Any]) -> None:
    """Wait until it is so; it may be awaitable."""
    async with asyncio.timeout(LONG_S):
        while True:
            found = true()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.05)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where routers have their temporary folders. Not in pytest's own: its path is too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="homing-test-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@asynccontextmanager
async def serve(folder: Path, workers: int = 2) -> AsyncIterator[Router]:
    process = await asyncio.create_subprocess_exec(
        HOMING, "serve", "-c", str(folder / "router.yaml"), "--workers", str(workers),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "HOMING_ADMIN_TOKEN": "t0ken"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LONG_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r": (http://\S+) -> .*; admin (http://\S+); (\d+) workers$", line.strip())
        assert found is not None, line
        assert int(found[3]) == workers
        router = Router(process, found[1], found[2])
        async with router.data, router.admin:
            yield router
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """A config with two replicas, and a snapshot and a handover to others."""
    replicas = [SimulatedReplica(ReplicaSettings(name=name, time_scale=20.0)) for name in ("a", "b")]
    for replica in replicas:
        await replica.start()
    config = {
        "version": 1,
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0"},
        "policies": ["home.yaml"],
        # What shares a machine with many tests may be silent for long, and is well all the same.
        "probe": {"timeout": "60s"},
        "restart": {"snapshot": "snapshot", "handover": "handover", "grace": "20s"},
        "replicas": [{"name": replica.settings.name, "url": replica.url} for replica in replicas],
    }
    policy = {"version": 1, "policy": "home", "strategy": "priced", "price": {"move": "1h"}}
    (tmp_path / "home.yaml").write_text(yaml.safe_dump(policy))
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(config))
    try:
        yield tmp_path
    finally:
        for replica in replicas:
            await replica.kill()


async def chat(router: Router, session: str) -> httpx.Response:
    """A turn on a connection of its own, so that any worker may get it."""
    messages = [{"role": "user", "content": words(200, session)}]
    body = {"model": "sim-model", "messages": messages, "max_tokens": 4}
    return await post(router, "/v1/chat/completions", body, {"x-session-id": session})


async def post(
    router: Router, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx.Response:
    base = router.data.base_url
    async with httpx.AsyncClient(base_url=base, timeout=LONG_S, trust_env=False) as client:
        answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def homes(router: Router, sessions: list[str]) -> dict[str, str]:
    return {session: (await chat(router, session)).headers["x-homing-replica"] for session in sessions}


async def took_turns(router: Router) -> list[int]:
    """How many turns each worker has had."""
    count = len(await router.workers())
    counts = []
    for number in range(count):
        decisions = await router.ask("/api/decisions", limit=1000, worker=number)
        counts.append(len(decisions["decisions"]))
    return counts


async def test_workers_share_address_sessions_and_responses_and_are_shown_and_ordered_as_one(folder):
    async with serve(folder) as router:
        sessions = [f"s{number}" for number in range(8)]
        at = await homes(router, sessions)
        turns = len(sessions)

        async def both_had_some() -> bool:
            nonlocal turns
            # At once, so that one worker alone cannot accept them all.
            answers = await asyncio.gather(*(chat(router, session) for session in sessions))
            turns += len(sessions)
            for session, answer in zip(sessions, answers, strict=True):
                assert answer.headers["x-homing-replica"] == at[session]
                assert answer.headers["x-homing-decision"] == "home"
            return all(await took_turns(router))

        await until(both_had_some)
        await shown_as_one(router, turns)
        await responses_are_found(router)
        await orders_reach_all(router, sessions)
        await a_stream_outlasts_sigterm(router)
        assert await router.stop() == 0


async def shown_as_one(router: Router, turns: int) -> None:
    assert sum(await took_turns(router)) == turns
    listed = await router.ask("/api/sessions")
    assert (len(listed["sessions"]), listed["total"]) == (8, 8)
    assert {each["turns"] for each in listed["sessions"]} == {turns // 8}
    assert len((await router.ask("/api/decisions", limit=1000))["decisions"]) == turns
    assert await router.metric("homing_decisions_total") == turns
    assert await router.metric("homing_workers_serving") == 2
    replicas = (await router.ask("/api/replicas"))["replicas"]
    assert sum(each["sessions"] for each in replicas) == 8
    assert (await router.ask("/api/overview"))["fleet"]["replicas"] == 2
    for decision in (await router.ask("/api/decisions", limit=10))["decisions"]:
        assert (await router.ask(f"/api/decisions/{decision['id']}"))["session"] == decision["session"]


async def responses_are_found(router: Router) -> None:
    body = {"model": "sim-model", "input": "hello", "store": True, "max_output_tokens": 4}
    stored = await post(router, "/v1/responses", body)
    more = {**body, "previous_response_id": stored.json()["id"]}
    for _ in range(8):
        answer = await post(router, "/v1/responses", more)
        assert answer.headers["x-homing-replica"] == stored.headers["x-homing-replica"]
    reasons = {each["reason"] for each in (await router.ask("/api/decisions", limit=8))["decisions"]}
    assert reasons == {"holds the response"}


async def orders_reach_all(router: Router, sessions: list[str]) -> None:
    """Also a worker that takes another's place."""
    answer = await router.admin.post("/api/replicas/a/drain")
    assert answer.json() == {"replica": "a", "draining": True}
    policy = (await router.admin.get("/api/policy")).text.replace("policy: home", "policy: mine", 1)
    assert (await router.admin.put("/api/policy", content=policy)).json()["outcome"] == "applied"
    os.kill((await router.workers())[0], signal.SIGKILL)

    async def replaced() -> bool:
        restarts = await router.metric("homing_worker_restarts_total")
        return restarts == 1 and await router.metric("homing_workers_serving") == 2

    await until(replaced)
    for number in range(2):
        replicas = (await router.ask("/api/replicas", worker=number))["replicas"]
        assert {each["name"]: each["draining"] for each in replicas} == {"a": True, "b": False}
        assert (await router.ask("/api/overview", worker=number))["policies"] == ["mine"]
        assert (await router.ask("/api/sessions", worker=number))["total"] >= len(sessions)
    assert set((await homes(router, sessions)).values()) == {"b"}
    bad = "version: 1\npolicy: x\nstrategy: nonsense\n"
    refused = await router.admin.put("/api/policy", content=bad)
    assert refused.status_code == 400
    assert "nonsense" in refused.json()["error"]["message"]
    unknown = await router.admin.get("/api/replicas?worker=7")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "bad_worker")
    router.admin.headers.pop("Authorization")
    assert (await router.admin.post("/api/replicas/a/drain")).status_code == 401
    foreign = await router.admin.get("/api/replicas", headers={"Host": "evil.example"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_host")


async def a_stream_outlasts_sigterm(router: Router) -> None:
    messages = [{"role": "user", "content": "hello"}]
    body = {
        "model": "sim-model",
        "messages": messages,
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
    }
    async with router.data.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        router.process.send_signal(signal.SIGTERM)
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"


async def test_the_next_router_takes_over_and_workers_end_with_a_parent_that_is_killed(folder, temporary):
    sessions = [f"s{number}" for number in range(6)]
    async with serve(folder, workers=2) as first:
        at = await homes(first, sessions)
        async with serve(folder, workers=3) as second:
            assert second.data.base_url == first.data.base_url
            async with asyncio.timeout(LONG_S):
                assert await first.process.wait() == 0
            assert await homes(second, sessions) == at
            workers = await second.workers()
            assert len(workers) == 3
            [left] = temporary.iterdir()
            second.process.kill()
            await until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
            assert not left.exists()


async def test_what_lies_about_of_a_router_all_of_whose_processes_were_killed_goes_with_the_next_start(
    folder, temporary
):
    async with serve(folder) as first:
        [left] = temporary.iterdir()
        workers = await first.workers()
        # So that it starts no other ones.
        first.process.send_signal(signal.SIGSTOP)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        first.process.kill()
        await first.process.wait()
        assert left.exists()
        async with serve(folder) as second:
            assert not left.exists()
            assert len(list(temporary.iterdir())) == 1
            assert await second.stop() == 0
    assert not list(temporary.iterdir())


async def test_what_workers_left_behind_is_recalled_by_a_router_without_any(folder):
    async with serve(folder) as first:
        await homes(first, ["s0", "s1", "s2"])
        assert await first.stop() == 0
    loaded = load_config(folder / "router.yaml")
    router = Single(loaded, load_secrets(loaded, {}))
    try:
        await router.start()
        assert len(router.engine.sessions(9)) == 3
    finally:
        await router.close()
