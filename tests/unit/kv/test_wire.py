"""Frames: what was written is read, whatever the cuts; anything else is refused, and nothing is allocated
on a length that was not checked."""

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.kv.checksum import checksum
from router.kv.wire import (
    HEAD_BYTES,
    MAGIC,
    VERSION,
    Decoder,
    Frame,
    Limits,
    Type,
    VersionFault,
    WireFault,
    decode_head,
    encode,
)

LIMITS = Limits(meta=4096, payload=1 << 20)
FRAMES = st.builds(Frame, st.sampled_from(Type), st.integers(0, 2**64 - 1), st.binary(max_size=200))


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 80), min_size=1), st.booleans())
def test_frames_come_back_whatever_the_cuts(frames, cuts, summed):
    total = checksum if summed else None
    stream = b"".join(encode(kind, ident, meta, checksum=total) for kind, ident, meta in frames)
    decoder, read, at = Decoder(4096, total), [], 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        read += decoder.feed(stream[at : at + size])
        at += size
    assert read == frames


@given(st.binary(max_size=400))
@example(MAGIC + bytes([VERSION, 200]) + bytes(26))
@example(MAGIC + bytes([VERSION, 1]) + b"\xff" * 26)
def test_arbitrary_bytes_give_frames_or_a_fault_and_nothing_else(data):
    for total in (checksum, None):
        with suppress(WireFault):
            Decoder(4096, total).feed(data)


@given(FRAMES, st.data())
def test_one_flipped_bit_is_never_a_frame(frame, data):
    whole = bytearray(encode(*frame, checksum=checksum))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    decoder = Decoder(4096, checksum)
    try:
        # A length that grew waits for more; what follows shows that it is wrong.
        read = decoder.feed(bytes(whole)) + decoder.feed(bytes(8192))
    except WireFault:
        return
    assert read == []


def test_a_huge_length_is_refused_before_anything_is_allocated():
    head = bytearray(encode(Type.HELLO, 1, b"", checksum=None))
    head[16:20] = b"\xff" * 4
    tracemalloc.start()
    try:
        with pytest.raises(WireFault, match="metadata of 4294967295 bytes, 4096 at most"):
            Decoder(4096, None).feed(bytes(head))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, b"GET ", "not this protocol"),
        (4, b"\x02", "the other side speaks version 2, this one 1"),
        (5, b"\x3f", "unknown type 63"),
        (6, b"\x02\x00", "unknown flags 0x2"),
        (6, b"\x01\x00", "a checksum is wanted"),
        (16, (4097).to_bytes(4, "little"), "metadata of 4097 bytes, 4096 at most"),
        (20, (1 << 21).to_bytes(4, "little"), "a payload of 2097152 bytes, 1048576 at most"),
    ],
)
def test_a_head_is_refused_with_the_reason(at, value, fault):
    raw = bytearray(encode(Type.PING, 7, b"", checksum=checksum))
    raw[at : at + len(value)] = value
    with pytest.raises(WireFault, match=f"^{fault}$"):
        decode_head(raw, LIMITS, summed=True)


def test_another_version_says_which():
    raw = bytearray(encode(Type.PING, 7, b"", checksum=checksum))
    raw[4] = 9
    with pytest.raises(VersionFault) as caught:
        decode_head(raw, LIMITS, summed=True)
    assert caught.value.theirs == 9


def test_a_frame_without_a_checksum_is_taken_only_where_none_is_wanted():
    bare = encode(Type.PING, 7, b"x", checksum=None)
    assert Decoder(10, None).feed(bare) == [Frame(Type.PING, 7, b"x")]
    with pytest.raises(WireFault, match="a checksum is wanted"):
        Decoder(10, checksum).feed(bare)


def test_a_payload_has_no_place_in_a_stream_without_payloads():
    with pytest.raises(WireFault, match="a payload of 5 bytes, 0 at most"):
        Decoder(10, None).feed(encode(Type.BLOCK, 7, b"", payload_bytes=5, checksum=None))


def test_a_head_is_as_long_as_it_says():
    assert len(encode(Type.PING, 0, b"", checksum=None)) == HEAD_BYTES


def test_types_keep_their_numbers():
    assert Type.REFUSED == 0
    assert len(set(Type)) == len(Type.__members__)
