"""What segments are, in a few bytes each."""

from router.core.outline import (
    CONTINUES,
    FIRST_ROLE,
    ROLES,
    ROOT,
    SYSTEM,
    TOOLS,
    Drawing,
    Outline,
    Part,
    add_low_32,
    low_32,
    opening_shape,
)
from tests.support.digests import digest

USER, ASSISTANT = FIRST_ROLE + ROLES.index("user"), FIRST_ROLE + ROLES.index("assistant")


def outline(*segments: tuple[int, int] | tuple[int, int, int]) -> Outline:
    made = Drawing()
    for segment in segments:
        made.add(segment[0], digest(segment[1]), digest(segment[2] if len(segment) == 3 else segment[1]))
    return made.outline()


def test_what_two_have_in_common_ends_at_the_first_segment_that_differs():
    one = outline((ROOT, 1), (SYSTEM, 2), (USER, 3), (USER, 4))
    for length in range(5):
        other = outline(*[(ROOT, 1), (SYSTEM, 2), (USER, 3), (USER, 4)][:length], (USER, 9))
        assert one.common(other) == other.common(one) == length
    assert one.common(one) == 4
    assert one.common(outline()) == 0


def test_messages_are_counted_from_0_and_stretches_of_one_are_that_one():
    made = outline(
        (ROOT, 1), (TOOLS, 2), (TOOLS | CONTINUES, 3), (USER, 4), (USER | CONTINUES, 5), (ASSISTANT, 6)
    )
    assert [made.message(at) for at in range(6)] == [None, None, None, 0, 0, 1]
    assert [made.role(at) for at in (2, 4, 5)] == [None, "user", "assistant"]
    assert [made.part(at) for at in (0, 2, 4)] == [Part.PARAMETERS, Part.TOOLS, Part.MESSAGE]
    assert [made.beginning(at) for at in range(6)] == [0, 1, 1, 3, 3, 5]
    assert made.beginnings(1) == [1, 3, 5]
    assert made.units(made.beginnings(1)) == [(2, 3), (4, 5), 6]
    assert made.message_units([1, 3, 5], "abc") == ["b", "c"]
    assert [made.messages(end) for end in range(7)] == [0, 0, 0, 0, 1, 1, 2]
    assert made.units(made.beginnings(5)) == [6]
    assert made.units(made.beginnings(6)) == []


def test_a_system_message_is_of_the_system_prompt_and_has_a_number():
    made = outline((ROOT, 1), (FIRST_ROLE, 2), (USER, 3))
    assert (made.part(1), made.message(1), made.role(1)) == (Part.SYSTEM, 0, "system")


def test_hashes_are_cut_to_32_bits():
    made = outline((USER, (1 << 64) - 1, 1 << 40))
    assert (made.own[0], made.shapes[0]) == ((1 << 32) - 1, 0)
    assert list(low_32((3 << 40 | 5, 1, (1 << 64) - 2))) == [5, 1, (1 << 32) - 2]
    assert list(low_32(())) == []
    some = low_32((7,))
    add_low_32(some, (3 << 40 | 5, (1 << 64) - 2))
    assert list(some) == [7, 5, (1 << 32) - 2]
    many = [(at << 33) + at for at in range(40)]
    assert list(low_32(many)) == list(range(40))


def test_an_outline_may_leave_out_the_first_that_were_drawn():
    made = Drawing()
    for number in range(4):
        made.add(USER, digest(number), digest(10 + number))
    behind = made.outline(3)
    assert (list(behind.tags), list(behind.own), list(behind.shapes)) == ([USER], [3], [13])


def test_what_is_cut_off_can_be_added_again():
    made = outline((ROOT, 1), (USER, 2), (USER, 3))
    made.cut(1)
    made.extend(outline((USER, 2), (USER, 3)))
    assert made.common(outline((ROOT, 1), (USER, 2), (USER, 3))) == len(made) == 3


def test_openings_of_one_shape_agree_whatever_their_digits_and_stretches():
    before = outline((ROOT, 1, 0), (SYSTEM, 2, 7), (USER, 3, 8))
    after = outline((ROOT, 1, 0), (SYSTEM, 9, 7), (SYSTEM | CONTINUES, 5, 0), (USER, 3, 8))
    assert opening_shape(before, 3) == opening_shape(after, 4)
    assert opening_shape(before, 3) != opening_shape(outline((ROOT, 2, 0), (SYSTEM, 2, 7), (USER, 3, 8)), 3)
    assert opening_shape(before, 3) != opening_shape(outline((ROOT, 1, 0), (SYSTEM, 2, 6), (USER, 3, 8)), 3)
