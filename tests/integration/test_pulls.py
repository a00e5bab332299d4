"""A router in front of replicas with KV agents: what it knows of them, and what it asks of them."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support import fleet as fleets
from support.fleet import Fleet
from support.kv import NAMESPACE, chain, content
from support.kv_fleet import Engine, peer
from support.kv_fleet import Fleet as KvFleet
from support.plane import until

from router.base.ids import ReplicaId
from router.kv.agent import Agent
from router.kv.hint import Hint, HintFault, HintReader
from router.simulator.settings import ReplicaSettings

SECRET = b"a-secret-of-the-tests-0123456789abcdef"
"""The router's, in `support.fleet`."""

SLOW = ReplicaSettings(time_scale=4.0)
"""A prompt of 5,000 tokens takes 150 ms: more than what is sent between two agents on a busy machine."""


def long(session: str) -> list[dict[str, str]]:
    """A prompt of some 5,000 tokens that begins as no other session's does."""
    return [
        {"role": "system", "content": f"{session}: " + "be brief " * 100},
        {"role": "user", "content": "word " * 4000},
    ]


class Pair:
    """Replicas r0 and r1 with an agent and a little engine each, and the router."""

    def __init__(self, fleet: Fleet, agents: dict[str, Agent], engines: dict[str, Engine]) -> None:
        self.fleet = fleet
        self.agents = agents
        self.engines = engines

    def other(self, name: str) -> str:
        return "r1" if name == "r0" else "r0"

    async def save(self, name: str, count: int, *, tenant: str = "", session: str | None = None) -> list[Any]:
        """The engine beside `name` keeps the session's blocks, as the connector does after a turn."""
        if session is None:
            session = self.body(name)[1].headers["x-session-id"]
        hashes = chain("x", count)
        await self.engines[name].save(hashes, tenant=tenant, session=session)
        await self.known(name, session, count)
        return hashes

    async def known(self, name: str, session: str, blocks: int) -> None:
        holdings = self.fleet.router.holdings
        await until(lambda: (holdings.tokens(ReplicaId(name), session) or 0) >= blocks * NAMESPACE.block_size)

    def body(self, name: str) -> tuple[dict[str, Any], Any]:
        """What the replica got last."""
        _, record = self.fleet.records(name)[-1]
        return json.loads(record.body), record

    def hint(self, name: str) -> Hint:
        """The hint that the replica got last, as its agent would read it."""
        body, record = self.body(name)
        reader = HintReader(secret=SECRET, replica=name)
        raw = body["kv_transfer_params"]["homing"]
        return reader.read(raw, f"chatcmpl-{record.headers['x-request-id']}", time.time())

    async def drain(self, name: str) -> None:
        answer = await self.fleet.admin.post(f"/api/replicas/{name}/drain", json={"on": True})
        assert answer.status_code == 200


@asynccontextmanager
async def pair(**wishes: Any) -> AsyncIterator[Pair]:
    kv = KvFleet()
    try:
        size = 1024 * NAMESPACE.block_bytes
        first = await kv.agent("r0", arena_bytes=size, secret=SECRET)
        second = await kv.agent("r1", arena_bytes=size, secret=SECRET, peers=[peer("r0", first)])
        engines = {
            "r0": await kv.engine(first, slots_wanted=512),
            "r1": await kv.engine(second, slots_wanted=512),
        }
        addresses = {name: f"127.0.0.1:{a.server.port}" for name, a in (("r0", first), ("r1", second))}
        async with fleets.fleet(2, kv_agents=addresses, settings=SLOW, **wishes) as fleet:
            await until(lambda: not any(fleet.router.kv_agents.faults().values()))
            yield Pair(fleet, {"r0": first, "r1": second}, engines)
    finally:
        await kv.close()


async def at_home_on_r0(pair: Pair, **more: Any) -> str:
    """A session whose home is r0; its id."""
    for number in range(64):
        session = f"s{number}"
        answer = await pair.fleet.chat(long(session), headers={"x-session-id": session, **more})
        if answer.replica == "r0":
            return session
    raise AssertionError("no session went to r0")


