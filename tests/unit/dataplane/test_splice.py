"""Editing JSON objects by their bytes."""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import DecodeError

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT
from router.dataplane.reader import RequestReader
from router.dataplane.splice import RESERVED, inserted, members, rewrite, without

READER = RequestReader(body_fields=("session_id",), derive=True)


class Said(NamedTuple):
    """What a reader would say of a body."""

    reserved: bool = False
    has_stream_options: bool = False
    asks_usage: bool = False


def rewritten(body: bytes, *, salt: str | None = None, include_usage: bool = False) -> bytes:
    """Through the reader, as the data plane does it."""
    read = READER.read("/v1/chat/completions", body, OPEN_TENANT)
    return b"".join(rewrite(body, read, salt=salt, include_usage=include_usage))


def escaped(key: str) -> str:
    return "".join(f"\\u{ord(sign):04x}" for sign in key)


def test_members_are_found_with_their_places() -> None:
    body = b' { "a" : [1, {"b": "}"}] , "\\u0063":"x\\"y" }'
    found = members(body)
    assert [one.key for one in found] == ["a", "c"]
    assert [body[one.start : one.end] for one in found] == [b'"a" : [1, {"b": "}"}]', b'"\\u0063":"x\\"y"']
    assert [body[one.value : one.end] for one in found] == [b'[1, {"b": "}"}]', b'"x\\"y"']


def test_repeated_members_are_all_found_in_order() -> None:
    body = b'{"a":1,"b":2,"\\u0061":3,"a":4}'
    assert [(one.key, body[one.value : one.end]) for one in members(body)] == [
        ("a", b"1"),
        ("b", b"2"),
        ("a", b"3"),
        ("a", b"4"),
    ]


@pytest.mark.parametrize("body", [b"[]", b"", b"null", b'{"a":1', b'{"a":1}x', b'{"a" 1}', b'{"a":1,}'])
def test_members_of_what_is_no_object_are_an_error(body: bytes) -> None:
    with pytest.raises(DecodeError):
        members(body)


