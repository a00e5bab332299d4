from hypothesis import given
from hypothesis import strategies as st

from router.base.common import common_length

TEXTS = st.binary(max_size=12).map(lambda text: bytes(byte & 1 for byte in text))


@given(TEXTS, TEXTS)
def test_as_many_as_are_the_same_one_by_one(one: bytes, other: bytes) -> None:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert common_length(one, other) == same
