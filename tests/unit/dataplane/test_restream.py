"""A whole answer as the events of a stream."""

import json
from typing import Any

from router.dataplane.dialects import Dialect
from router.dataplane.restream import restreamed


def events(stream: bytes) -> list[Any]:
    assert stream.endswith(b"data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def chat(message: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop", **more}
    whole = {"id": "x", "created": 5, "model": "m", "object": "chat.completion", "choices": [choice]}
    return json.dumps(whole | {"usage": {"prompt_tokens": 3}}).encode()


def test_a_chat_is_one_piece_and_the_reason_for_its_end() -> None:
    first, last = events(restreamed(Dialect.CHAT, chat({"content": "hi", "refusal": None}), usage=False))
    assert (first["id"], first["object"], first["model"]) == ("x", "chat.completion.chunk", "m")
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "hi"}
    assert (first["choices"][0]["finish_reason"], last["choices"][0]["finish_reason"]) == (None, "stop")
    assert last["choices"][0]["delta"] == {}


def test_tool_calls_are_numbered_and_the_usage_comes_where_it_was_asked_for() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = chat({"content": None, "tool_calls": [call]}, finish_reason="tool_calls")
    first, _, usage = events(restreamed(Dialect.CHAT, body, usage=True))
    assert first["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **call}]
    assert (usage["choices"], usage["usage"]) == ([], {"prompt_tokens": 3})


def test_a_completion_is_one_event() -> None:
    choice = {"index": 0, "text": "hi", "finish_reason": "length"}
    [only] = events(
        restreamed(Dialect.COMPLETIONS, json.dumps({"id": "x", "choices": [choice]}).encode(), usage=False)
    )
    assert only["object"] == "text_completion"
    assert (only["choices"][0]["text"], only["choices"][0]["finish_reason"]) == ("hi", "length")


def test_what_is_no_answer_stays_as_it_is() -> None:
    for body in (b"", b"{}", b"[]", b'{"choices":[]}', b'{"choices":[{}]}', b'{"choices":5}'):
        assert restreamed(Dialect.CHAT, body, usage=True) == body
