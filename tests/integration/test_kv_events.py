"""Beliefs that become knowledge: KV events of simulated replicas, over real ZMQ, in whole routers."""

import asyncio
from dataclasses import replace
from random import Random

import yaml
from httpx import AsyncClient
from support.fleet import fleet, words
from support.plane import until
from support.ports import free_pair

from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.simulator.events import REPLAY_PORT
from router.simulator.settings import ReplicaSettings
from router.wiring import Router

SMALL = ReplicaSettings(time_scale=40.0, kv_blocks=420, max_model_len=4096)
"""Room for some 6,700 tokens: a dozen sessions do not fit."""


def publishing(count: int, base: ReplicaSettings = SMALL):
    ports = [free_pair() for _ in range(count)]
    return [replace(base, kv_events=port) for port in ports], ports


def following(running, ports) -> None:
    """Let the config name the feeds: the replicas' own ports are not known before they run."""
    path = running.folder / "router.yaml"
    config = yaml.safe_load(path.read_text())
    for one, port in zip(config["replicas"], ports, strict=True):
        one["kv_events"] = f"tcp://127.0.0.1:{port}"
        one["kv_replay"] = f"tcp://127.0.0.1:{port + REPLAY_PORT}"
    path.write_text(yaml.safe_dump(config))


def explained(session: str):
    body = {"model": "sim-model", "messages": [{"role": "user", "content": words(300, session)}]}
    return {"body": body, "session": session}


async def follow(running, ports) -> None:
    following(running, ports)
    assert (await running.router.reloader.reload("SIGHUP")).faults == ()
    await until(lambda: all(s.live for s in running.router.feeds.status()) and running.router.feeds.status())


def all_heard(running) -> bool:
    published = sum(replica._events._next for replica in running.replicas.values())
    return sum(status.batches for status in running.router.feeds.status()) == published


async def test_what_events_say_is_what_engines_deliver_over_evictions():
    settings, ports = publishing(2)
    async with fleet(2, settings=settings, reload=True) as running:
        await follow(running, ports)
        chance = Random(3)
        talks = {f"s{number}": [{"role": "system", "content": words(200)}] for number in range(14)}
        off = []
        for _ in range(120):
            session = chance.choice(sorted(talks))
            messages = talks[session]
            messages.append({"role": "user", "content": words(80, (session, len(messages)))})
            answer = await running.chat(messages, max_tokens=24, headers={"x-session-id": session})
            assert answer.response.status_code == 200
            if sum(len(message["content"]) for message in messages) < 6000:
                messages.append(answer.message)
            else:
                talks[session] = messages[:1]
            # Events are a moment behind; turns of one session are further apart than that.
            await asyncio.sleep(0.005)
            await until(lambda: all_heard(running))
            decision = await running.decision()
            if answer.kind == "home" and len(messages) > 3:
                off.append(abs(decision["predicted_cached_tokens"] - answer.cached))
        assert len(off) > 60
        assert sum(status.restarts for status in running.router.engine.replicas(0.0)) == 0
        near = sum(tokens <= SMALL.block_size for tokens in off)
        assert near >= 0.99 * len(off), sorted(off)[-5:]


async def test_two_routers_give_a_session_the_same_home_without_talking():
    settings, ports = publishing(3, ReplicaSettings(time_scale=40.0))
    async with fleet(3, settings=settings, reload=True) as running:
        await follow(running, ports)
        loaded = load_config(running.folder / "router.yaml")
        other = Router(loaded, load_secrets(loaded, running.environ))
        await other.start()
        try:
            await until(lambda: all(status.live for status in other.feeds.status()))
            # Not where this router would place it.
            owner = (await running.admin.post("/api/explain", json=explained("y"))).json()["replica"]
            other.engine.drain(owner, True)
            body = {
                "model": "sim-model",
                "max_tokens": 8,
                "messages": [{"role": "user", "content": words(300, "y")}],
            }
            async with AsyncClient(
                base_url=f"http://127.0.0.1:{other.dataplane.port}", timeout=60, trust_env=False
            ) as client:
                placed = await client.post("/v1/chat/completions", json=body, headers={"x-session-id": "y"})
            home = placed.headers["x-homing-replica"]
            await until(lambda: sum(status.blocks for status in running.router.feeds.status()) > 15)
            turn = await running.chat(
                [
                    *body["messages"],
                    placed.json()["choices"][0]["message"],
                    {"role": "user", "content": "on"},
                ],
                headers={"x-session-id": "y"},
            )
            assert (turn.replica, turn.kind) == (home, "home")
            assert turn.cached > 250
        finally:
            await other.close()


async def test_a_feed_that_dies_shows_and_nothing_else_happens():
    settings, ports = publishing(1, ReplicaSettings(time_scale=40.0))
    async with fleet(1, settings=settings, reload=True) as running:
        await follow(running, ports)
        messages = [{"role": "user", "content": words(300, "x")}]
        assert (await running.chat(messages)).response.status_code == 200
        events = running.replicas["r0"]._events
        await events.close()
        await until(lambda: not running.router.feeds.status()[0].live)
        answer = await running.chat(messages)
        assert (answer.kind, answer.cached > 250) == ("home", True)
        [feed] = (await running.admin.get("/api/kv-events")).json()["feeds"]
        assert (feed["replica"], feed["live"], feed["why"]) == ("r0", False, "the connection was lost")
        metrics = (await running.admin.get("/metrics")).text.splitlines()
        assert 'homing_kv_feed_live{replica="r0"} 0' in metrics
        assert 'homing_kv_feed_losses_total{replica="r0"} 1' in metrics
