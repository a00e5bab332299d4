"""Events too long to hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.observe import Usage
from router.dataplane.answer_long import LongEvent

KEY = b'"kv_transfer_params"'


def through(data: bytes, step: int | None = None) -> tuple[bytes, LongEvent]:
    event = LongEvent()
    step = step or len(data) or 1
    pieces = [event.feed(data[i : i + step]) for i in range(0, len(data), step)]
    return b"".join([*pieces, event.feed(b"", last=True)]), event


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":[{"b":"]}\\""}]}',
        b"[1,[2,{}]]",
        b'"text \\\\"',
        b'""',
        b"12.5e3",
        b"true",
        b"null",
        b" \n { } ",
    ],
)
@pytest.mark.parametrize("step", [None, 1, 7])
def test_an_internal_member_becomes_null_whatever_its_value(value: bytes, step: int | None) -> None:
    out, _ = through(b'{"a":1,%b:%b,"b":[2]}' % (KEY, value), step)
    assert json.loads(out) == {"a": 1, "kv_transfer_params": None, "b": [2]}


def test_what_a_model_wrote_is_no_member() -> None:
    text = json.dumps(
        {"content": 'say "kv_transfer_params": {"a": 1}, "usage": {"prompt_tokens": 1} \\'}
    ).encode()
    out, event = through(text, 3)
    assert out == text
    assert event.usage is None


def test_a_backslash_at_the_end_of_a_text_hides_no_member() -> None:
    out, _ = through(b'{"a":"\\\\","b":"\\\\\\"",%b:{"c":1}}' % KEY, 1)
    assert out == b'{"a":"\\\\","b":"\\\\\\"",%b:null}' % KEY


def test_a_name_without_a_value_is_no_member() -> None:
    text = b'{"a":[%b,%b],"b":%b}' % (KEY, KEY, KEY)
    assert through(text, 5)[0] == text


def test_usage_is_noted_and_passes() -> None:
    text = b'{"x":{"usage":{"type":"string"}},"usage": {"prompt_tokens":3,"completion_tokens":1},"y":"}"}'
    out, event = through(text, 4)
    assert out == text
    assert event.usage == Usage(3, 1)


def test_usage_of_absurd_length_passes_unread() -> None:
    text = b'{"usage":{"x":"%b","prompt_tokens":3}}' % (b"x" * 5000)
    out, event = through(text)
    assert out == text
    assert event.usage is None


def test_the_id_and_the_end_of_a_response_are_noted() -> None:
    text = b'data: {"response":{"id":"resp_1","id":"no"},"type":"response.incomplete"}\n\n'
    out, event = through(text, 2)
    assert out == text
    assert (event.response_id, event.ended) == ("resp_1", True)


def test_other_kinds_are_no_end() -> None:
    assert not through(b'{"type":"response.in_progress","text":"\\"type\\":\\"response.completed\\""}')[
        1
    ].ended


def test_a_value_that_never_ends_is_never_shown() -> None:
    out, _ = through(b'{"a":1,%b:{"secret":[1,2' % KEY, 6)
    assert out == b'{"a":1,%b:null' % KEY


VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\{}[]:, kv', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(["kv_transfer_params", "usage", "a", "\\"]), VALUES), max_size=6),
    st.integers(1, 40),
)
def test_any_object_in_any_pieces_loses_just_the_internal_values(
    fields: list[tuple[str, Any]], step: int
) -> None:
    def text(blank: bool) -> bytes:
        shown = [(name, None if blank and name == "kv_transfer_params" else value) for name, value in fields]
        return ("{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in shown) + "}").encode()

    assert through(text(blank=False), step)[0] == text(blank=True)
