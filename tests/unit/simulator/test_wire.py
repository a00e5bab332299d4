"""Answers on the wire, byte for byte as vLLM sends them."""

from typing import Any

import orjson

from router.simulator import tokens
from router.simulator.prompts import Call
from router.simulator.replies import Reply
from router.simulator.wire import Chat, Completion, Facts, Messages, Responses, Wire

TEXT = Reply(tokens.encode("ant bay.") + tokens.END, ("ant ", "bay.", ""), "stop")
CUT = Reply(tokens.encode("ant bay "), ("ant ", "bay "), "length")
CALL = Reply(b"x" * 24, ("", "", '{"a"', ":1}", ""), "tool_calls", Call("look", '{"a":1}'), 1)
CHUNK = '{"id":"chatcmpl-7","object":"chat.completion.chunk","created":5,"model":"m","choices":['


def facts(reply: Reply, name: str = "chatcmpl-7") -> Facts:
    return Facts(name, "m", 5, 10, reply)


def stream(wire: Wire, reply: Reply, cached: int = 8) -> list[str]:
    chunks = [*wire.start(), *map(wire.token, range(len(reply.pieces))), *wire.end(cached)]
    return [chunk.decode() for chunk in chunks if chunk]


def payloads(events: list[str]) -> list[dict[str, Any]]:
    return [orjson.loads(event.partition("data: ")[2]) for event in events]


def test_a_chat_stream() -> None:
    assert stream(Chat(facts(TEXT)), TEXT) == [
        f'data: {CHUNK}{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,'
        '"finish_reason":null}],"prompt_token_ids":null}\n\n',
        f'data: {CHUNK}{{"index":0,"delta":{{"content":"ant "}},"logprobs":null,"finish_reason":null,'
        '"token_ids":null}]}\n\n',
        f'data: {CHUNK}{{"index":0,"delta":{{"content":"bay."}},"logprobs":null,"finish_reason":null,'
        '"token_ids":null}]}\n\n',
        f'data: {CHUNK}{{"index":0,"delta":{{"content":""}},"logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null,"token_ids":null}]}\n\n',
        "data: [DONE]\n\n",
    ]


def test_usage_comes_in_a_chunk_without_choices_and_only_when_asked_for() -> None:
    events = stream(Chat(facts(TEXT), usage=True), TEXT)
    assert events[-2] == (
        f'data: {CHUNK}],"usage":{{"prompt_tokens":10,"total_tokens":13,"completion_tokens":3,'
        '"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
    )
    assert not any("usage" in event for event in events[:-2])


def test_continuous_usage_counts_up_in_every_chunk() -> None:
    events = payloads(stream(Chat(facts(TEXT), usage=True, continuous=True), TEXT)[:-1])
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]


def test_a_reply_that_is_cut_ends_with_its_last_word() -> None:
    last = payloads(stream(Chat(facts(CUT)), CUT)[-2:-1])[0]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({"content": "bay "}, "length")


def test_a_tool_call_streams_its_name_then_its_arguments() -> None:
    events = payloads(stream(Chat(facts(CALL)), CALL)[1:-1])
    deltas = [event["choices"][0]["delta"] for event in events]
    name = {"id": "chatcmpl-tool-7", "type": "function", "index": 0}
    assert deltas == [
        {"tool_calls": [name | {"function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
        {"content": ""},
    ]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_whole_chat_answer() -> None:
    answer = Chat(facts(TEXT)).whole(8)
    assert answer["choices"][0]["message"]["content"] == "ant bay."
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "total_tokens": 13,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    message = Chat(facts(CALL)).whole(8)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a":1}'}


def test_a_completion_stream() -> None:
    head = 'data: {"id":"cmpl-7","object":"text_completion","created":5,"model":"m","choices":['
    tail = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],"usage":null}\n\n'
    assert stream(Completion(facts(CUT, "cmpl-7"), usage=True), CUT) == [
        head + '{"index":0,"text":"ant ","logprobs":null,"finish_reason":null,' + tail,
        head + '{"index":0,"text":"bay ","logprobs":null,"finish_reason":"length",' + tail,
        head + '],"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":8}}}\n\n',
        "data: [DONE]\n\n",
    ]
    assert Completion(facts(CUT)).whole(0)["choices"][0]["text"] == "ant bay "


def test_a_messages_stream() -> None:
    def event(name: str, data: str) -> str:
        return f'event: {name}\ndata: {{"type":"{name}"{data}}}\n\n'

    assert stream(Messages(facts(CUT, "msg-7")), CUT) == [
        event(
            "message_start",
            ',"message":{"id":"msg-7","type":"message","role":"assistant","content":[],"model":"m",'
            '"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":0}}',
        ),
        event("content_block_start", ',"content_block":{"type":"text","text":""},"index":0'),
        event("content_block_delta", ',"delta":{"type":"text_delta","text":"ant "},"index":0'),
        event("content_block_delta", ',"delta":{"type":"text_delta","text":"bay "},"index":0'),
        event("content_block_stop", ',"index":0'),
        event(
            "message_delta",
            ',"delta":{"stop_reason":"max_tokens","stop_sequence":null},'
            '"usage":{"input_tokens":2,"output_tokens":2,"cache_read_input_tokens":8}',
        ),
        event("message_stop", ""),
    ]


def test_a_tool_call_in_a_messages_stream() -> None:
    events = payloads(stream(Messages(facts(CALL)), CALL))
    assert events[1]["content_block"] == {
        "type": "tool_use",
        "id": "chatcmpl-tool-7",
        "name": "look",
        "input": {},
    }
    assert [event["delta"]["partial_json"] for event in events[2:4]] == ['{"a"', ":1}"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    whole = Messages(facts(CALL)).whole(0)
    assert whole["content"][0]["input"] == {"a": 1}


def test_a_tool_call_cut_before_its_name_opens_and_closes_no_block() -> None:
    cut = Reply(b"x" * 4, ("",), "length", CALL.call, 1)
    names = [event["type"] for event in payloads(stream(Messages(facts(cut)), cut))]
    assert names == ["message_start", "message_delta", "message_stop"]
    assert Messages(facts(cut)).whole(0)["content"][0]["input"] == {}


def test_a_responses_stream_is_numbered_and_ends_with_the_whole() -> None:
    wire = Responses(facts(TEXT, "resp_7"))
    events = stream(wire, TEXT)
    shown = payloads(events)
    assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
    assert [event["type"] for event in shown] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert shown[-1]["response"] == wire.whole(8)
    assert shown[-1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 8}
    assert events[4] == (
        'event: response.output_text.delta\ndata: {"content_index":0,"item_id":"msg_7","output_index":0,'
        '"delta":"ant ","logprobs":[],"sequence_number":4,"type":"response.output_text.delta"}\n\n'
    )


def test_a_response_that_is_cut_is_incomplete() -> None:
    whole = Responses(facts(CUT, "resp_7")).whole(8)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_a_tool_call_in_a_responses_stream() -> None:
    events = payloads(stream(Responses(facts(CALL, "resp_7")), CALL))
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"a":1}'
    item = events[-1]["response"]["output"][0]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "look", '{"a":1}')
