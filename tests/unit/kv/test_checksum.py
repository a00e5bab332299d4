"""Checksums: the same whole, in pieces, and in every version."""

from hypothesis import given
from hypothesis import strategies as st

from router.kv.checksum import checksum, running


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_pieces_add_up_to_the_whole(pieces):
    total = running()
    for piece in pieces:
        total.update(memoryview(piece))
    assert total.intdigest() == checksum(b"".join(pieces))


def test_it_is_xxh3_with_64_bits():
    assert checksum(b"") == 0x2D06800538D394C2
