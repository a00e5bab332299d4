"""The push queue: bounded, in order, and system blocks go last."""

from hypothesis import given
from hypothesis import strategies as st

from router.kv.pushing import Priority, PushQueue


def test_higher_priorities_go_first_and_each_in_order():
    queue = PushQueue(10)
    for item, priority in [("a", Priority.ONE_OFF), ("b", Priority.SYSTEM), ("c", Priority.ONE_OFF)]:
        assert queue.push(item, priority) is None
    assert queue.peek() == "b"
    assert [queue.pop() for _ in range(4)] == ["b", "a", "c", None]


def test_a_full_queue_drops_the_least_important():
    queue = PushQueue(2)
    queue.push("a", Priority.ONE_OFF)
    queue.push("b", Priority.SESSION)
    assert queue.push("c", Priority.SYSTEM) == "a"
    assert queue.push("d", Priority.SYSTEM) == "b"
    assert queue.push("e", Priority.SESSION) == "e", "system blocks last"
    assert queue.push("f", Priority.SYSTEM) == "f"
    assert queue.dropped == {Priority.ONE_OFF: 1, Priority.SESSION: 2, Priority.SYSTEM: 1}


def test_of_a_chain_the_end_is_dropped():
    queue = PushQueue(2)
    for item in "abc":
        queue.push(item, Priority.SESSION)
    assert queue.clear() == ["a", "b"]
    assert len(queue) == 0


@given(st.lists(st.sampled_from(Priority), max_size=50), st.integers(1, 10))
def test_what_stays_is_never_less_important_than_what_goes(priorities, limit):
    queue, dropped = PushQueue(limit), []
    for number, priority in enumerate(priorities):
        gone = queue.push((priority, number), priority)
        assert len(queue) <= limit
        if gone is not None:
            dropped.append(gone)
    kept = queue.clear()
    assert len(kept) + len(dropped) == len(priorities)
    if dropped and kept:
        assert min(priority for priority, _ in kept) >= min(priority for priority, _ in dropped)
