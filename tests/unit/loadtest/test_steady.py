"""What a steady load says of what it noticed."""

import asyncio

import pytest
from support.plane import data_plane

from loadtest.steady.clients import Load, Shape, Turn, hit_rate, judge, kinds
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings


def turn(
    replica: str = "a", status: int = 200, fault: str = "", *, told: bool = False, cached: int = 0
) -> Turn:
    return Turn("s", replica, "home" if replica else "", status, fault, told, 100, cached)


@pytest.mark.parametrize(
    ("broken", "failed"),
    [
        (turn("c", fault="it closed the connection", told=True), 0),
        (turn("c", fault="the stream ended"), 1),
        (turn("a", fault="it closed the connection", told=True), 1),
        (turn("c", 502, "502: it closed the connection"), 1),
        (turn("", 0, "ConnectionRefusedError: "), 1),
    ],
)
def test_only_streams_on_the_replica_that_was_killed_may_end_early_and_must_say_so(broken, failed):
    verdict = judge([turn(), broken], "c")
    assert (verdict.turns, verdict.broken_off, len(verdict.failed)) == (2, 1 - failed, failed)


def test_the_hit_rate_is_of_all_prompts():
    assert hit_rate([turn(cached=50), turn(cached=100)]) == 0.75
    assert hit_rate([]) == 0.0
    assert kinds([turn(), turn(), turn("")]) == "home 2, none 1"


async def test_sessions_go_on_until_they_are_stopped_and_each_turn_that_began_is_finished():
    replica = SimulatedReplica(ReplicaSettings(name="r0", time_scale=100.0))
    await replica.start()
    try:
        async with data_plane([replica.url]) as plane:
            url = f"http://127.0.0.1:{plane.port}"
            load = Load(lambda: [url], 4, Shape(system_tokens=40, user_tokens=40, reply_tokens=4, turns=3))
            running = asyncio.ensure_future(load.run())
            await load.reached(30)
            load.stop()
            await running
            await load.left(url)
            assert [turn for turn in load.ended if turn.fault] == []
            assert {turn.replica for turn in load.ended} == {"r0"}
            assert {turn.session for turn in load.ended} >= {"s0-0", "s0-1"}
            assert 0.2 < hit_rate(load.ended) < 0.9
    finally:
        await replica.kill()


async def test_what_is_not_there_is_a_turn_that_failed():
    load = Load(lambda: ["http://127.0.0.1:9"], 1)
    running = asyncio.ensure_future(load.run())
    await load.reached(1)
    load.stop()
    await running
    assert (load.ended[0].status, load.ended[0].replica) == (0, "")
    assert "Connect" in load.ended[0].fault
