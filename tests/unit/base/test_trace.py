from random import Random

import pytest

from router.base.trace import (
    FreshIds,
    Parent,
    Trace,
    parse_traceparent,
    sampled_flags,
    unsampled,
    unsampled_line,
)

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN = 0x00F067AA0BA902B7
GOOD = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"


def make(**more: object) -> Trace:
    return Trace(TRACE.to_bytes(16, "big"), 0x10, SPAN, 1, "a=1", True, b"tracestate: a=1\r\n", 0.0).replace(
        **more
    )


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (GOOD + b"01", 1),
        (GOOD + b"00", 0),
        (b"  " + GOOD + b"03 ", 3),
        # Flags that are not known say nothing.
        (GOOD + b"fd", 1),
        # A later version may go on; what is known of it counts.
        (b"01" + GOOD[2:] + b"01", 1),
        (b"cc" + GOOD[2:] + b"01-what-the-future-brings", 1),
    ],
)
def test_a_context_is_read(value, flags):
    assert parse_traceparent(value) == Parent(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        GOOD,
        GOOD.upper() + b"01",
        GOOD + b"1",
        GOOD + b"001",
        # Version 00 ends here.
        GOOD + b"01-",
        GOOD + b"01-more",
        b"ff" + GOOD[2:] + b"01",
        b"01" + GOOD[2:] + b"01more",
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-" + b"0" * 16 + b"-01",
        # Two headers, joined.
        GOOD + b"01," + GOOD + b"01",
        b"00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
        "00-４bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".encode(),
    ],
)
def test_a_context_that_is_none_says_nothing(value):
    assert parse_traceparent(value) is None


def test_only_the_flag_says_whether_a_parent_is_recorded():
    assert Parent(1, 2, 1).sampled
    assert Parent(1, 2, 3).sampled
    assert not Parent(1, 2, 2).sampled


def test_each_attempt_has_an_id_of_its_own_that_its_replica_gets():
    trace = make()
    ids = [trace.span_id, trace.wait_id(), trace.attempt_id(0), trace.attempt_id(1)]
    assert ids == [0x10, 0x11, 0x12, 0x13]
    assert trace.lines(1) == (
        b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000013-01\r\ntracestate: a=1\r\n"
    )


def test_what_is_written_is_read_again():
    line = make(flags=3, told=b"").lines(0)
    name, _, value = line.partition(b": ")
    assert (name, value[-2:]) == (b"traceparent", b"\r\n")
    assert parse_traceparent(value) == Parent(TRACE, 0x12, 3)


def test_ids_are_new_beyond_what_is_drawn_at_once():
    ids, again = FreshIds(Random(1)), FreshIds(Random(1))
    taken = [ids.take() for _ in range(1000)]
    assert taken == [again.take() for _ in range(1000)]
    parents = [parse_traceparent(b"00-" + one + b"-01") for one in taken]
    assert len({parent.trace_id for parent in parents if parent is not None}) == 1000
    assert len({parent.span_id for parent in parents if parent is not None}) == 1000


def test_a_turn_that_is_not_recorded_tells_the_same_of_each_attempt():
    line = unsampled_line(GOOD[3:-1])
    assert line == b"traceparent: " + GOOD + b"00\r\n"
    trace = unsampled(line + b"tracestate: a=1\r\n")
    assert not trace.sampled
    assert trace.lines(0) == trace.lines(1) == trace.prefill_lines(0) == trace.told


def test_a_clients_trace_id_keeps_its_mark_of_being_random():
    assert sampled_flags(None) == 1
    assert sampled_flags(Parent(1, 1, 0)) == 1
    assert sampled_flags(Parent(1, 1, 2)) == 3