def test_members_of_an_object_that_is_nested_too_deep_are_an_error() -> None:
    with pytest.raises(RecursionError):
        members(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_a_body_that_needs_nothing_is_passed_as_it_is() -> None:
    body = b'{"model":"m"}'
    assert rewrite(body, Said(), salt=None, include_usage=False) == (body,)


def test_what_is_added_goes_before_a_view_of_the_rest() -> None:
    body = b'{"model":"m"}'
    head, rest = rewrite(body, Said(), salt="pepper", include_usage=True)
    assert head == b'{"cache_salt":"pepper","stream_options":{"include_usage":true},'
    assert isinstance(rest, memoryview)
    assert rest.obj is body


@pytest.mark.parametrize("body", [b"{}", b" { } "])
def test_an_empty_body_gets_no_comma(body: bytes) -> None:
    assert json.loads(b"".join(rewrite(body, Said(), salt="s", include_usage=False))) == {"cache_salt": "s"}


def test_space_before_the_first_member_is_no_obstacle() -> None:
    body = b' {\n "model": "m" }'
    parts = rewrite(body, Said(), salt="s", include_usage=False)
    assert json.loads(b"".join(parts)) == {"cache_salt": "s", "model": "m"}


def test_a_salt_of_any_text_is_quoted() -> None:
    assert json.loads(rewritten(b'{"model":"m"}', salt='"\\\n')) == {"cache_salt": '"\\\n', "model": "m"}


def test_the_clients_salt_gives_way_to_the_routers() -> None:
    assert (
        rewritten(b'{"cache_salt":"theirs","model":"m"}', salt="ours") == b'{"cache_salt":"ours","model":"m"}'
    )


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("spell", [str, escaped])
def test_a_reserved_field_is_cut_wherever_it_stands(key: str, spell: Any) -> None:
    field = f'"{spell(key)}" : {{"x":[1,"}}"]}}'
    for body in (
        f"{{{field}}}",
        f'{{{field}, "a":1}}',
        f'{{"a":1 ,{field}}}',
        f'{{"a":1,{field},"b":2,{field}}}',
    ):
        kept = {name: value for name, value in json.loads(body).items() if name not in RESERVED}
        assert json.loads(rewritten(body.encode())) == kept


def test_a_reserved_name_below_the_top_is_left_alone() -> None:
    body = (
        b'{"messages":[{"role":"user","content":"\\"priority\\":1","cache_salt":"x"}],"a":{"session_id":1}}'
    )
    assert rewritten(body) == body


def test_options_without_usage_keep_their_other_members() -> None:
    body = b'{"stream":true,"stream_options":{"continuous_usage_stats": false, "include_usage":false},"n":1}'
    assert rewritten(body, include_usage=True) == (
        b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats": false},"n":1}'
    )


@pytest.mark.parametrize(
    "options", [b"null", b"{}", b'{"include_usage":null}', b'{ "include_usage" : false }']
)
def test_options_that_ask_for_nothing_are_made_to_ask(options: bytes) -> None:
    body = b'{"stream_options":%b,"stream":true}' % options
    assert json.loads(rewritten(body, include_usage=True))["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("options", [b'{"include_usage":true}', b'{"include_usage":1}', b'"yes"', b"[]"])
def test_options_that_ask_or_are_wrong_stay_as_sent(options: bytes) -> None:
    body = b'{"stream":true,"stream_options":%b}' % options
    assert rewritten(body, include_usage=True) == body


def test_of_repeated_options_the_last_is_made_to_ask() -> None:
    body = b'{"stream_options":{"include_usage":true},"stream_options":{}}'
    assert json.loads(rewritten(body, include_usage=True)) == {"stream_options": {"include_usage": True}}


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        rewrite(b"[]", Said(reserved=True), salt=None, include_usage=False)
    assert caught.value.kind is ErrorKind.BAD_REQUEST


def test_members_by_name_are_cut_from_an_object() -> None:
    assert without(b'{"a":1, "b":2, "c":3}', ("a", "c")) == b'{"b":2}'
    assert without(b'{"a":1}', ("b",)) == b'{"a":1}'


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
# The reader wants these of one type.
KEYS = st.sampled_from([*RESERVED, "stream_options"]) | st.text(max_size=6).filter(
    lambda key: key not in ("model", "stream", "messages")
)
SPACES = st.sampled_from(["", " ", "\n\t", "\r\n "])


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """An object as text: keys may repeat, be escaped, be reserved; any spacing."""
    fields = []
    for key, value in draw(st.lists(st.tuples(KEYS, VALUES), max_size=7)):
        # UTF-16 units, as JSON escapes them; lone surrogates are not UTF-8 and not generated.
        spelled = json.dumps(key, ensure_ascii=draw(st.booleans()))
        if draw(st.booleans()) and key.isascii():
            spelled = f'"{escaped(key)}"'
        text = json.dumps(value, ensure_ascii=draw(st.booleans()))
        fields.append(draw(SPACES) + spelled + draw(SPACES) + ":" + draw(SPACES) + text + draw(SPACES))
    return (draw(SPACES) + "{" + draw(SPACES) + ",".join(fields) + "}" + draw(SPACES)).encode()


@given(objects(), st.none() | st.text(min_size=1, max_size=5), st.booleans())
@example(b'{"priority":1}', None, True)
@example(b'{"stream_options":{},"priority":1}', "s", True)
@example(b'{"priority":1,"stream_options":null,"cache_salt":2}', "s", True)
def test_any_object_loses_what_is_reserved_and_gains_what_is_added(
    body: bytes, salt: str | None, include_usage: bool
) -> None:
    sent = json.loads(body)
    expected = {key: value for key, value in sent.items() if key not in RESERVED}
    if salt is not None:
        expected["cache_salt"] = salt
    options = sent.get("stream_options")
    if include_usage and (options is None or isinstance(options, dict)):
        wanted = (options or {}).get("include_usage")
        if wanted is None or wanted is False:
            expected["stream_options"] = {**(options or {}), "include_usage": True}
    assert json.loads(rewritten(body, salt=salt, include_usage=include_usage)) == expected


@given(objects())
def test_members_that_stay_keep_every_byte(body: bytes) -> None:
    out = rewritten(body)
    stay = [body[one.start : one.end] for one in members(body) if one.key not in RESERVED]
    assert [out[one.start : one.end] for one in members(out)] == stay


def test_of_the_extra_parameters_what_is_reserved_is_cut_and_the_rest_stays() -> None:
    body = b'{"vllm_xargs": { "priority": 1, "a" : [1] } ,"request_id":"x", "vllm_xargs":"text"}'
    assert rewritten(body, salt="s") == (
        b'{"cache_salt":"s","vllm_xargs": { "a" : [1] } ,"vllm_xargs":"text"}'
    )


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (b'{"model":"m"}', b'{"x":1,"model":"m"}'),
        (b'{"priority":1,"model":"m"}', b'{"x":1,"model":"m"}'),
        (b'{"priority":1}', b'{"x":1}'),
        (b' \n{ "priority" : 1 }', b' \n{"x":1  }'),
        (b"{}", b'{"x":1}'),
        (b" " * 200 + b"{" + b" " * 200 + b"}", b" " * 200 + b'{"x":1' + b" " * 200 + b"}"),
        (b"{" + b" " * 200 + b'"a":1}', b'{"x":1,' + b" " * 200 + b'"a":1}'),
    ],
)
def test_a_member_is_put_before_all_others(body: bytes, whole: bytes) -> None:
    read = READER.read("/v1/chat/completions", body, OPEN_TENANT)
    parts = rewrite(body, read, salt=None, include_usage=False)
    assert b"".join(inserted(parts, b'"x":1')) == whole


@given(
    st.dictionaries(st.sampled_from(["seed", "priority", "a", "session_id"]), st.integers()), st.booleans()
)
def test_with_a_member_more_it_is_the_same_object(sent: dict[str, int], salted: bool) -> None:
    body = json.dumps(sent).encode()
    read = READER.read("/v1/x", body, OPEN_TENANT)
    parts = rewrite(body, read, salt="s" if salted else None, include_usage=False)
    before = json.loads(b"".join(parts))
    assert json.loads(b"".join(inserted(parts, b'"x":[1]'))) == {"x": [1], **before}
