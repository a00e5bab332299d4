"""The hash is XXH3, and behaves as a chain needs."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.hashing import hash64


def test_gives_the_published_xxh3_values_so_that_all_routers_agree() -> None:
    assert hash64(b"") == 0x2D06800538D394C2
    assert hash64(b"homing") == 0x63896309951D9256
    assert hash64(b"homing", 7) == 0x2BFAE12F29A07F28


def test_reads_a_memoryview_without_a_copy_and_alike() -> None:
    body = b'{"messages": []}'
    assert hash64(memoryview(body)[2:10]) == hash64(body[2:10])


@given(st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_takes_any_hash_as_seed_and_stays_within_64_bits(data: bytes, seed: int) -> None:
    assert 0 <= hash64(data, seed) < 2**64


def test_a_chained_hash_depends_on_what_precedes_it() -> None:
    moved = hash64(b"second", hash64(b"other"))
    assert hash64(b"second", hash64(b"first")) != moved
