"""Sub-agents and the ends of sessions, by the headers that clients send."""

import asyncio
from typing import Any

import pytest
from support.fleet import Fleet, fleet

from router.base.ids import OPEN_TENANT

HISTORY = [
    {"role": "system", "content": "You find things. " * 400},
    {"role": "user", "content": "Find the thing. " * 300},
]
OWN_IDS = {
    "x-session-id",
    "x-parent-session-id",
    "x-codex-parent-thread-id",
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "x-claude-code-parent-agent-id",
    "x-homing-session-end",
}


def task(number: object) -> list[dict[str, Any]]:
    return [
        *HISTORY,
        {"role": "assistant", "content": "On it."},
        {"role": "user", "content": f"Task {number}."},
    ]


async def sessions(running: Fleet) -> set[str]:
    found = (await running.admin.get("/api/sessions")).json()["sessions"]
    return {session["key"][:32] for session in found}


@pytest.mark.parametrize(
    "header",
    ["X-Parent-Session-ID", "x_parent_session_id", "X-PARENT-session_id", "X-Codex-Parent-Thread-Id"],
)
async def test_a_sub_agent_starts_beside_its_parent_and_the_replica_gets_no_clients_id(header: str) -> None:
    async with fleet(4) as running:
        parent = await running.chat(HISTORY, headers={"X-Session-ID": "parent"})
        for number in range(6):
            child = await running.chat(
                task(number), headers={"X-Session-ID": f"child {number}", header: "parent"}
            )
            assert (child.replica, child.kind) == (parent.replica, "new")
            assert (await running.decision())["reason"] == "beside its parent"
            assert child.cached > 2000
        for _, record in running.records():
            assert OWN_IDS & {name.replace("_", "-") for name in record.headers} == {"x-session-id"}
            assert "parent" not in record.headers["x-session-id"]


async def test_a_sub_agent_without_an_id_of_its_own_is_known_by_its_opening() -> None:
    async with fleet(4) as running:
        parent = await running.chat(HISTORY, headers={"X-Session-ID": "parent"})
        child = await running.chat(task(1), headers={"X-Parent-Session-ID": "parent"})
        assert (child.replica, (await running.decision())["reason"]) == (parent.replica, "beside its parent")
        assert (await running.decision())["session"] != running.router.routing.key_of(OPEN_TENANT, "parent")


async def test_a_fan_out_spreads() -> None:
    async with fleet(4) as running:
        await running.chat(HISTORY, headers={"X-Session-ID": "parent"})
        children = await asyncio.gather(
            *(
                running.chat(
                    task(f"{number} of many. " * 300),
                    headers={"X-Session-ID": f"c{number}", "X-Parent-Session-ID": "parent"},
                )
                for number in range(40)
            )
        )
        where = [child.replica for child in children]
        # How many are under way at once is for the clock to say; those that were, spread.
        assert max(where.count(name) for name in running.replicas) <= 32
        assert len(set(where)) >= 3


async def test_a_parent_of_another_tenant_is_no_parent() -> None:
    async with fleet(4, keys={"key-of-acme": "acme", "key-of-evil": "evil"}) as running:
        await running.chat(HISTORY, headers={"x-api-key": "key-of-acme", "X-Session-ID": "parent"})
        child = await running.chat(
            task(1),
            headers={"x-api-key": "key-of-evil", "X-Session-ID": "child", "X-Parent-Session-ID": "parent"},
        )
        assert (await running.decision())["reason"] == "owner on the ring"
        assert child.cached == 0


async def test_sub_agents_that_share_their_parents_id_have_sessions_of_their_own() -> None:
    async with fleet(4) as running:
        main = {"x-claude-code-session-id": "one"}
        agent = {**main, "X-Claude-Code-Agent-Id": "a1"}
        nested = {**main, "x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"}
        parent = await running.chat(HISTORY, headers=main)
        reasons = []
        for headers, number in ((agent, 1), (nested, 1), (main, 0), (agent, 1), (nested, 1)):
            answer = await running.chat(task(number), headers=headers)
            assert answer.replica == parent.replica
            reasons.append((await running.decision())["reason"])
        assert reasons == ["beside its parent", "beside its parent", "home", "home", "home"]
        assert len(await sessions(running)) == 3
        # Of another client's session the agent's header says nothing.
        await running.chat(HISTORY, headers={"X-Session-ID": "two", "x-claude-code-agent-id": "a1"})
        assert running.router.routing.key_of(OPEN_TENANT, "two") in await sessions(running)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_ends_with_the_answer_to_the_turn_that_says_so(stream: bool) -> None:
    async with fleet(2) as running:
        headers = {"X-Session-ID": "one"}
        first = await running.chat(HISTORY, headers=headers, stream=stream)
        assert running.status(first.replica).sessions == 1
        await running.chat(task(1), headers={**headers, "X-Homing-Session-End": "TRUE"}, stream=stream)
        assert (running.status(first.replica).sessions, running.status(first.replica).working_set_tokens) == (
            0,
            0,
        )
        assert not await sessions(running)
        for _, record in running.records():
            assert "x-homing-session-end" not in record.headers
        await running.chat(task(2), headers={**headers, "X-Homing-Session-End": "false"}, stream=stream)
        assert len(await sessions(running)) == 1


async def test_a_policy_may_name_other_headers_or_none() -> None:
    async with fleet(4, policy={"session": {"parents": ["x-boss"]}}) as running:
        parent = await running.chat(HISTORY, headers={"X-Session-ID": "parent"})
        child = await running.chat(task(1), headers={"X-Session-ID": "child", "X-Boss": "parent"})
        assert child.replica == parent.replica
        assert (await running.decision())["reason"] == "beside its parent"
        await running.chat(task(2), headers={"X-Session-ID": "c2", "X-Parent-Session-ID": "parent"})
        assert (await running.decision())["reason"] != "beside its parent"
