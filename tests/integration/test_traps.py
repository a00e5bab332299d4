"""The traps that routers fell into, each over HTTP through the whole router."""

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support.fleet import MODEL, QUICK, Answered, Fleet, fleet, words
from support.plane import until
from support.raw import post, raw_client

SPREADING = ["priced", "bounded-ring", "prefix", "least-loaded", "two-choices", "round-robin"]
"""Strategies that look at load in some way. `ring` spreads by chance alone."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def spread(answers: list[Answered]) -> list[int]:
    """How many turns each replica got, the fewest first; those without any are left out."""
    assert {answer.response.status_code for answer in answers} == {200}
    return sorted(Counter(answer.replica for answer in answers).values())


async def hold(running: Fleet, count: int, session: str) -> list[asyncio.Task[Answered]]:
    """Turns of one session that its home keeps for a while."""
    before = running.router.engine.in_flight()
    held = [
        asyncio.ensure_future(running.chat([user("held")], headers={"X-Session-ID": session}))
        for _ in range(count)
    ]
    await until(lambda: running.router.engine.in_flight() == before + count)
    return held


# --- spreading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", SPREADING)
async def test_paced_sessions_spread_though_the_fleet_is_idle_at_every_pick(strategy: str) -> None:
    async with fleet(4, policy={"strategy": strategy}) as running:
        answers = []
        for number in range(24):
            assert running.router.engine.in_flight() == 0
            answers.append(await running.chat([user(words(40, number))], max_tokens=1))
        counts = spread(answers)
        assert len(counts) == 4
        assert counts[-1] <= 12


@pytest.mark.parametrize("strategy", SPREADING)
async def test_a_shared_system_prompt_does_not_gather_sessions(strategy: str) -> None:
    system = {"role": "system", "content": words(4000, "shared")}
    async with fleet(4, policy={"strategy": strategy}) as running:
        answers = [
            await running.chat([system, user(words(40, number))], max_tokens=1) for number in range(32)
        ]
        counts = spread(answers)
        # `prefix` takes in one more holder whenever those it has are fuller than it lets them be.
        assert len(counts) >= (3 if strategy == "prefix" else 4)
        assert counts[-1] <= 16


@pytest.mark.parametrize(
    ("strategy", "bound", "most"),
    [
        ("least-loaded", {}, 10),
        ("prefix", {}, 10),
        ("round-robin", {}, 10),
        ("two-choices", {}, 14),  # by chance
        ("priced", {}, 14),  # the part of these sessions that the ring gives to one replica
        ("bounded-ring", {}, 14),
        ("priced", {"place": {"bound": {"relative": 1.0, "absolute": 0}}}, 11),
    ],
)
async def test_a_burst_between_two_looks_at_the_replicas_does_not_herd(
    strategy: str, bound: dict[str, Any], most: int
) -> None:
    async with fleet(4, policy={"strategy": strategy, **bound}) as running:
        seen = [running.status(name).report_age_s for name in running.replicas]
        for replica in running.replicas.values():
            replica.fault("hold", path="/v1/")
        turns = [
            asyncio.ensure_future(running.chat([user(words(300, number))], max_tokens=1))
            for number in range(40)
        ]
        # All of them are there before the first is answered.
        await until(lambda: running.router.engine.in_flight() == 40)
        for replica in running.replicas.values():
            replica.clear_faults()
        answers = await asyncio.gather(*turns)
        counts = spread(answers)
        assert len(counts) == 4
        assert counts[-1] <= most
        # No look at a replica came between.
        assert all(
            age is not None and running.status(name).report_age_s > age  # type: ignore[operator]
            for name, age in zip(running.replicas, seen, strict=True)
        )


async def test_turns_without_a_session_spread_as_well() -> None:
    async with fleet(4) as running:
        places = Counter()
        for number in range(16):
            answer = await running.client.post("/detokenize", json={"tokens": [number]})
            assert (answer.status_code, answer.headers["x-homing-decision"]) == (200, "pass")
            places[answer.headers["x-homing-replica"]] += 1
        assert sorted(places.values()) == [4, 4, 4, 4]


# --- overload ---------------------------------------------------------------------------------------


async def test_one_overloaded_replica_leaves_the_affinity_of_the_rest_alone() -> None:
    async with fleet(3, policy={"overload": {"in_flight": 2}}) as running:
        homes = {}
        for number in range(12):
            session = f"s{number}"
            answer = await running.chat([user(words(100, number))], headers={"X-Session-ID": session})
            homes[session] = answer.replica
        assert set(homes.values()) == {"r0", "r1", "r2"}
        busy = next(session for session, home in homes.items() if home == "r0")
        running.replicas["r0"].fault("hold")
        held = await hold(running, 2, busy)
        for session, home in homes.items():
            messages = [
                user(words(100, int(session[1:]))),
                {"role": "assistant", "content": "ok"},
                user("on"),
            ]
            answer = await running.chat(messages, headers={"X-Session-ID": session})
            if home == "r0":
                assert (answer.kind, answer.replica != "r0") == ("spill", True)
            else:
                assert (answer.kind, answer.replica) == ("home", home)
        assert not any(task.done() for task in held)
        running.replicas["r0"].clear_faults()
        assert spread(list(await asyncio.gather(*held))) == [2]


async def test_with_every_replica_at_its_limit_the_turn_is_refused_and_told_when_to_come_back() -> None:
    async with fleet(1, policy={"overload": {"in_flight": 2}}) as running:
        running.replicas["r0"].fault("hold", count=2)
        held = await hold(running, 2, "one")
        refused = await running.chat([user("hello")])
        assert (refused.response.status_code, refused.response.headers["retry-after"]) == (429, "1")
        assert refused.json["error"]["type"] == "rate_limit_error"
        running.replicas["r0"].clear_faults()
        await asyncio.gather(*held)
        assert (await running.chat([user("hello")])).response.status_code == 200


async def test_health_checks_leave_the_counters_of_load_alone() -> None:
    slow = replace(QUICK, time_scale=0.001)
    async with fleet(2, settings=slow, probe="20ms") as running:
        turns = [
            asyncio.ensure_future(running.chat([user(words(3000, number))], stream=True))
            for number in range(6)
        ]
        await until(lambda: running.router.engine.in_flight() == 6)
        load = {name: running.status(name) for name in running.replicas}
        assert sum(status.pending_tokens for status in load.values()) > 10_000
        looks: dict[str, set[float]] = {name: set() for name in running.replicas}

        def seen_again() -> bool:
            now = running.router.clock.now()
            for status in running.router.engine.replicas(now):
                assert status.in_flight == load[status.id].in_flight
                assert status.pending_tokens == load[status.id].pending_tokens
                assert status.report_age_s is not None
                looks[status.id].add(round(now - status.report_age_s, 6))
            return all(len(at) >= 5 for at in looks.values())

        await until(seen_again)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)


# --- failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["close", "status:500", "status:503:9", "garbage", "cut:0"])
async def test_a_retry_keeps_its_session_key_and_never_meets_the_same_replica(fault: str) -> None:
    async with fleet(3) as running:
        headers = {"X-Session-ID": "one"}
        first = await running.chat([user(words(100))], headers=headers)
        home = running.replicas[first.replica]
        home.fault(fault)
        again = await running.chat([user(words(100))], headers=headers, stream=True)
        assert (again.response.status_code, again.kind) == (200, "failover")
        assert again.replica != first.replica
        assert again.response.text.rstrip().endswith("data: [DONE]")
        keys = {record.headers["x-session-id"] for _, record in running.records()}
        assert len(keys) == 1
        # An idle connection that breaks may only have been old, so the turn goes there once more.
        assert len(running.records(first.replica)) == (3 if fault == "close" else 2)
        assert {record.headers["x-request-id"] for _, record in running.records(again.replica)} == {
            running.records(first.replica)[1][1].headers["x-request-id"]
        }
        # It has moved: its home is where it was answered, though the old one is well again.
        home.clear_faults()
        third = await running.chat([user(words(100))], headers=headers)
        assert (third.kind, third.replica) == ("home", again.replica)


@pytest.mark.parametrize("strategy", SPREADING)
async def test_a_replica_that_fails_fast_does_not_attract_turns(strategy: str) -> None:
    async with fleet(3, policy={"strategy": strategy}, probe="20ms") as running:
        running.replicas["r1"].fault("status:500", path="/v1/")
        answers = [await running.chat([user(words(30, number))], max_tokens=1) for number in range(45)]
        assert {answer.response.status_code for answer in answers} == {200}
        # A third would be its share, and all of them what an idle-looking replica draws.
        assert 0 < len(running.records("r1")) <= 6


async def test_a_replica_that_fails_now_and_then_gets_no_more_than_its_share() -> None:
    async with fleet(3, policy={"strategy": "least-loaded"}) as running:
        flaky = running.replicas["r1"]
        answers = []
        for number in range(30):
            if number % 3 == 0:
                flaky.clear_faults()
                flaky.fault("status:500", count=1)
            answers.append(await running.chat([user(words(30, number))], max_tokens=1))
        assert {answer.response.status_code for answer in answers} == {200}
        assert len(running.records("r1")) <= 10


async def test_hundreds_of_clients_that_leave_at_any_moment_leak_nothing() -> None:
    chance = Random(7)
    settings = replace(QUICK, time_scale=4.0)
    async with fleet(3, settings=settings, policy={"strategy": "least-loaded"}) as running:
        port = running.router.dataplane.port

        async def visit(number: int) -> None:
            body = {
                "model": MODEL,
                "messages": [user(words(200, number % 20))],
                "max_tokens": 30,
                "stream": number % 2 == 0,
            }
            request = post(body, f"X-Session-ID: s{number % 40}")
            if number % 5 == 0:
                request = request[: chance.randrange(1, len(request))]
            await asyncio.sleep(chance.random() * 0.5)
            async with raw_client(port) as client:
                await client.send(request)
                await asyncio.sleep(chance.random() * 0.25)
                client.abort()

        await asyncio.gather(*(visit(number) for number in range(300)))
        plane = running.router.dataplane
        await until(lambda: not plane.connections and running.router.engine.in_flight() == 0)
        await until(lambda: not any(replica.in_flight for replica in running.replicas.values()))
        for name in running.replicas:
            status = running.status(name)
            # Nobody holds a departure against a replica.
            assert (status.health, status.recent_failures) == ("healthy", 0.0)
        aborted = [record for _, record in running.records() if record.aborted]
        assert len(aborted) > 50
        # And the router serves on.
        assert (await running.chat([user("hello")])).response.status_code == 200
