"""Members as they were sent, and what they hold."""

import pytest
from msgspec import UNSET, Raw

from router.dataplane.members import raw, sized, text, text_or_number


@pytest.mark.parametrize(
    ("sent", "bare", "words", "either"),
    [
        (b'"a"', b'"a"', "a", "a"),
        (b'""', b'""', None, None),
        (b'"\\u00e9"', b'"\\u00e9"', "é", "é"),
        (b"12", b"12", None, "12"),
        (b"-0.5", b"-0.5", None, "-0.5"),
        (b"null", b"", None, None),
        (b"[1]", b"[1]", None, None),
    ],
)
def test_what_a_member_holds(sent: bytes, bare: bytes, words: str | None, either: str | None) -> None:
    member = Raw(sent)
    assert (raw(member), text(member), text_or_number(member)) == (bare, words, either)


def test_an_absent_member_holds_nothing() -> None:
    assert (raw(UNSET), text(UNSET)) == (b"", None)


def test_texts_with_their_sizes_are_not_taken_for_others() -> None:
    assert sized(b"ab", b"c") == b"2:ab1:c"
    assert sized(b"a", b"bc") != sized(b"ab", b"c")
