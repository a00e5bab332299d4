"""Token ids as text: compared, joined and cut as a list of numbers would be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.token_ids import TokenIds

# Numbers of which one may begin as another does, and equal ones.
IDS = st.lists(st.sampled_from([0, 1, 2, 12, 120, 121, 151_935]), max_size=30)


def ids(numbers: list[int], *, apart: bool = False) -> TokenIds:
    made = TokenIds.read(json.dumps(numbers, separators=(", " if apart else ",", ":")).encode())
    assert made is not None
    return made


@given(IDS, IDS)
def test_two_prompts_have_in_common_what_they_begin_with(one: list[int], two: list[int]) -> None:
    for other in (two, one + two, one[: len(one) // 2] + two):
        expected = 0
        while expected < min(len(one), len(other)) and one[expected] == other[expected]:
            expected += 1
        assert ids(one).common(ids(other)) == ids(other).common(ids(one)) == expected
        assert (ids(one) == ids(other)) == (one == other)


@given(IDS, IDS, st.integers(0, 35))
def test_they_are_joined_and_cut_as_lists_are(one: list[int], two: list[int], count: int) -> None:
    whole = ids(one) + ids(two)
    assert whole == ids(one + two)
    assert len(whole) == len(one + two)
    cut = whole.first(count)
    assert cut == ids((one + two)[:count])
    assert (len(cut), cut.size) == (len((one + two)[:count]), sum(len(f"{x},") for x in (one + two)[:count]))


@given(IDS)
def test_they_are_told_as_they_were_read(numbers: list[int]) -> None:
    assert json.loads(ids(numbers).told) == numbers


@given(IDS)
def test_how_a_replica_sets_its_commas_does_not_matter(numbers: list[int]) -> None:
    assert ids(numbers, apart=True) == ids(numbers)
    assert hash(ids(numbers, apart=True)) == hash(ids(numbers))


@given(IDS, IDS, st.booleans())
def test_what_they_are_expected_to_be_changes_nothing(
    numbers: list[int], expected: list[int], apart: bool
) -> None:
    told = json.dumps(numbers, separators=(", " if apart else ",", ":")).encode()
    for like in (ids(expected), ids(numbers + expected), ids(numbers[: len(numbers) // 2] + expected)):
        found = TokenIds.read(told, like)
        assert found is not None
        assert found == ids(numbers)
        assert len(found) == len(numbers)
        assert (found is like) == (found == like)


def test_it_equals_nothing_else() -> None:
    assert ids([1]) != b"1,"


@pytest.mark.parametrize(
    "told",
    [
        *(b"null", b"5", b"51", b"{}", b"[[1],[2]]", b"[[]]", b'"[1,2]"', b'"1"'),
        *(b"[-1]", b"[1.5]", b"[1e3]", b'["1"]', b"[true]"),
        # No replica writes so, and text that is not looked at closely is not compared.
        *(b"", b"[", b"]", b"[1", b"1]", b"[1]]", "[\u0661]".encode()),
        *(b"[1,,2]", b"[,1]", b"[1,]", b"[,]", b"[1,, 2]"),
        *(b"[1,2,x]", b"[1,2,,3]", b"[1,2,3,]", b"[1,2,]", b"[12,2,-3]", b"[1,2,3,4x]"),
        *(b"[1,  2]", b"[ 1]", b"[1\n,2]", b" [1]", b"[1] "),
    ],
)
def test_nothing_but_a_list_of_ids_is_read(told: bytes) -> None:
    assert TokenIds.read(told) is None
    for like in (ids([]), ids([1]), ids([1, 2]), ids([1, 2, 3, 4])):
        assert TokenIds.read(told, like) is None
