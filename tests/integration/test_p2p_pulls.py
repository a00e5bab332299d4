"""Pulls through vLLM's own P2P tier: the router names the source in vLLM's words, where it priced a pull."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import fleet as fleets
from support.fleet import Fleet
from support.plane import until
from support.ports import free_pair

from router.base.ids import ReplicaId
from router.kv.config import AgentConfig, Peer
from router.simulator.agent import KvBeside
from router.simulator.settings import ReplicaSettings

SLOW = ReplicaSettings(time_scale=4.0)
"""A prompt of 5,000 tokens takes 150 ms: more than what is sent between two replicas on a busy machine."""

NAMES = ("r0", "r1")


def long(session: str) -> list[dict[str, str]]:
    """A prompt of some 5,000 tokens that begins as no other session's does."""
    return [
        {"role": "system", "content": f"{session}: " + "be brief " * 100},
        {"role": "user", "content": "word " * 4000},
    ]


@asynccontextmanager
async def p2p_fleet(**wishes: Any) -> AsyncIterator[tuple[Fleet, dict[str, int]]]:
    """Two replicas with a P2P tier each that reach one another, and the port of each tier."""
    ports = {name: free_pair() for name in NAMES}
    beside = {}
    for name in NAMES:
        peers = tuple(
            Peer(name=other, host="127.0.0.1", port=ports[other]) for other in NAMES if other != name
        )
        config = AgentConfig(
            name=name, secret=b"of the tiers, which the router does not know", port=ports[name],
            socket=Path(), peers=peers,
        )  # fmt: skip
        beside[name] = KvBeside(config=config, p2p=True)
    roles = {name: {"kv_p2p": f"127.0.0.1:{port}"} for name, port in ports.items()}
    async with fleets.fleet(2, settings=SLOW, kv=beside, roles=roles, **wishes) as fleet:
        for name in NAMES:
            agent = fleet.replicas[name].api.agent
            assert agent is not None
            await until(lambda agent=agent: all(one.is_connected for one in agent._sources.values()))
        yield fleet, ports


def params(fleet: Fleet, name: str) -> Any:
    """What the replica was told of transfers with its last request."""
    return json.loads(fleet.records(name)[-1][1].body).get("kv_transfer_params")


async def drain(fleet: Fleet, name: str, on: bool = True) -> None:
    answer = await fleet.admin.post(f"/api/replicas/{name}/drain", json={"on": on})
    assert answer.status_code == 200


async def test_a_session_whose_home_drains_is_pulled_by_vllms_own_words() -> None:
    async with p2p_fleet() as (fleet, ports):
        first = await fleet.chat(long("s"), headers={"x-session-id": "s"})
        home, other = first.replica, "r1" if first.replica == "r0" else "r0"
        assert params(fleet, home) is None, "nothing is pulled, and nothing said"
        await drain(fleet, home)
        turn = await fleet.chat(
            [*long("s"), first.message, {"role": "user", "content": "and?"}],
            headers={"x-session-id": "s", "x-request-id": "mine"},
        )
        assert (turn.replica, turn.kind) == (other, "pull")
        named = params(fleet, other)["remote_kv_source"]
        assert (named["remote_host"], named["remote_port"]) == ("127.0.0.1", ports[home])
        assert named["kv_request_id"] not in ("", "mine"), "a name that clients cannot choose"
        assert turn.cached > 4000
        decision = await fleet.decision()
        assert (decision["kind"], decision["replica"]) == ("pull", other)


async def test_what_a_path_carries_is_learned_from_the_first_token() -> None:
    async with p2p_fleet() as (fleet, _):
        first = await fleet.chat(long("s"), headers={"x-session-id": "s"})
        home, other = first.replica, "r1" if first.replica == "r0" else "r0"
        pullbook = fleet.router.engine._pulling.book
        assert pullbook is not None
        assert not pullbook.has_learned
        await drain(fleet, home)
        turn = await fleet.chat(
            [*long("s"), first.message, {"role": "user", "content": "and?"}],
            headers={"x-session-id": "s"},
            stream=True,
        )
        assert turn.kind == "pull"
        assert pullbook.has_learned
        start_s, token_s = pullbook.path(ReplicaId(home), ReplicaId(other))
        assert 0.0 < start_s + 4000 * token_s < 30.0


async def test_a_source_that_brings_nothing_is_asked_no_more() -> None:
    """Its tier is gone, its replica well: what is delivered tells."""
    async with p2p_fleet() as (fleet, _):
        homes = {}
        for number in range(40):
            answer = await fleet.chat(long(f"s{number}"), headers={"x-session-id": f"s{number}"})
            homes.setdefault(answer.replica, []).append((f"s{number}", answer.message))
            if len(homes.get("r0", [])) == 6:
                break
        agent = fleet.replicas["r0"].api.agent
        assert agent is not None
        await agent.close()
        await drain(fleet, "r0")
        kinds = []
        for session, reply in homes["r0"]:
            turn = await fleet.chat(
                [*long(session), reply, {"role": "user", "content": "and?"}],
                headers={"x-session-id": session},
            )
            assert turn.response.status_code == 200
            assert turn.cached < 1000
            kinds.append(turn.kind)
        assert kinds[0] == "pull"
        assert kinds[-1] == "failover"


async def test_clients_say_nothing_of_sources() -> None:
    async with p2p_fleet() as (fleet, _):
        theirs = {"remote_kv_source": {"kv_request_id": "x", "remote_host": "10.6.6.6", "remote_port": 1}}
        answer = await fleet.chat(long("s"), headers={"x-session-id": "s"}, kv_transfer_params=theirs)
        assert params(fleet, answer.replica) is None


@pytest.mark.parametrize(
    "named",
    [
        None,
        {"remote_host": "127.0.0.1", "remote_port": 0},
        {"kv_request_id": "x", "remote_host": "127.0.0.1", "remote_port": 1},
        {"kv_request_id": "", "remote_host": "127.0.0.1", "remote_port": 0},
    ],
)
async def test_a_tier_pulls_from_whom_it_is_told_and_from_nobody_else(named: Any) -> None:
    """The simulated one, as vLLM's: without a whole name it computes."""
    async with p2p_fleet() as (fleet, ports):
        replicas = fleet.replicas
        body = {"model": fleets.MODEL, "messages": long("s"), "max_tokens": 1}
        for name, more in (
            ("r0", {}),
            ("r1", {"kv_transfer_params": {"remote_kv_source": _at(named, ports["r0"])}}),
            ("r1", {}),
        ):
            answer = await fleet.client.post(
                f"{replicas[name].url}/v1/chat/completions", json={**body, **more}
            )
            details = answer.json()["usage"]["prompt_tokens_details"] or {}
            if name == "r1" and more:
                assert not details.get("cached_tokens")


def _at(named: Any, port: int) -> Any:
    return {**named, "remote_port": port} if named and not named["remote_port"] else named