async def test_a_session_whose_home_drains_is_pulled_to_where_it_goes() -> None:
    async with pair() as at:
        session = await at_home_on_r0(at)
        hashes = await at.save("r0", 300)
        assert at.hint("r0").sources == ()
        await at.drain("r0")
        follow = [
            *long(session),
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "and?"},
        ]
        answer = await at.fleet.chat(follow, headers={"x-session-id": session})
        assert (answer.replica, answer.kind) == ("r1", "pull")
        hint = at.hint("r1")
        assert hint.sources == ("r0",)
        decision = await at.fleet.decision()
        assert decision["kind"] == "pull"
        # The agent beside r1 follows it, and the engine gets what the other one computed.
        body, record = at.body("r1")
        request, found = await at.engines["r1"].ask(
            hashes,
            tenant="",
            hint=body["kv_transfer_params"]["homing"],
            request=f"chatcmpl-{record.headers['x-request-id']}-0a1b2c3d",
        )
        assert (found.blocks, found.reason) == (300, "")
        blocks, end = await at.engines["r1"].load(request, 300)
        assert end.reason == "done"
        assert blocks == [content(hash_, NAMESPACE.block_bytes) for hash_ in hashes]


async def test_a_hint_says_whose_the_turn_is_and_what_sessions_share() -> None:
    keys = {"key-of-acme": "acme"}
    async with pair(keys=keys) as at:
        headers = {"authorization": "Bearer key-of-acme"}
        await at_home_on_r0(at, **headers)
        hint = at.hint("r0")
        body, record = at.body("r0")
        assert hint.session == record.headers["x-session-id"]
        assert hint.tenant == body["cache_salt"] != ""
        # 900 bytes of 20,900, in tokens.
        assert 150 < hint.system_tokens < 500


async def test_a_hint_is_good_for_its_request_and_replica_only() -> None:
    async with pair() as at:
        await at_home_on_r0(at)
        raw = at.body("r0")[0]["kv_transfer_params"]["homing"]
        with pytest.raises(HintFault):
            HintReader(secret=SECRET, replica="r0").read(raw, "chatcmpl-another", time.time())
        with pytest.raises(HintFault):
            HintReader(secret=SECRET, replica="r1").read(
                raw, at.body("r0")[1].headers["x-request-id"], time.time()
            )


async def test_what_a_client_says_of_transfers_is_cut_out() -> None:
    async with pair() as at:
        mine = {"homing": {"v": 1, "sources": ["evil"]}}
        await at.fleet.chat(long("a"), kv_transfer_params=mine, headers={"x-session-id": "a"})
        name, record = at.fleet.records()[-1]
        assert record.body.count(b"kv_transfer_params") == 1
        assert at.hint(name).sources == ()


async def test_nothing_is_pulled_from_an_agent_that_is_gone() -> None:
    async with pair() as at:
        session = await at_home_on_r0(at)
        await at.save("r0", 300)
        await at.agents["r0"].close()
        await until(lambda: bool(at.fleet.router.kv_agents.faults()[ReplicaId("r0")]))
        metrics = (await at.fleet.admin.get("/metrics")).text
        assert 'homing_kv_agent_up{agent="r0"} 0' in metrics
        assert 'homing_kv_agent_up{agent="r1"} 1' in metrics
        await at.drain("r0")
        answer = await at.fleet.chat(long(session), headers={"x-session-id": session})
        assert (answer.replica, answer.kind) == ("r1", "failover")


async def test_what_another_tenants_session_of_the_same_name_left_is_not_pulled() -> None:
    keys = {"key-of-acme": "acme", "key-of-zeta": "zeta"}
    async with pair(keys=keys) as at:
        acme = {"authorization": "Bearer key-of-acme"}
        session = await at_home_on_r0(at, **acme)
        await at.save("r0", 300, tenant=at.body("r0")[0]["cache_salt"])
        await at.drain("r0")
        headers = {"authorization": "Bearer key-of-zeta", "x-session-id": session}
        answer = await at.fleet.chat(long(session), headers=headers)
        assert (answer.replica, answer.kind) == ("r1", "new")
        assert at.hint("r1").sources == ()


