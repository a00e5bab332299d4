"""One router after another at the same address: no connection refused, no turn lost, sessions at home."""

import asyncio
from collections import Counter

import httpx
import pytest
from support.fleet import LASTING, MODEL, fleet, words
from support.plane import until

from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.simulator.settings import ReplicaSettings
from router.wiring import Router

CHAT = "/v1/chat/completions"
RESTART = {"snapshot": "snapshot", "handover": "handover"}


def successor(running) -> Router:
    loaded = load_config(running.folder / "router.yaml")
    return Router(loaded, load_secrets(loaded, running.environ))


async def chat(client, session: str, tokens: int = 16) -> httpx.Response:
    messages = [{"role": "user", "content": words(200, session)}]
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens}
    return await client.post(CHAT, json=body, headers={"x-session-id": session})


async def homes(client, sessions) -> dict[str, tuple[str, str]]:
    found = {}
    for session in sessions:
        answer = await chat(client, session)
        found[session] = (answer.headers["x-homing-replica"], answer.headers["x-homing-decision"])
    return found


def looked_at_since(router: Router, since: float) -> bool:
    now = router.clock.now()
    ages = [status.report_age_s for status in router.engine.replicas(now)]
    return all(age is not None and age < now - since for age in ages)


async def test_a_handover_under_load_refuses_nobody_and_keeps_every_session():
    sessions = [f"s{number}" for number in range(12)]
    # Looked at often: what a replica said while the load was on must not count after it.
    async with fleet(
        3, settings=ReplicaSettings(time_scale=8.0), config={"restart": RESTART}, probe="100ms"
    ) as running:
        before = await homes(running.client, sessions)
        old, port, base = running.router, running.router.dataplane.port, running.base_url
        admin = f"http://127.0.0.1:{old.admin.port}"
        new = successor(running)
        statuses: Counter[int] = Counter()
        ready: Counter[int] = Counter()
        stop = asyncio.Event()

        async def load(number: int) -> None:
            # A connection for each turn: whether one is refused is the question.
            while not stop.is_set():
                async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
                    statuses[(await chat(client, f"load{number}", 40)).status_code] += 1

        async def balancer() -> None:
            # As one in front would: were it told no in between, it would send nothing to either.
            while not stop.is_set():
                async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                    ready[(await client.get(f"{admin}/readyz")).status_code] += 1

        clients = [asyncio.ensure_future(load(number)) for number in range(8)]
        clients.append(asyncio.ensure_future(balancer()))
        await until(lambda: statuses[200] > 20)
        # Longer than any machine takes for the handover; it is left before its end.
        endless = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **LASTING}
        try:
            async with running.client.stream("POST", CHAT, json=endless) as long:
                lines = long.aiter_lines()
                await anext(lines)
                await new.start()
                assert new.dataplane.port == port
                await until(lambda: old.succession.handed_over.is_set())
                closing = asyncio.ensure_future(old.close(300.0))
                seen = statuses[200]
                await until(lambda: statuses[200] > seen + 20)
                assert not closing.done()
                for _ in range(100):
                    assert "error" not in await anext(lines)
            stop.set()
            await asyncio.gather(*clients)
            assert set(statuses) == set(ready) == {200}
            await running.client.aclose()
            await closing
            quiet_at = new.clock.now()
            await until(lambda: looked_at_since(new, quiet_at))
            async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
                after = await homes(client, sessions)
            assert {s: replica for s, (replica, _) in after.items()} == {s: r for s, (r, _) in before.items()}
            assert {kind for _, kind in after.values()} == {"home"}
        finally:
            await new.close()


@pytest.mark.parametrize("restarted", [None, "r1"])
async def test_a_snapshot_brings_sessions_back_but_not_those_of_a_restarted_replica(restarted):
    sessions = [f"s{number}" for number in range(12)]
    async with fleet(3, config={"restart": {"snapshot": "snapshot"}}) as running:
        before = await homes(running.client, sessions)
        assert {replica for replica, _ in before.values()} == {"r0", "r1", "r2"}
        await running.client.aclose()
        await running.router.close()
        if restarted is not None:
            await running.replicas[restarted].restart()
        new = successor(running)
        try:
            await new.start()
            base_url = f"http://127.0.0.1:{new.dataplane.port}"
            async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
                after = await homes(client, sessions)
        finally:
            await new.close()
        for session, (home, _) in before.items():
            assert (after[session] == (home, "home")) == (home != restarted)


async def test_a_damaged_snapshot_is_said_and_the_router_starts_without(caplog):
    async with fleet(1, config={"restart": {"snapshot": "snapshot"}}) as running:
        assert (await chat(running.client, "s")).status_code == 200
        await running.client.aclose()
        await running.router.close()
        path = running.folder / "snapshot"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        new = successor(running)
        try:
            await new.start()
            assert "the snapshot is damaged" in caplog.text
        finally:
            await new.close()
