"""What the scheduler's side says to the scheduler, the workers and the agent, step by step."""

import pytest
from support.little_engine import NAMESPACE, LittleEngine, LittleLoad, chain

from router.connector.offers import RENEW_S
from router.connector.scheduler_side import SchedulerSide
from router.connector.settings import Settings


@pytest.fixture
def engine() -> LittleEngine:
    return LittleEngine()


def the_load(engine: LittleEngine) -> LittleLoad:
    (load,) = engine.agent.loads.values()
    return load


def parked(engine: LittleEngine, *, prompt: int = 6, local: int = 0, blocks: int = 5) -> LittleLoad:
    """A request that waits for its blocks."""
    engine.add("r", 0, prompt, local, 2)
    engine.agent.say("r", blocks)
    engine.step()
    assert engine.requests["r"].state == "parked"
    return the_load(engine)


def run(engine: LittleEngine, steps: int = 20) -> None:
    for _ in range(steps):
        engine.step()


def test_a_pulled_prefix_is_loaded_and_only_the_rest_computed(engine: LittleEngine) -> None:
    load = parked(engine)
    engine.agent.land(load, 5)
    load.end = "done"
    engine.step()
    assert engine.loaded_blocks == 5
    run(engine)
    assert engine.requests == {}
    assert engine.agent.over == ["r"]


def test_what_the_engine_has_itself_is_not_loaded(engine: LittleEngine) -> None:
    assert list(parked(engine, local=2).hashes) == chain(0, 8)[2:5]


def test_the_last_token_is_always_computed(engine: LittleEngine) -> None:
    assert len(parked(engine, prompt=6, blocks=99).hashes) == 5


def test_nothing_is_said_until_the_agent_has_answered(engine: LittleEngine) -> None:
    engine.add("r", 0, 6, 0, 0)
    engine.step()
    assert engine.requests["r"].state == "waiting"
    engine.agent.say("r", 0)
    engine.step()
    assert engine.requests["r"].state == "running"


def test_a_load_that_falls_short_keeps_what_landed(engine: LittleEngine) -> None:
    load = parked(engine)
    engine.agent.land(load, 2)
    load.end = "stall"
    engine.step()
    assert engine.requests["r"].computed == 2
    run(engine)
    assert engine.requests == {}


def test_a_load_of_which_nothing_landed_is_computed_and_not_tried_again(engine: LittleEngine) -> None:
    load = parked(engine)
    load.end = "source"
    run(engine)
    assert engine.requests == {}
    assert engine.agent.questions == 1
    assert engine.loaded_blocks == 0


def test_a_request_that_is_aborted_while_loading_is_cancelled_and_let_go_once(engine: LittleEngine) -> None:
    load = parked(engine)
    free = len(engine.free)
    engine.abort("r")
    (name,) = engine.agent.cancelled
    assert engine.agent.loads[name] is load
    engine.step()
    assert len(engine.free) == free, "blocks that are written to were given away"
    load.end = "cancelled"
    engine.step()
    assert len(engine.free) == engine.total
    run(engine)


def test_an_agent_that_dies_while_a_load_waits_ends_it(engine: LittleEngine) -> None:
    load = parked(engine)
    engine.agent.land(load, 1)
    engine.agent.die()
    run(engine)
    assert engine.requests == {}


def test_an_agent_that_dies_between_answer_and_load_leaves_nobody_waiting(engine: LittleEngine) -> None:
    engine.add("r", 0, 6, 0, 0)
    engine.agent.say("r", 5)
    engine.agent.connected = False
    run(engine)
    assert engine.requests == {}


def test_an_offer_waits_for_room_and_is_asked_for_anew_when_it_grows_old(engine: LittleEngine) -> None:
    engine.scheduler = SchedulerSide(
        Settings(headroom=1.0), engine.scheduler._connect, block_size=64, counting=engine.counting
    )
    engine.scheduler.meet(NAMESPACE)
    kept, engine.free = engine.free[5:], engine.free[:5]
    engine.add("r", 0, 6, 0, 0)
    engine.agent.say("r", 5)
    engine.step()
    assert engine.requests["r"].state == "waiting"
    engine.now += RENEW_S + 0.1
    engine.step()
    assert engine.agent.questions == 2
    engine.agent.say("r", 4)
    engine.free += kept
    engine.step()
    assert len(the_load(engine).hashes) == 4


def test_a_preempted_request_does_not_load_again(engine: LittleEngine) -> None:
    load = parked(engine)
    engine.agent.land(load, 5)
    load.end = "done"
    engine.step()
    engine.step()
    assert engine.requests["r"].state == "running"
    engine.preempt("r")
    run(engine)
    assert engine.requests == {}
    assert engine.loaded_blocks == 5


