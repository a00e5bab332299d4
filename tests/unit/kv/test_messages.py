"""Messages: what was packed is read; whatever else comes is a fault of the wire, and nothing but that."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv import messages as m
from router.kv.wire import Type, WireFault

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5)
LEAVES |= st.binary(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)


def test_every_shape_survives_the_way():
    ask = m.Ask("r1", "acme", b"h" * 64, {"v": 1, "sources": ["a"]})
    assert m.read(Type.ASK, m.pack(ask)) == ask


def test_every_type_has_a_shape():
    assert set(m.SHAPES) == set(Type)


@given(st.sampled_from(sorted(m.SHAPES)), st.binary(max_size=300))
def test_arbitrary_bytes_are_a_message_or_a_fault(kind, meta):
    with suppress(WireFault):
        m.read(kind, meta)


@given(st.sampled_from(sorted(m.SHAPES)), VALUES)
def test_well_formed_msgpack_of_another_shape_is_a_fault(kind, value):
    with suppress(WireFault):
        m.read(kind, msgspec.msgpack.encode(value))


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_nesting_without_end_is_a_fault(depth):
    deep = b"\x81\xa4hint" + b"\x91" * depth
    with pytest.raises(WireFault):
        m.read(Type.ASK, deep)


@pytest.mark.parametrize("claim", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_a_length_that_is_not_there_allocates_nothing(claim):
    with pytest.raises(WireFault):
        m.read(Type.STATS, b"\x81\xa7figures" + claim)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Type.RESERVE, {"count": -1}),
        (Type.RESERVE, {"count": 1 << 21}),
        (Type.RESERVE, {"count": True}),
        (Type.RESERVE, {"count": 1, "more": 2}),
        (Type.RESERVE, {}),
        (Type.FORGET, {"request": "r" * 257}),
        (Type.ATTACHED, {"arena": "/x", "identity": b"short"}),
    ],
)
def test_values_out_of_bounds_are_faults(kind, value):
    with pytest.raises(WireFault):
        m.read(kind, msgspec.msgpack.encode(value))
