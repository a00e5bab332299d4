"""A load is reported exactly once, whatever happens and in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from router.connector.loads import OVERDUE_S, LoadOrder, Loads, Outcome


def order(request: str = "r", blocks: int = 3, deadline_s: float = 1.0) -> LoadOrder:
    return LoadOrder(request, 7, tuple(range(100, 100 + blocks)), deadline_s)


def test_what_was_copied_is_loaded_and_the_rest_is_missing() -> None:
    loads = Loads()
    assert loads.begin(order(), 1.0)
    (load,) = loads.active
    load.copied = 2
    assert loads.end("r", "stall", 1.5)
    assert loads.take_ended() == [Outcome("r", 2, (102,), "stall", 0.5)]
    assert loads.take_ended() == []
    assert len(loads) == 0


def test_a_second_order_for_the_same_request_is_dropped_while_the_first_goes_on() -> None:
    loads = Loads()
    loads.begin(order(), 0.0)
    assert not loads.begin(order(), 0.0)
    loads.end("r", "done", 0.0)
    assert loads.begin(order(), 0.0)


def test_an_end_that_comes_twice_counts_once() -> None:
    loads = Loads()
    loads.begin(order(), 0.0)
    assert loads.end("r", "done", 0.0)
    assert not loads.end("r", "cancelled", 0.0)
    assert [outcome.reason for outcome in loads.take_ended()] == ["done"]


def test_a_load_that_nobody_ends_is_overdue() -> None:
    loads = Loads()
    loads.begin(order(deadline_s=2.0), 10.0)
    assert list(loads.overdue(12.0 + OVERDUE_S)) == []
    assert [load.order.request for load in loads.overdue(12.1 + OVERDUE_S)] == ["r"]


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["begin", "copy", "end", "take"]), st.sampled_from("abc")), max_size=60
)


@given(_EVENTS)
def test_every_load_is_reported_once_in_any_order_of_events(events: list[tuple[str, str]]) -> None:
    loads = Loads()
    begun: dict[str, int] = dict.fromkeys("abc", 0)
    reported: dict[str, int] = dict.fromkeys("abc", 0)

    def take() -> None:
        for outcome in loads.take_ended():
            reported[outcome.request] += 1
            assert outcome.loaded + len(outcome.missing) == 3

    for event, request in events:
        if event == "begin":
            begun[request] += loads.begin(order(request), 0.0)
        elif event == "copy":
            for load in loads.active:
                load.copied = min(3, load.copied + (load.order.request == request))
        elif event == "end":
            loads.end(request, "done", 0.0)
        else:
            take()
        for name in "abc":
            assert reported[name] <= begun[name]
    for load in loads.active:
        loads.end(load.order.request, "done", 0.0)
    take()
    assert reported == begun