def test_full_blocks_are_saved_as_they_are_computed_under_their_own_names(engine: LittleEngine) -> None:
    engine.agent.reserved = [handle for _ in range(20) if (handle := engine.agent.arena.put(b"\0" * 32))]
    engine.add("r", 0, 4, 0, 2)
    engine.agent.say("r", 0)
    engine.step()
    assert [hash_ for _, hash_ in engine.agent.held] == chain(0, 4)[:2]
    run(engine)
    assert [hash_ for _, hash_ in engine.agent.held] == chain(0, 6)


def test_what_the_agent_holds_is_not_copied_again(engine: LittleEngine) -> None:
    engine.agent.reserved = [handle for _ in range(20) if (handle := engine.agent.arena.put(b"\0" * 32))]
    for name in ("r", "s"):
        engine.add(name, 0, 4, 0, 0)
        engine.agent.say(name, 0)
        run(engine, 5)
    assert (engine.counting.take() or {})["saved_blocks"] == 4


def test_what_the_agent_brought_is_not_copied_back(engine: LittleEngine) -> None:
    engine.agent.reserved = [handle for _ in range(20) if (handle := engine.agent.arena.put(b"\0" * 32))]
    load = parked(engine)
    engine.agent.land(load, 3)
    load.end = "stall"
    run(engine)
    assert [hash_ for _, hash_ in engine.agent.held] == chain(0, 8)[3:]


def test_what_gets_no_slot_is_counted_when_it_is_lost(engine: LittleEngine) -> None:
    engine.agent.reserved = [handle for _ in range(1) if (handle := engine.agent.arena.put(b"\0" * 32))]
    engine.add("r", 0, 4, 0, 0)
    engine.agent.say("r", 0)
    run(engine, 5)
    figures = engine.counting.take() or {}
    assert (figures["saved_blocks"], figures["lost_blocks"]) == (1, 3)


def test_nothing_is_saved_before_the_workers_can(engine: LittleEngine) -> None:
    engine.agent.reserved = [handle for _ in range(9) if (handle := engine.agent.arena.put(b"\0" * 32))]
    engine.scheduler.workers_ready(False)
    engine.add("r", 0, 4, 0, 0)
    engine.agent.say("r", 0)
    engine.step()
    assert engine.agent.stored == {}
    engine.scheduler.workers_ready(True)
    engine.step()
    assert len(engine.agent.held) == 4


def test_requests_that_run_when_track_is_lost_are_not_saved_any_more(engine: LittleEngine) -> None:
    engine.agent.reserved = [handle for _ in range(9) if (handle := engine.agent.arena.put(b"\0" * 32))]
    engine.add("r", 0, 4, 0, 0)
    engine.agent.say("r", 0)
    engine.scheduler.lose_track()
    run(engine, 5)
    assert engine.agent.held == {}


def test_without_an_agent_everything_is_computed() -> None:
    engine = LittleEngine()
    engine.scheduler = SchedulerSide(
        Settings(), engine.scheduler._connect, block_size=64, counting=engine.counting
    )
    engine.add("r", 0, 4, 0, 0)
    run(engine, 5)
    assert engine.requests == {}
    assert engine.scheduler.refusal is None
    engine.scheduler.close()


def test_a_load_that_was_not_offered_is_computed(engine: LittleEngine) -> None:
    engine.scheduler.allocated("stranger", 2, [4, 5, 6], engine.now)
    orders = engine.scheduler.bare_orders()
    assert [(order.request, order.load, order.block_ids) for order in orders.loads] == [
        ("stranger", None, (5, 6))
    ]
    assert (engine.counting.take() or {})["faults:unoffered-load"] == 1


def test_a_load_gets_no_longer_than_half_of_what_computing_takes(engine: LittleEngine) -> None:
    engine.scheduler.orders([], 1000, 0.0)
    engine.scheduler.stepped(frozenset(), frozenset(), 1.0)  # a millisecond a token
    engine.add("r", 0, 6, 0, 0)
    engine.agent.say("r", 5)
    engine.scheduler.offer(engine._prompt(engine.requests["r"]), computed=0, room=99, now=engine.now)
    engine.scheduler.allocated("r", 5, range(1, 7), engine.now)
    (order,) = engine.scheduler.bare_orders().loads
    assert order.deadline_s == pytest.approx(0.5 * 5 * 64 * 0.001)


def test_the_agents_figures_are_shown_once_a_second(engine: LittleEngine) -> None:
    engine.scheduler.stepped(frozenset(), frozenset(), 10.0)
    assert engine.counting.take() == {"agent_connected": 1.0, "agent:blocks": 1.0}
    engine.scheduler.stepped(frozenset(), frozenset(), 10.5)
    assert engine.counting.take() is None
    engine.scheduler.stepped(frozenset(), frozenset(), 11.0)
    assert engine.counting.take() is not None
