from hypothesis import given
from hypothesis import strategies as st

from router.base.common import common_length

TEXTS = st.binary(max_size=12).map(lambda text: bytes(byte & 1 for byte in text))


# Beginnings about as long as one piece of what is compared at once, and as two.
LONG = st.sampled_from([at + by for at in (0, 4096, 8192) for by in (-2, -1, 0, 1, 2) if at + by >= 0])


@given(LONG, TEXTS, TEXTS)
def test_long_ones_too(beginning: int, one: bytes, other: bytes) -> None:
    shared = b"01" * (beginning // 2) + b"1" * (beginning % 2)
    assert common_length(shared + one, shared + other) == beginning + common_length(one, other)


@given(TEXTS, TEXTS)
def test_as_many_as_are_the_same_one_by_one(one: bytes, other: bytes) -> None:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert common_length(one, other) == same
