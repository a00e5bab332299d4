"""Bodies of pairs: what one replica may compute for another, what each is sent, what the client sees."""

import json
from typing import Any

import pytest

from router.core.observe import Usage
from router.dataplane.abridged import abridged
from router.dataplane.dialects import Dialect
from router.dataplane.pair_body import (
    Told,
    decode_parts,
    prefill_body,
    read_pair,
    rendered_ids,
    shown,
    told,
)

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def read(dialect: Dialect | None = Dialect.CHAT, **more: Any) -> tuple[bool, bool] | None:
    """Whether it is comparable and asks for ids."""
    body = read_pair(dialect, json.dumps({**CHAT, **more}).encode())
    return (body.comparable, body.asks_ids) if body is not None else None


def prefill(dialect: Dialect, body: bytes, params: bytes, *, ids: bool) -> Any:
    read = read_pair(dialect, body)
    assert read is not None
    return json.loads(prefill_body(dialect, body, read.members, params, ids=ids))


def test_a_chat_of_texts_and_tool_calls_is_comparable() -> None:
    assert read() == (True, False)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert read(messages=[{"role": "user", "content": parts}, call]) == (True, False)
    assert read(return_token_ids=True, n=1, echo=False, prompt_logprobs=None) == (True, True)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", None])
def test_what_is_no_text_is_not(kind: str | None) -> None:
    messages = [{"role": "user", "content": [{"type": kind}]}]
    assert read(messages=messages) == (False, False)
    for odd in ([{"content": 5}], [{"content": ["a"]}], [{"content": {"type": "text"}}], [5], "a", None):
        assert read(messages=odd) == (False, False)


def test_of_a_repeated_member_the_last_counts() -> None:
    for body, expected in (
        (b'{"messages":[{"content":5}],"n":2,"messages":[{"content":"a"}],"n":1}', (True, False)),
        (b'{"messages":[{"content":"a"}],"messages":[{"content":5}]}', (False, False)),
        (b'{"messages":[{"content":5,"content":"a"},{}]}', (True, False)),
    ):
        found = read_pair(Dialect.CHAT, body)
        assert found is not None
        assert (found.comparable, found.asks_ids) == expected
    assert read_pair(Dialect.CHAT, b'{"messages":[],"n":1,"n":2}') is None


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"best_of": 3},
        {"echo": True},
        {"use_beam_search": True},
        {"prompt_logprobs": 0},
        {"truncate_prompt_tokens": 10},
        {"previous_response_id": "r"},
        {"background": True},
        {"prompt_embeds": "x"},
    ],
)
def test_what_one_replica_must_do_alone(more: dict[str, Any]) -> None:
    assert read(**more) is None


def test_by_dialect() -> None:
    assert read(Dialect.MESSAGES) == read(Dialect.RESPONSES) == (False, False)
    assert read(Dialect.COMPLETIONS, prompt="hi") == (True, False)
    for prompt in (["a", "b"], [1, 2], None, 5):
        assert read(Dialect.COMPLETIONS, prompt=prompt) is None
    for other in (Dialect.TOKENIZE, Dialect.POOLING, None):
        assert read(other) is None
    assert read_pair(Dialect.CHAT, b"[1]") is None


def test_prefill_gets_the_same_prompt_and_is_asked_for_one_token() -> None:
    body = json.dumps(
        {
            **CHAT,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 500,
            "max_completion_tokens": 400,
            "min_tokens": 3,
            "logprobs": True,
            "top_logprobs": 2,
            "tools": [{"type": "function"}],
            "temperature": 0.5,
        }
    ).encode()
    sent = prefill(Dialect.CHAT, body, b'{"do_remote_decode":true}', ids=True)
    assert sent == {
        **CHAT,
        "tools": [{"type": "function"}],
        "temperature": 0.5,
        "kv_transfer_params": {"do_remote_decode": True},
        "max_tokens": 1,
        "stream": False,
        "return_token_ids": True,
    }
    other = prefill(Dialect.RESPONSES, b'{"store":true}', b"{}", ids=False)
    assert other == {"kv_transfer_params": {}, "max_output_tokens": 1, "store": False, "stream": False}