async def test_a_turn_that_ends_on_a_draining_home_sends_its_kv_ahead() -> None:
    async with pair() as at:
        session = await at_home_on_r0(at)
        await at.save("r0", 300)
        headers = {"x-session-id": session}
        async with at.fleet.client.stream(
            "POST",
            "/v1/chat/completions",
            json={
                "model": fleets.MODEL,
                "messages": long(session),
                "stream": True,
                "max_tokens": 1000,
                "ignore_eos": True,
            },
            headers=headers,
        ) as answer:
            assert answer.headers["x-homing-replica"] == "r0"
            await at.drain("r0")
            async for _ in answer.aiter_raw():
                pass
        prefetcher = at.fleet.router.prefetcher
        await until(lambda: prefetcher.bytes > 0)
        assert prefetcher.bytes == 300 * NAMESPACE.block_bytes
        await at.fleet.chat(long(session), headers=headers)
        assert (prefetcher.hits, prefetcher.wasted_bytes) == (1, 0)


async def test_a_sessions_end_lets_its_blocks_go() -> None:
    async with pair() as at:
        session = await at_home_on_r0(at)
        await at.save("r0", 8)
        shelf = at.agents["r0"].shelf
        assert shelf is not None
        assert len(shelf.store) == 8
        await at.fleet.chat(long(session), headers={"x-session-id": session, "x-homing-session-end": "true"})
        await until(lambda: len(shelf.store) == 0)


async def test_a_session_that_an_operator_ends_is_let_go_by_the_agents_that_hold_it() -> None:
    async with pair() as at:
        session = await at_home_on_r0(at)
        key = at.body("r0")[1].headers["x-session-id"]
        for name in ("r0", "r1"):
            await at.save(name, 8, session=key)
        shelves = [agent.shelf for agent in at.agents.values()]
        answer = await at.fleet.admin.delete(f"/api/sessions/{key}")
        assert (answer.status_code, answer.json()) == (200, {"ended": key}), session
        await until(lambda: not any(len(shelf.store) for shelf in shelves))


async def test_a_gateway_is_named_in_every_hint() -> None:
    kv = KvFleet()
    try:
        pool = await kv.gateway("pool", secret=SECRET)
        config = {"kv": {"gateways": [{"name": "pool", "address": f"127.0.0.1:{pool.server.port}"}]}}
        async with pair(config=config) as at:
            await until(lambda: at.fleet.router.holdings.is_up(ReplicaId("pool")))
            await at_home_on_r0(at)
            assert at.hint("r0").sources == ("pool",)
    finally:
        await kv.close()


async def test_a_turn_that_goes_on_from_a_stored_response_is_told_of_as_its_sessions() -> None:
    async with pair() as at:
        said = await at.fleet.client.post(
            "/v1/responses",
            json={"model": fleets.MODEL, "input": "word " * 400},
            headers={"x-session-id": "s"},
        )
        name = said.headers["x-homing-replica"]
        first = at.hint(name).session
        body = {"model": fleets.MODEL, "input": "go on", "previous_response_id": said.json()["id"]}
        assert (await at.fleet.client.post("/v1/responses", json=body)).status_code == 200
        assert at.hint(name).session == at.body(name)[1].headers["x-session-id"] == first
        assert len([line for line in at.body(name)[1].headers if line == "x-session-id"]) == 1


async def test_what_generates_nothing_is_sent_no_hint() -> None:
    async with pair() as at:
        body = {"model": fleets.MODEL, "input": "word " * 400}
        assert (await at.fleet.client.post("/v1/embeddings", json=body)).status_code == 200
        [(_, record)] = at.fleet.records()
        assert b"kv_transfer_params" not in record.body
