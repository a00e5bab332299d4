"""What a request body says to the router."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, TenantId
from router.core.request import EMPTY_CHAIN
from router.dataplane.dialects import (
    MAX_MODEL,
    MAX_RESPONSE_ID,
    Dialect,
    Read,
    RequestReader,
    dialect_of,
)
from router.dataplane.splice import RESERVED, rewrite

FIELDS = ("prompt_cache_key", "metadata.session_id", "session_id")
READER = RequestReader(body_fields=FIELDS, derive=True)
USER = {"role": "user", "content": "hi"}


def read(
    body: Any, path: str = "/v1/chat/completions", tenant: str = "", reader: RequestReader = READER
) -> Read:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return reader.read(path, sent, TenantId(tenant))


def refusal(body: bytes, path: str = "/v1/chat/completions") -> str:
    with pytest.raises(Refused) as caught:
        READER.read(path, body, OPEN_TENANT)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    return caught.value.message


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", Dialect.CHAT),
        ("/v1/completions", Dialect.COMPLETIONS),
        ("/v1/responses", Dialect.RESPONSES),
        ("/v1/messages", Dialect.MESSAGES),
        ("/v1/messages/count_tokens", Dialect.MESSAGES),
        ("/tokenize", Dialect.TOKENIZE),
        ("/v1/embeddings", Dialect.POOLING),
        ("/v1/audio/transcriptions", None),
        ("/v1/chat/completions/", None),
    ],
)
def test_a_path_has_a_dialect(path: str, dialect: Dialect | None) -> None:
    assert dialect_of(path) is dialect


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


def test_an_opening_is_derived_only_where_the_rules_say_so() -> None:
    body = {"messages": [USER, {"role": "assistant", "content": "a"}]}
    said = read(body)
    assert said.chain.opening == 2
    assert said.opening == said.chain.hashes[1]
    assert read(body, reader=RequestReader(body_fields=(), derive=False)).opening == 0


def test_a_conversation_keeps_its_opening_as_it_grows() -> None:
    first = [{"role": "system", "content": "s"}, USER]
    later = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    other = [first[0], {"role": "user", "content": "another"}]
    assert read({"messages": first}).opening == read({"messages": later}).opening
    assert read({"messages": other}).opening != read({"messages": later}).opening


def test_a_long_first_message_is_in_the_opening_with_all_its_segments() -> None:
    def chat(text: str) -> Read:
        return read({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]})

    one, two = chat("x" * 10_000 + "1"), chat("x" * 10_000 + "2")
    assert one.chain.opening == 4
    assert one.chain.hashes[:3] == two.chain.hashes[:3]
    assert one.opening != two.opening


def test_a_conversation_without_a_user_opens_with_its_first_message() -> None:
    said = read({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]})
    assert said.chain.opening == 2


def test_a_bare_prompt_is_its_own_opening_and_a_pooled_one_has_none() -> None:
    bare = read({"prompt": "x" * 9000}, "/v1/completions")
    assert bare.chain.opening == len(bare.chain.hashes) == 4
    pooled = read({"input": "x" * 9000}, "/v1/embeddings")
    assert pooled.chain.hashes == bare.chain.hashes
    assert pooled.opening == pooled.chain.opening == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/embeddings", {"messages": [USER]}),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}]}),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}),
        ("/v1/score", {"queries": "a", "items": ["b"]}),
        ("/tokenize", {"prompt": "a"}),
        ("/tokenize", {"messages": [USER]}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}),
        ("/v1/responses", {"input": [USER]}),
        ("/v1/responses", {"input": ["odd"]}),
        ("/v1/messages", {"system": "s"}),
        ("/v1/chat/completions", {"tools": [{"type": "function"}]}),
    ],
)
def test_every_endpoint_with_a_prompt_has_a_chain(path: str, body: dict[str, Any]) -> None:
    said = read(body, path)
    assert len(said.chain.hashes) == len(said.chain.ends) > 1
    assert said.chain.ends[-1] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": None}),
        ("/v1/chat/completions", {"messages": [], "tools": []}),
        ("/v1/messages", {"system": None, "tools": None}),
        ("/v1/responses", {"input": None}),
    ],
)
def test_no_prompt_makes_no_chain(path: str, body: dict[str, Any]) -> None:
    assert read(body, path).chain == EMPTY_CHAIN


CHAT = {"model": "m", "messages": [USER]}


@pytest.mark.parametrize(
    "more",
    [
        {"model": "n"},
        {"chat_template": "t"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"text": "d"}]},
        {"reasoning_effort": "high"},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"add_special_tokens": True},
        {"mm_processor_kwargs": {"a": 1}},
        {"media_io_kwargs": {"a": 1}},
        {"truncate_prompt_tokens": 5},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_what_changes_the_rendered_prompt_changes_the_whole_chain(more: dict[str, Any]) -> None:
    one, two = read(CHAT).chain, read({**CHAT, **more}).chain
    assert not set(one.hashes[1:]) & set(two.hashes[1:])


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 5, "temperature": 0.5, "seed": 3, "stop": ["x"], "n": 2},
        {"metadata": {"a": "b"}, "user": "u", "session_id": "s", "prompt_cache_key": "k"},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"chat_template": None, "documents": None, "tools": None, "reasoning_effort": None},
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
    ],
)
def test_what_does_not_reach_the_prompt_does_not_count(more: dict[str, Any]) -> None:
    assert read({**CHAT, **more}).chain == read(CHAT).chain


def test_fields_cannot_be_taken_for_each_other() -> None:
    one = read({**CHAT, "chat_template": "a", "reasoning_effort": "b"})
    two = read({**CHAT, "chat_template": "b", "reasoning_effort": "a"})
    assert one.chain.hashes != two.chain.hashes
    assert (
        read(CHAT, tenant="ab").chain.hashes[0] != read({**CHAT, "model": "bm"}, tenant="a").chain.hashes[0]
    )


def test_equal_prompts_of_two_tenants_never_meet() -> None:
    one, two = read(CHAT, tenant="a"), read(CHAT, tenant="b")
    assert not set(one.chain.hashes) & set(two.chain.hashes)
    assert one.opening != two.opening


@pytest.mark.parametrize(
    ("path", "same", "other"),
    [
        (
            "/v1/messages",
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"thinking": {"type": "disabled"}},
        ),
        ("/v1/messages", {"output_config": {"format": {}}}, {"output_config": {"effort": "low"}}),
        ("/v1/responses", {"reasoning": {"summary": "auto"}}, {"reasoning": {"effort": "low"}}),
        ("/v1/responses", {"reasoning": {"effort": None}}, {"reasoning": "odd"}),
    ],
)
def test_of_thinking_only_what_the_template_is_told_counts(
    path: str, same: dict[str, Any], other: dict[str, Any]
) -> None:
    body = {"model": "m", "input": "hi", "messages": [USER]}
    assert read({**body, **same}, path).chain == read(body, path).chain
    assert read({**body, **other}, path).chain.hashes != read(body, path).chain.hashes


def test_a_prompt_behind_a_stored_response_is_not_the_prompt_alone() -> None:
    alone = read({"input": "hi"}, "/v1/responses").chain
    behind = read({"input": "hi", "previous_response_id": "resp_1"}, "/v1/responses").chain
    assert not set(alone.hashes) & set(behind.hashes)


def test_a_string_of_input_equals_a_message_of_the_user() -> None:
    assert read({"input": "hi"}, "/v1/responses").chain == read({"input": [USER]}, "/v1/responses").chain


def test_documents_are_part_of_the_prompts_length() -> None:
    documents = [{"text": "d" * 5000}]
    assert read({**CHAT, "documents": documents}).chain.ends[-1] > 5000


def test_tokenizing_a_chat_is_fingerprinted_as_the_chat() -> None:
    assert read(CHAT, "/tokenize").chain == read(CHAT).chain


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


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/other"])
def test_a_models_name_is_bounded_and_a_long_one_is_not_remembered(path: str) -> None:
    reader = RequestReader(body_fields=(), derive=True)
    assert read({"model": "m" * MAX_MODEL}, path, reader=reader).model == "m" * MAX_MODEL
    for _ in range(2):
        with pytest.raises(Refused, match="names a model in 513 bytes; 512 is the limit"):
            read({"model": "m" * (MAX_MODEL + 1)}, path, reader=reader)


def test_the_id_of_a_previous_response_is_bounded() -> None:
    most = "r" * MAX_RESPONSE_ID
    assert read({"previous_response_id": most}, "/v1/responses").previous_response_id == most
    with pytest.raises(Refused, match="a previous_response_id of more than 256 bytes"):
        read({"previous_response_id": most + "r"}, "/v1/responses")


USUAL = (
    b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":5%b}',
    b'{"model":null,"stream":null,"messages":[],"temperature":0.5%b}',
)


@pytest.mark.parametrize("body", USUAL)
@pytest.mark.parametrize(
    "more",
    [
        *(b"", b',"cache_salt":"x"', b',"cache\\u005fsalt":"x"', b',"user":"u"', b',"unheard_of":{"a":[1]}'),
        *(b',"chat_template_kwargs":{"a":1}', b',"vllm_xargs":{"cache_salt":"x"}', b',"model":"n"'),
        *(b',"kv_transfer_params":null', b',"stream":false', b',"max_tokens":[1,2]', b',"tools":[{"a":1}]'),
        *(b',"stream_options":{"include_usage":true}', b',"m\\u0065ssages":[{"role":"user","content":"b"}]'),
        *(b',"model":5', b',"stream":"yes"', b',"messages":{}', b',"x":', b',"temperature":01', b'}{"a":1'),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("named", ["user", "model", "tools", "system", "messages", "stream_options.session"])
def test_a_body_of_usual_members_is_read_as_any_other(body, more, path, named):
    quick = RequestReader(body_fields=(named,), derive=True)
    slow = RequestReader(body_fields=(named,), derive=True)
    for reading in slow._readings.values():
        reading._usual = None

    def said(reader):
        try:
            read = reader.read(path, body % more, OPEN_TENANT)
        except Refused as refused:
            return str(refused)
        return {name: getattr(read, name) for name in vars(Read) if name[0] != "_" and name != "outline"}

    assert said(quick) == said(slow)


def test_bodies_of_usual_members_are_decoded_once_and_others_are_told_from_them():
    for more in (b',"user":"u"', b',"cache_salt":"x"', b',"chat_template":"x"', b',"unheard_of":1'):
        reading = RequestReader(body_fields=("user",), derive=True)._readings[Dialect.CHAT]
        assert reading.decode_usual(USUAL[0] % b"") is not None
        assert reading.decode_usual(USUAL[0] % more) is None


def test_after_a_body_of_other_members_it_is_not_tried_for_a_while():
    reading = RequestReader(body_fields=("user",), derive=True)._readings[Dialect.CHAT]
    assert reading.decode_usual(USUAL[0] % b',"unheard_of":1') is None
    tries = [reading.decode_usual(USUAL[0] % b"") is not None for _ in range(18)]
    assert tries == [False] * 16 + [True] * 2