def test_decode_gets_the_clients_request_and_where_to_fetch() -> None:
    body = json.dumps({**CHAT, "stream": True, "stream_options": {}}).encode()
    kept = json.loads(b"".join(decode_parts((body,), b'{"a":1}', ids=False, whole=False)))
    assert kept == {**CHAT, "stream": True, "stream_options": {}, "kv_transfer_params": {"a": 1}}
    whole = json.loads(b"".join(decode_parts((body,), b'{"a":1}', ids=True, whole=True)))
    assert whole == {**CHAT, "kv_transfer_params": {"a": 1}, "return_token_ids": True}


ANSWER: dict[str, Any] = {
    "id": "x",
    "choices": [{"index": 0, "message": {"content": "}]{["}, "token_ids": [4, 5]}],
    "prompt_token_ids": [1, 2, 3],
    "kv_transfer_params": {"remote_port": 1},
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}


def test_a_whole_answer_tells_its_tokens_and_what_is_kept() -> None:
    found = told(Dialect.CHAT, abridged(json.dumps(ANSWER).encode()))
    assert found.params is not None
    assert (json.loads(found.params), found.prompt_ids, found.reply_ids) == (
        {"remote_port": 1},
        b"[1, 2, 3]",
        b"[4, 5]",
    )
    assert (found.usage, found.response_id) == (Usage(3, 2, 1), None)
    assert told(Dialect.RESPONSES, abridged(json.dumps(ANSWER).encode())).response_id == "x"
    completion = {
        "choices": [{"text": "", "token_ids": [4], "prompt_token_ids": [1]}],
        "prompt_token_ids": None,
    }
    assert told(Dialect.COMPLETIONS, abridged(json.dumps(completion).encode())) == Told(None, b"[1]", b"[4]")
    for text in (b"[]", b"nonsense", b'{"choices":5}', b'{"choices":null}'):
        assert told(Dialect.CHAT, abridged(text)) == Told(None, None, None)


def test_the_client_sees_null_where_it_did_not_ask() -> None:
    body = json.dumps(ANSWER).encode()
    assert json.loads(shown(abridged(body), ids=False)) == {
        **ANSWER,
        "choices": [{**ANSWER["choices"][0], "token_ids": None}],
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }
    assert json.loads(shown(abridged(body), ids=True)) == {**ANSWER, "kv_transfer_params": None}
    for text in (b'{"choices":[]}', b"[]", b"nonsense", b"[" * 5000):
        assert shown(abridged(text), ids=False) == text


def test_a_rendered_prompt_is_one_object_or_a_list_of_one() -> None:
    assert rendered_ids(b'{"token_ids":[1,2]}') == rendered_ids(b' [{"token_ids":[1,2]}]') == b"[1,2]"
    for text in (b"[]", b'[{"token_ids":[1]},{"token_ids":[2]}]', b"{}", b"x", b"[5]"):
        assert rendered_ids(text) is None


def test_long_lists_of_ids_are_told_and_shown_as_short_ones_are() -> None:
    prompt, reply = list(range(400)), list(range(500, 900))
    blocks = {"remote_block_ids": [prompt], "remote_port": 1}
    completion = {"text": "", "token_ids": reply, "prompt_token_ids": prompt, "more": {"token_ids": prompt}}
    for dialect, answer in (
        (Dialect.CHAT, {**ANSWER, "prompt_token_ids": prompt}),
        (Dialect.CHAT, {**ANSWER, "prompt_token_ids": prompt, "kv_transfer_params": blocks}),
        (Dialect.COMPLETIONS, {**ANSWER, "choices": [completion], "prompt_token_ids": None}),
    ):
        body = abridged(json.dumps(answer).encode())
        assert body.lists
        found = told(dialect, body)
        assert found.prompt_ids == json.dumps(prompt).encode()
        assert json.loads(found.params or b"") == answer["kv_transfer_params"]
        assert json.loads(found.reply_ids or b"") == answer["choices"][0]["token_ids"]
        choice = {**answer["choices"][0], "token_ids": None}
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = None
        hidden = {"prompt_token_ids": None, "kv_transfer_params": None}
        assert json.loads(shown(body, ids=False)) == {**answer, **hidden, "choices": [choice]}
        assert json.loads(shown(body, ids=True)) == {**answer, "kv_transfer_params": None}
    rendered = json.dumps([{"token_ids": prompt}]).encode()
    assert rendered_ids(rendered) == json.dumps(prompt).encode()
    cut = b'{"prompt_token_ids":[' + b"1," * 300
    assert shown(abridged(cut + b"]"), ids=False) == cut + b"]"
