"""Which values of a head are plain, and what those say that are not refused."""

import pytest

from router.dataplane.head import (
    MAX_DIGITS,
    Head,
    add_traceparent,
    add_tracestate,
    is_plain_id,
    is_plain_value,
    listed_in,
    seconds,
)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (b"application/json", True),
        (b"a b", True),
        (b"", False),
        (b" a", False),
        (b"a ", False),
        (b"\ta", False),
        (b"a\x00b", False),
        (b"a\x7f", False),
        (b"caf\xe9", False),
    ],
)
def test_a_plain_value_is_printable_and_has_nothing_to_strip(value, plain):
    assert is_plain_value(value) is plain


@pytest.mark.parametrize(
    ("request_id", "plain"),
    [
        (b"0b5f-77", True),
        (b"a.b:c_d-e", True),
        (b"x" * 128, True),
        (b"x" * 129, False),
        (b"", False),
        (b"a b", False),
        (b'a"b', False),
        (b"a/b", False),
    ],
)
def test_a_plain_id_can_be_part_of_an_engines_own(request_id, plain):
    assert is_plain_id(request_id) is plain


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"600", 600.0),
        (b" 1.5 ", 1.5),
        (b"0", None),
        (b"", None),
        (b"-1", None),
        (b"1e9", None),
        (b"inf", None),
        (b"1" * (MAX_DIGITS + 1), None),
    ],
)
def test_patience_is_a_plain_number_of_seconds(value, said):
    assert seconds(value) == said


def test_a_connection_header_names_what_is_hop_by_hop():
    assert listed_in(b"Keep-Alive") == frozenset()
    assert listed_in(b"close, X-Secret ,keep-alive,") == {b"x-secret"}


def test_two_traces_are_kept_to_be_refused_and_states_are_one_list():
    head = Head(b"POST", b"/", "/", "1.1")
    for value in (b"00-1", b"00-2"):
        add_traceparent(head, value)
        add_tracestate(head, value)
    assert (head.traceparent, head.tracestate) == (b"00-1,00-2", b"00-1,00-2")
