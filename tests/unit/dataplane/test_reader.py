"""What a request body says to the router."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT
from router.core.request import EMPTY_CHAIN
from router.dataplane.reader import MAX_RESPONSE_ID, RequestReader
from router.dataplane.splice import RESERVED, rewrite
from tests.support.bodies import READER, USER, read


def refusal(body: bytes, path: str = "/v1/chat/completions") -> str:
    with pytest.raises(Refused) as caught:
        READER.read(path, body, OPEN_TENANT)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    return caught.value.message


def test_the_plain_facts_are_read() -> None:
    said = read({"model": "m", "stream": True, "messages": [USER]})
    assert (said.model, said.stream, said.reserved, said.asks_usage) == ("m", True, False, False)


@pytest.mark.parametrize("body", [{}, {"model": None, "stream": None}])
def test_what_is_absent_or_null_is_empty(body: dict[str, Any]) -> None:
    said = read(body)
    assert (said.model, said.stream, said.chain, said.opening) == ("", False, EMPTY_CHAIN, 0)
    assert said.session_value is said.previous_response_id is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"model=m", "not JSON"),
        (b'{"model":"m"', "not JSON"),
        (b'{"model":"m"} x', "trailing characters"),
        (b'{"a":"\\x"}', "escaped character"),
        (b'{"a":"\\ud83d"}', "half of a surrogate pair"),
        (b'{"a":"\xff"}', "not UTF-8: byte 6"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"model":3}', "$.model"),
        (b'{"stream":"yes"}', "$.stream"),
        (b'{"messages":"hi"}', "$.messages"),
        (b'{"messages":["hi"]}', "$.messages[0]"),
        (b'{"a":' + b"[" * 15_000 + b"]" * 15_000 + b"}", "nested too deep"),
        (b'{"messages":[' + b"{}," * 20_000 + b"{}]}", "more than 20000 messages"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_what_and_where(body: bytes, words: str) -> None:
    assert words in refusal(body)


def test_text_beyond_ascii_is_welcome() -> None:
    assert read('{"model":"模型","messages":[{"role":"user","content":"ß"}]}'.encode()).model == "模型"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt_cache_key": "a", "session_id": "b"}, ("prompt_cache_key", "a")),
        ({"prompt_cache_key": "", "session_id": "b"}, ("session_id", "b")),
        ({"prompt_cache_key": None, "metadata": {"session_id": "c"}}, ("metadata.session_id", "c")),
        ({"metadata": "x", "session_id": 42}, ("session_id", "42")),
        ({"metadata": {"session_id": {}}, "session_id": 1.5}, ("session_id", "1.5")),
        ({"metadata": {"user_id": "x"}, "session_id": "ü"}, ("session_id", "ü")),
        ({"session_id": True}, None),
        ({"session_id": []}, None),
        ({"metadata": None}, None),
    ],
)
def test_the_first_field_that_names_a_session_does(
    body: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert read(body).session_value == expected


@pytest.mark.parametrize(
    "field", ["user", "model", "x-session", "class", "_id", "größe", "a.b-c", "messages"]
)
def test_any_field_may_be_configured(field: str) -> None:
    top, _, inner = field.partition(".")
    reader = RequestReader(body_fields=(field,), derive=False)
    body = {top: {inner: "s"} if inner else "s"}
    if field == "messages":
        assert read({"messages": [USER]}, reader=reader).session_value is None
    else:
        assert read(body, reader=reader).session_value == (field, "s")


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/other"])
def test_a_reserved_field_is_noticed_however_it_is_written(name: str, path: str) -> None:
    spelled = "".join(f"\\u{ord(sign):04x}" for sign in name)
    assert read({name: None}, path).reserved
    assert read(f'{{"{spelled}":1}}'.encode(), path).reserved
    assert not read({"a": {name: 1}, "messages": [{"role": name, "content": name}]}, path).reserved
    assert read({"vllm_xargs": {"a": 1, name: None}}, path).reserved
    assert read(f'{{"vllm_xargs":{{"{spelled}":1}}}}'.encode(), path).reserved
    for harmless in ({"a": {name: 1}}, name, [name], None, {}):
        assert not read({"vllm_xargs": harmless}, path).reserved


@pytest.mark.parametrize(
    ("options", "has", "asks"),
    [
        ("{}", True, False),
        ("null", True, False),
        ('{"include_usage":null}', True, False),
        ('{"include_usage":false}', True, False),
        ('{"include_usage":true}', True, True),
        ('"x"', True, True),
    ],
)
def test_stream_options_are_noticed(options: str, has: bool, asks: bool) -> None:
    said = read(f'{{"stream_options":{options}}}'.encode())
    assert (said.has_stream_options, said.asks_usage) == (has, asks)


@pytest.mark.parametrize(("sent", "expected"), [("resp_1", "resp_1"), ("", None), (None, None), (3, None)])
def test_a_previous_response_is_a_pin_in_responses_only(sent: Any, expected: str | None) -> None:
    body = {"input": "hi", "previous_response_id": sent}
    assert read(body, "/v1/responses").previous_response_id == expected
    assert read(body, "/v1/chat/completions").previous_response_id is None


def test_of_another_path_only_what_all_bodies_have_is_read() -> None:
    said = read({"model": "m", "session_id": "s", "messages": "whatever"}, "/v1/other")
    assert (said.model, said.session_value, said.chain) == ("m", ("session_id", "s"), EMPTY_CHAIN)


SAMPLE = (
    b'{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header","cache_control":{}}],'
    b'"messages":[{"role":"user","content":[{"type":"tool_result",'
    b'"content":[{"type":"image","source":"\\ud83d\\ude00"}]}]},{"role":"assistant","content":"\xc3\xa9"}],'
    b'"tools":[{"cache_control":1}],"prompt":[[1,2],"a"],"input":[{"output":[]}],'
    b'"metadata":{"session_id":"\\u00e9"},"session_id":12,"stream_options":{"include_usage":false},'
    b'"thinking":{"type":"x"}}'
)
PATHS = sorted(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/tokenize",
        "/v1/score",
        "/v1/x",
    }
)
CHANGES = st.lists(
    st.tuples(
        st.integers(0, len(SAMPLE) - 1),
        st.integers(0, 3),
        st.sampled_from(
            [b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"null", b"1", b"\\ud83d", b"\xff", b" "]
        ),
    ),
    max_size=4,
)


@given(st.sampled_from(PATHS), CHANGES)
@example("/v1/messages", [])
def test_a_broken_body_is_read_or_refused_and_nothing_else(
    path: str, changes: list[tuple[int, int, bytes]]
) -> None:
    body = SAMPLE
    for at, size, instead in changes:
        body = body[:at] + instead + body[at + size :]
    try:
        said = READER.read(path, body, OPEN_TENANT)
    except Refused:
        return
    assert len(said.chain.hashes) == len(said.chain.ends)
    assert list(said.chain.ends) == sorted(said.chain.ends)
    out = b"".join(rewrite(body, said, salt="s", include_usage=True))
    assert json.loads(out)["cache_salt"] == "s"


@pytest.mark.parametrize(
    ("store", "stores"),
    [({}, True), ({"store": True}, True), ({"store": False}, False), ({"store": None}, False)],
)
def test_whether_a_response_may_be_stored_is_read_in_responses_only(
    store: dict[str, Any], stores: bool
) -> None:
    assert read({"input": "x", **store}, "/v1/responses").stores is stores
    assert not read({"messages": [USER], **store}).stores


def test_the_id_of_a_previous_response_is_bounded() -> None:
    most = "r" * MAX_RESPONSE_ID
    assert read({"previous_response_id": most}, "/v1/responses").previous_response_id == most
    with pytest.raises(Refused, match="a previous_response_id of more than 256 bytes"):
        read({"previous_response_id": most + "r"}, "/v1/responses")
