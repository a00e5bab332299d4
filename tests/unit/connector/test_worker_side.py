"""A worker copies what landed, reports each load once, and gives no block back that is still written to."""

import pytest
from support.little_engine import NAMESPACE, LittleEngine, LittleLoad, chain

from router.connector.loads import OVERDUE_S, LoadOrder
from router.connector.orders import Orders, SaveOrder
from router.kv.arena import Handle


@pytest.fixture
def engine() -> LittleEngine:
    engine = LittleEngine()
    engine.worker.start(Orders(NAMESPACE), 0.0)
    return engine


def begin(engine: LittleEngine, blocks: int = 3) -> LittleLoad:
    load = engine.agent.loads[7] = LittleLoad(chain(0, blocks))
    order = LoadOrder("r", 7, tuple(range(1, blocks + 1)), 1.0)
    engine.worker.start(Orders(NAMESPACE, (order,)), 0.0)
    assert load.expected
    return load


def advance(engine: LittleEngine, now: float = 0.1) -> tuple[set[str], set[int]]:
    engine.worker.advance(now)
    return engine.worker.finished()


def test_what_lands_is_copied_as_it_comes(engine: LittleEngine) -> None:
    load = begin(engine)
    engine.agent.land(load, 2)
    assert advance(engine) == (set(), set())
    assert [engine.memory[block] for block in (1, 2)] == chain(0, 2)
    engine.agent.land(load, 1)
    assert advance(engine) == ({"r"}, set())
    assert advance(engine) == (set(), set())
    assert engine.agent.loads == {}


def test_a_load_that_ends_early_names_the_blocks_that_hold_nothing(engine: LittleEngine) -> None:
    load = begin(engine)
    engine.agent.land(load, 1)
    load.end = "stall"
    assert advance(engine) == ({"r"}, {2, 3})
    figures = engine.counting.take() or {}
    assert (figures["loads:stall"], figures["loaded_blocks"], figures["missing_blocks"]) == (1, 1, 2)


def test_a_slot_that_was_given_away_ends_the_load_before_it(engine: LittleEngine) -> None:
    load = begin(engine)
    engine.agent.land(load, 3)
    engine.agent.arena.give_back(load.handles[1])
    assert advance(engine) == ({"r"}, {2, 3})


def test_a_slot_that_is_given_away_during_the_copy_is_worth_nothing(engine: LittleEngine) -> None:
    engine.slow = []
    load = begin(engine)
    engine.agent.land(load, 3)
    assert advance(engine) == (set(), set())
    engine.agent.arena.give_back(load.handles[0])
    engine.complete_copies()
    assert advance(engine) == ({"r"}, {1, 2, 3})


def test_a_load_is_not_over_while_a_copy_is_on_its_way(engine: LittleEngine) -> None:
    engine.slow = []
    load = begin(engine)
    engine.agent.land(load, 2)
    load.end = "cancelled"
    assert advance(engine) == (set(), set())
    engine.complete_copies()
    assert advance(engine) == ({"r"}, {3})


def test_a_load_without_an_agent_is_over_at_once(engine: LittleEngine) -> None:
    engine.worker.start(Orders(NAMESPACE, (LoadOrder("r", None, (1, 2), 1.0),)), 0.0)
    assert engine.worker.finished() == ({"r"}, {1, 2})


def test_a_load_that_nobody_ends_is_over_after_its_deadline(engine: LittleEngine) -> None:
    begin(engine)
    assert advance(engine, 1.0 + OVERDUE_S) == (set(), set())
    assert advance(engine, 1.1 + OVERDUE_S) == ({"r"}, {1, 2, 3})


def test_when_something_is_broken_every_load_is_over(engine: LittleEngine) -> None:
    begin(engine)
    engine.worker.give_up(0.1)
    assert engine.worker.finished() == ({"r"}, {1, 2, 3})


@pytest.mark.parametrize("reason", ["overdue", "fault"])
def test_a_load_that_is_given_up_while_it_is_copied_is_over_when_the_copy_is(
    engine: LittleEngine, reason: str
) -> None:
    engine.slow = []
    load = begin(engine)
    engine.agent.land(load, 2)
    assert advance(engine) == (set(), set())
    late = 2.0 + OVERDUE_S
    if reason == "fault":
        engine.worker.give_up(0.1)
    assert advance(engine, late) == (set(), set()), "its blocks are still written to"
    engine.agent.land(load, 1)
    assert advance(engine, late) == (set(), set())
    engine.complete_copies()
    requests, missing = advance(engine, late)
    assert (requests, missing) == ({"r"}, {3}), "and nothing more is begun"
    assert 3 not in engine.memory
    assert (engine.counting.take() or {})[f"loads:{reason}"] == 1


def test_a_copy_that_cannot_even_be_asked_keeps_no_load(engine: LittleEngine) -> None:
    def broken() -> bool:
        raise RuntimeError("the device is lost")

    engine._copy = lambda _: broken  # type: ignore[method-assign]
    load = begin(engine)
    engine.agent.land(load, 2)
    with pytest.raises(RuntimeError):
        engine.worker.advance(0.1)
    engine.worker.give_up(0.1)
    assert engine.worker.finished() == ({"r"}, {1, 2, 3})


def test_a_second_order_for_a_request_that_loads_is_counted_and_dropped(engine: LittleEngine) -> None:
    begin(engine)
    engine.worker.start(Orders(NAMESPACE, (LoadOrder("r", 8, (4,), 1.0),)), 0.0)
    engine.worker.give_up(0.1)
    assert engine.worker.finished() == ({"r"}, {1, 2, 3})
    assert (engine.counting.take() or {})["faults:second-load"] == 1


def test_blocks_are_saved_into_their_slots_and_said_to_be_written() -> None:
    engine = LittleEngine()
    engine.worker.start(Orders(NAMESPACE), 0.0)
    engine.memory[5] = chain(0, 1)[0]
    handle = engine.agent.arena.put(b"\0" * 32)
    gone = Handle(3, 99)
    assert handle is not None
    told: list[Handle] = []
    engine.agent.written = told.extend  # type: ignore[method-assign]
    engine.worker.save([SaveOrder(5, handle), SaveOrder(5, gone)])
    assert told == []
    engine.worker.advance(0.1)
    assert told == [handle]
    assert bytes(engine.agent.arena.slots[handle.slot]) == chain(0, 1)[0]


def test_no_more_is_copied_between_two_steps_than_running_requests_can_bear(engine: LittleEngine) -> None:
    engine.worker.register(engine, 40 << 20)
    load = begin(engine)
    engine.agent.land(load, 3)
    for copied in (1, 2):
        assert advance(engine) == (set(), set())
        assert sum(block in engine.memory for block in (1, 2, 3)) == copied
    assert advance(engine) == ({"r"}, set())


def test_a_worker_is_ready_once_it_has_caches_and_an_agent() -> None:
    engine = LittleEngine()
    assert not engine.worker.ready
    engine.worker.start(Orders(NAMESPACE), 0.0)
    assert engine.worker.ready
    engine.agent.die()
    assert not engine.worker.ready
    engine.worker.close()
