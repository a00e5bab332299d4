"""Bodies of too many values are refused before they are decoded; long texts of any kind are not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.build import kind_of_build
from router.base.errors import ErrorKind, Refused
from router.dataplane import shape
from router.dataplane.shape import MAX_LISTS, MAX_OBJECTS, MAX_STRINGS, check_shape


def refusal(body: object) -> str:
    with pytest.raises(Refused) as caught:
        check_shape(json.dumps(body).encode())
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    return caught.value.message


def test_too_many_of_each_kind_of_value_are_refused_by_name():
    assert f"more than {MAX_OBJECTS} messages, blocks and other objects" in refusal(
        {"messages": [{}] * MAX_OBJECTS}
    )
    long = "x" * shape._MIDDLING
    assert f"more than {MAX_LISTS} lists" in refusal({"prompt": [[1]] * MAX_LISTS, "text": long})
    assert f"more than {MAX_STRINGS} strings" in refusal({"input": ["a"] * MAX_STRINGS, "text": long})


def test_strings_and_lists_of_a_middling_body_are_cheap_and_not_counted():
    check_shape(json.dumps({"prompt": [[1]] * (MAX_LISTS + 1)}).encode())
    check_shape(json.dumps({"input": ["a"] * (MAX_STRINGS + 1)}).encode())


def test_as_many_as_the_limit_are_let_through():
    check_shape(json.dumps([{}] * MAX_OBJECTS).encode())
    check_shape(json.dumps([[]] * (MAX_LISTS - 1)).encode())
    check_shape(json.dumps(["x" * 3] * MAX_STRINGS).encode())


@pytest.mark.parametrize("text", ["{", "[", '"', '\\"', "\\", '\\\\"{', 'if (x) { y["a"] = "b"; }\n'])
def test_a_text_may_hold_as_many_braces_and_quotes_as_it_likes(text):
    check_shape(json.dumps({"messages": [{"role": "user", "content": text * 300_000}]}).encode())


@pytest.mark.skipif(kind_of_build() == "compiled", reason="replaces what is compiled")
@given(
    st.recursive(st.text('{[",\\a'), lambda inner: st.lists(inner) | st.dictionaries(st.text('{"\\'), inner))
)
def test_what_is_counted_is_what_the_body_is_made_of(value):
    objects, lists, strings = _count(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape, "_SMALL", 0)
        patch.setattr(shape, "_MIDDLING", 0)
        for name, count in (("MAX_OBJECTS", objects), ("MAX_LISTS", lists), ("MAX_STRINGS", strings)):
            patch.setattr(shape, name, count)
        body = json.dumps(value).encode()
        check_shape(body)
        for name, count in (("MAX_OBJECTS", objects), ("MAX_LISTS", lists), ("MAX_STRINGS", strings)):
            if count:
                patch.setattr(shape, name, count - 1)
                with pytest.raises(Refused):
                    check_shape(body)
                patch.setattr(shape, name, count)


def _count(value: object) -> tuple[int, int, int]:
    """Objects, lists and strings."""
    if isinstance(value, str):
        return 0, 0, 1
    if isinstance(value, list):
        parts, own = [_count(one) for one in value], (0, 1, 0)
    else:
        assert isinstance(value, dict)
        parts, own = [_count(one) for one in value.values()], (1, 0, len(value))
    return tuple(sum(column) for column in zip(own, *parts, strict=True))  # type: ignore[return-value]
