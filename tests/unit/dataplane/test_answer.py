"""What of an answer goes to the client, and what is learned on the way."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.observe import Usage
from router.dataplane.answer import HELD, StreamReader, read_body
from router.dataplane.dialects import Dialect

CHAT, COMPLETIONS = Dialect.CHAT, Dialect.COMPLETIONS
MESSAGES, RESPONSES = Dialect.MESSAGES, Dialect.RESPONSES
INTERNAL = {"remote_block_ids": [1, 2], "note": 'a "}" in a string'}


def event(payload: Any, name: str | None = None, end: str = "\n\n") -> bytes:
    line = end[: len(end) // 2]
    head = f"event: {name}{line}" if name else ""
    return f"{head}data: {json.dumps(payload, separators=(',', ':'), ensure_ascii=False)}{end}".encode()


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def counts(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, **details}


LAST = event({"id": "c", "choices": [], "usage": counts(9, 2, 4)})
DONE = b"data: [DONE]\n\n"


def response(kind: str, **more: Any) -> bytes:
    return event({"response": {"id": "resp_1", **more}, "type": kind}, kind)


STREAMS: dict[str, tuple[Dialect, bytes]] = {
    "chat": (
        CHAT,
        event({"id": "c", "choices": [{"delta": {"role": "assistant", "content": ""}}]})
        + event(delta('Grüße, 世界 🌍 [DONE] "usage"'))
        + event(delta("say kv_transfer_params", kv_transfer_params=None))
        + event(delta("", kv_transfer_params=INTERNAL))
        + LAST
        + DONE,
    ),
    "chat with CRLF": (
        CHAT,
        event(delta("a"), end="\r\n\r\n") + LAST.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
    ),
    "chat with CR": (CHAT, event(delta("ä"), end="\r\r") + LAST.replace(b"\n", b"\r") + b"data: [DONE]\r\r"),
    "chat with comments": (CHAT, b": ping\n\n\n\n\r\n" + event(delta("a")) + b"\n" + LAST + b"\n\n" + DONE),
    "completions": (COMPLETIONS, event({"choices": [{"text": "a"}]}) + LAST + DONE),
    "messages": (
        MESSAGES,
        event(
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 9, "output_tokens": 0}, "kv_transfer_params": {}},
            },
            "message_start",
        )
        + event({"type": "content_block_delta", "delta": {"text": "é message_stop"}}, "content_block_delta")
        + event(
            {
                "type": "message_delta",
                "usage": {"input_tokens": 4, "cache_read_input_tokens": 5, "output_tokens": 2},
            },
            "message_delta",
        )
        + event({"type": "message_stop"}, "message_stop"),
    ),
    "responses": (
        RESPONSES,
        response("response.created", usage=None, kv_transfer_params=INTERNAL)
        + event({"type": "response.output_text.delta", "delta": "ü"}, "response.output_text.delta")
        + response(
            "response.completed",
            kv_transfer_params=INTERNAL,
            usage={"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 5}},
        ),
    ),
    "many events": (
        CHAT,
        b"".join(
            event(delta(word))
            for word in ["a", "bc", "", "usage", 'q"', "kv_transfer_params", "[DONE]", "é"] * 3
        )
        + event(delta("a", usage=counts(7, 1)))
        + event(delta("a", kv_transfer_params=INTERNAL))
        + b"".join(event(delta(word)) for word in ["d", "e"])
        + LAST
        + DONE,
    ),
    "long chat": (
        CHAT,
        event(delta("x" * HELD, kv_transfer_params=INTERNAL, usage=counts(9, 2, 4))) + LAST + DONE,
    ),
    "long responses": (
        RESPONSES,
        response("response.created", instructions='"usage":{} \\' * 9000, kv_transfer_params=INTERNAL)
        + response(
            "response.completed",
            output="y" * HELD,
            usage={"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 5}},
            kv_transfer_params=INTERNAL,
        ),
    ),
    "cut in an event": (CHAT, event(delta("a")) + b'data: {"choices":[],"kv_transfer_params":{"a":[1'),
    "cut in a long event": (
        CHAT,
        event(delta("a")) + b'data: {"text":"' + b"x" * HELD + b'","kv_transfer_params":[1',
    ),
    "an error": (CHAT, event({"error": {"message": "no"}}) + DONE),
    "no events": (CHAT, b"\r\n\n\r<html>\xff\xfe"),
}


def through(dialect: Dialect, pieces: list[bytes], *, hide_usage: bool = False) -> tuple[bytes, StreamReader]:
    reader = StreamReader(dialect, hide_usage=hide_usage)
    out = b"".join([*map(reader.feed, pieces), reader.end()])
    return out, reader


def learned(reader: StreamReader) -> tuple[Usage | None, bool, str | None, bool]:
    return reader.usage, reader.finished, reader.response_id, reader.saw_content


@pytest.mark.parametrize(
    ("name", "usage", "finished", "response_id", "saw_content"),
    [
        ("chat", Usage(9, 2, 4), True, None, True),
        ("chat with CRLF", Usage(9, 2, 4), True, None, True),
        ("chat with CR", Usage(9, 2, 4), True, None, True),
        ("chat with comments", Usage(9, 2, 4), True, None, True),
        ("many events", Usage(9, 2, 4), True, None, True),
        ("completions", Usage(9, 2, 4), True, None, True),
        ("messages", Usage(9, 2, 5), True, None, True),
        ("responses", Usage(9, 2, 5), True, "resp_1", True),
        ("long chat", Usage(9, 2, 4), True, None, True),
        ("long responses", Usage(9, 2, 5), True, "resp_1", False),
        ("cut in an event", None, False, None, True),
        ("cut in a long event", None, False, None, True),
        ("an error", None, True, None, False),
        ("no events", None, False, None, False),
    ],
)
def test_a_stream_tells_its_usage_its_end_and_its_id(
    name: str, usage: Usage | None, finished: bool, response_id: str | None, saw_content: bool
) -> None:
    dialect, stream = STREAMS[name]
    _, reader = through(dialect, [stream])
    assert learned(reader) == (usage, finished, response_id, saw_content)


@given(st.sampled_from(sorted(STREAMS)), st.booleans(), st.lists(st.integers(0, 1 << 18), max_size=12))
@example("long responses", False, [HELD - 1, HELD, HELD + 1])
@example("messages", False, [40, 41, 42])
def test_any_cutting_of_a_stream_gives_the_same(name: str, hide_usage: bool, at: list[int]) -> None:
    dialect, stream = STREAMS[name]
    whole, one = through(dialect, [stream], hide_usage=hide_usage)
    places = sorted({place % (len(stream) + 1) for place in at})
    pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]
    parts, many = through(dialect, pieces, hide_usage=hide_usage)
    assert parts == whole
    assert learned(many) == learned(one)


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_stream_byte_by_byte_gives_the_same(name: str) -> None:
    dialect, stream = STREAMS[name]
    stream = (
        stream.replace(b"x" * HELD, b"x" * 9)
        .replace(b"y" * HELD, b"y")
        .replace(b'\\"usage\\":{} \\\\' * 9000, b"")
    )
    assert (
        through(dialect, [stream[i : i + 1] for i in range(len(stream))])[0] == through(dialect, [stream])[0]
    )


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_nothing_internal_reaches_a_client(name: str) -> None:
    dialect, stream = STREAMS[name]
    out, _ = through(dialect, [stream])
    assert b"remote_block_ids" not in out
    assert b'"kv_transfer_params":{' not in out


def test_all_but_what_is_internal_passes_as_it_came() -> None:
    _, stream = STREAMS["chat"]
    cut = b',"kv_transfer_params":' + json.dumps(INTERNAL, separators=(",", ":")).encode()
    assert stream.count(cut) == 1
    assert through(CHAT, [stream])[0] == stream.replace(cut, b"")


def test_the_usage_that_only_the_router_wanted_is_dropped() -> None:
    events = [event(delta("a")), LAST, DONE]
    out, reader = through(CHAT, events, hide_usage=True)
    assert out == events[0] + DONE
    assert reader.usage == Usage(9, 2, 4)


def test_the_usage_that_the_client_wanted_stays() -> None:
    events = [event(delta("a")), LAST, DONE]
    assert through(CHAT, events)[0] == b"".join(events)


@pytest.mark.parametrize(
    "kept",
    [
        delta("a", usage=None),
        delta("a", usage=counts(9, 1)),
        {"choices": [], "usage": None},
        {"choices": [], "prompt_filter_results": []},
        {"usage": counts(9, 1)},
    ],
)
def test_only_an_event_of_usage_alone_is_dropped(kept: dict[str, Any]) -> None:
    assert through(CHAT, [event(delta("b")), event(kept)], hide_usage=True)[0] == event(delta("b")) + event(
        kept
    )


def test_a_piece_that_tells_nothing_is_handed_on_as_the_same_object() -> None:
    reader = StreamReader(CHAT, hide_usage=True)
    reader.feed(event(delta("a")))
    piece = event(delta("b")) + event(delta("c"))
    assert reader.feed(piece) is piece


def test_events_that_differ_in_a_text_only_are_still_looked_at_where_they_differ_in_more() -> None:
    reader = StreamReader(CHAT, hide_usage=True)
    for word in ("a", "b", "c"):
        reader.feed(event(delta(word)))
    harmless = event(delta("usage"))
    assert reader.feed(harmless) is harmless
    inside = b'd"}}],"kv_transfer_params":{"e":1},"usage":{"prompt_tokens":3},"more":[{"x":{"y":"z'
    out = reader.feed(harmless.replace(b"usage", inside))
    assert json.loads(out[5:]).keys() == {"id", "choices", "usage", "more"}
    assert reader.usage == Usage(3)


def test_a_piece_passes_where_it_stands_once_its_shape_is_known_and_only_then() -> None:
    reader = StreamReader(CHAT, hide_usage=True)
    pieces = [event(delta(word)) for word in ("a", "b", "c", "usage")]
    frame = b"41\r\n%b\r\n"
    passed = []
    for piece in pieces:
        framed = frame % piece
        start, end = 4, 4 + len(piece)
        assert framed[start:end] == piece
        # A byte more or less is another piece.
        assert not reader.passes(framed, start - 1, end)
        assert not reader.passes(framed, start, end - 1)
        passed.append(reader.passes(framed, start, end))
        assert reader.feed(piece) == piece
    assert passed == [False, False, False, True]
    inside = pieces[0].replace(b'"a"', b'"a","usage":null,"x":"y"')
    assert not reader.passes(inside, 0, len(inside))
    assert reader.feed(pieces[0][:-1]) == b""
    # An event that is on its way has to end first.
    assert not reader.passes(pieces[0], 0, len(pieces[0]))


@pytest.mark.parametrize("name", ["many events", "messages", "responses"])
def test_a_stream_event_by_event_gives_the_same(name: str) -> None:
    dialect, stream = STREAMS[name]
    pieces = [piece + b"\n\n" for piece in stream.split(b"\n\n")[:-1]]
    whole, one = through(dialect, [stream])
    parts, many = through(dialect, pieces)
    assert parts == whole
    assert learned(many) == learned(one)


def test_a_complete_event_is_never_held_back() -> None:
    reader = StreamReader(CHAT, hide_usage=True)
    first = event({"choices": [{"delta": {"role": "assistant"}}]})
    assert reader.feed(first[:-1]) == b""
    assert reader.feed(first[-1:] + b"data: {") == first
    assert reader.end() == b"data: {"


def test_an_event_of_several_data_lines_is_read_and_blanked() -> None:
    lines = (
        b'data: {"choices":[],\ndata: "kv_transfer_params": {"a":\ndata: [1]},\n'
        b'data: "usage":{"prompt_tokens":3}}\n\n'
    )
    out, reader = through(CHAT, [lines])
    assert (
        out
        == b'data: {"choices":[],\ndata: "kv_transfer_params":null,\ndata: "usage":{"prompt_tokens":3}}\n\n'
    )
    assert reader.usage == Usage(3)


def test_an_event_that_is_not_json_is_blanked_rather_than_trusted() -> None:
    out, _ = through(CHAT, [b'data: oops {"kv_transfer_params":{"a":1},"b":2\n\n'])
    assert out == b'data: oops {"kv_transfer_params":null,"b":2\n\n'


def test_an_event_of_the_limit_is_cut_and_one_byte_more_is_blanked() -> None:
    room = HELD - len(event(delta("", kv_transfer_params=INTERNAL)))
    fits, over = (event(delta("x" * size, kv_transfer_params=INTERNAL)) for size in (room, room + 1))
    assert b"kv_transfer_params" not in through(CHAT, [fits])[0]
    assert b'"kv_transfer_params":null}' in through(CHAT, [over])[0]


def test_what_is_held_of_a_long_event_is_bounded() -> None:
    reader = StreamReader(CHAT, hide_usage=False)
    sent = got = 0
    reader.feed(b'data: {"choices":[{"text":"')
    for _ in range(40):
        sent += 8192
        got += len(reader.feed(b"x" * 8192))
        assert sent - got <= HELD + 8192


def test_a_huge_event_passes_byte_for_byte() -> None:
    stream = event(delta('z"\\' * 1_700_000)) + DONE
    pieces = [stream[i : i + 65_521] for i in range(0, len(stream), 65_521)]
    out, reader = through(CHAT, pieces)
    assert out == stream
    assert reader.finished


def test_output_tokens_alone_leave_the_prompt_as_it_was() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 5}}}
    end = {"type": "message_delta", "usage": {"output_tokens": 7}}
    assert through(MESSAGES, [event(start), event(end)])[1].usage == Usage(9, 7, 5)


@pytest.mark.parametrize("kind", ["response.completed", "response.failed", "response.incomplete"])
def test_a_response_ends_in_one_of_three_ways(kind: str) -> None:
    assert through(RESPONSES, [response(kind)])[1].finished


def test_a_done_line_does_not_end_a_stream_of_messages() -> None:
    assert not through(MESSAGES, [DONE])[1].finished


def test_a_body_tells_its_usage_and_is_cut() -> None:
    body = b'{"id":"x","kv_transfer_params": {"a":1},"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    cut = b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":1}}'
    assert read_body(CHAT, body) == (cut, Usage(3, 1, None), None)


def test_a_body_of_messages_counts_what_was_cached() -> None:
    usage = {
        "input_tokens": 1,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 4,
        "output_tokens": 8,
    }
    assert read_body(MESSAGES, json.dumps({"usage": usage}).encode())[1] == Usage(7, 8, 2)


def test_a_response_tells_its_id() -> None:
    usage = {"input_tokens": 3, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 0}}
    _, counted, response_id = read_body(RESPONSES, json.dumps({"id": "resp_9", "usage": usage}).encode())
    assert (response_id, counted) == ("resp_9", Usage(3, 1, 0))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"<html>",
        b'{"usage":3,"id":4}',
        b'{"usage":{"prompt_tokens":"x"}}',
        b'{"usage":{}}',
        b"[" * 9999,
    ],
)
def test_a_body_of_another_shape_stays_as_it_is(body: bytes) -> None:
    for dialect in Dialect:
        assert read_body(dialect, body) == (body, None, None)


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_no_body_and_no_stream_makes_it_raise(data: bytes) -> None:
    for dialect in Dialect:
        read_body(dialect, data)
        assert through(dialect, [b'data: {"usage":' + data, b"\n\n" + data])[0]


def test_both_internal_members_are_cut_and_where_both_are_null_nothing_is_touched() -> None:
    nulls = b'{"id":"x","kv_transfer_params":null, "ec_transfer_params": null}'
    assert read_body(CHAT, nulls)[0] is nulls
    told = b'{"id":"x","kv_transfer_params":null,"ec_transfer_params":{"a":1}}'
    assert json.loads(read_body(None, told)[0]) == {"id": "x", "kv_transfer_params": None}
    inside = b'{"id":"x","kv_transfer_params":null,"response":{"ec_transfer_params":1}}'
    assert json.loads(read_body(None, inside)[0])["response"] == {}


def test_a_stream_of_an_unknown_dialect_may_end_anywhere_and_hides_what_is_internal() -> None:
    reader = StreamReader(None, hide_usage=False)
    assert (reader.finished, reader.saw_content) == (True, True)
    plain = b'data: {"a":1}\n\n'
    assert reader.feed(plain) == plain
    assert reader.feed(b'data: {"a":1,"ec_transf') == b""
    assert reader.feed(b'er_params":{"b":2}}\n\n') == b'data: {"a":1}\n\n'
    assert reader.feed(b"data: {") + reader.end() == b"data: {"


def test_a_long_event_has_every_internal_member_blanked() -> None:
    reader = StreamReader(None, hide_usage=False)
    text = b'data: {"a":"%b","ec_transfer_params":{"x":[1]},"kv_transfer_params":"y"}\n\n' % (b"a" * HELD)
    out = reader.feed(text[:HELD]) + reader.feed(text[HELD:])
    assert json.loads(out[6:]) == {"a": "a" * HELD, "ec_transfer_params": None, "kv_transfer_params": None}


@pytest.mark.parametrize("cut", range(1, len(event(delta("a"))) + 1))
def test_what_is_held_of_an_event_is_dropped_when_the_stream_breaks_off(cut: int) -> None:
    first, second = event(delta("b")), event(delta("a"))
    reader = StreamReader(CHAT, hide_usage=False)
    out = reader.feed(first + second[:cut])
    assert out == (first + second if cut == len(second) else first)
    assert reader.break_off() == b""
    assert reader.end() == b""


def test_a_long_event_that_breaks_off_is_ended_so_that_the_next_stands_alone() -> None:
    reader = StreamReader(CHAT, hide_usage=False)
    long = event(delta("x" * 2 * HELD))
    assert reader.feed(long[:-100]) in long
    assert reader.break_off() == b"\n\n"
    whole = StreamReader(CHAT, hide_usage=False)
    assert whole.feed(long[:-100]) + whole.feed(long[-100:]) == long
    assert whole.break_off() == b""


@pytest.mark.parametrize(
    ("dialect", "events", "error"),
    [
        (CHAT, [{"error": {"message": "x", "type": "InternalServerError", "code": 500}}], 500),
        (CHAT, [delta("a"), delta("b"), {"error": {"message": "x", "code": 503}}], 500),
        (CHAT, [{"error": {"message": "x", "type": "BadRequestError", "code": 400}}], 400),
        (CHAT, [{"error": "x"}], 500),
        (CHAT, [{"choices": [], "error": None}], None),
        (CHAT, [delta('"error": {'), delta("error")], None),
        (MESSAGES, [{"type": "error", "error": {"type": "api_error", "message": "x"}}], 500),
        (MESSAGES, [{"type": "error", "error": {"type": "invalid_request_error", "message": "x"}}], 400),
        (RESPONSES, [{"type": "error", "code": "x", "message": "x"}], 500),
        (RESPONSES, [{"type": "response.failed", "response": {"error": {"code": "server_error"}}}], 500),
        (RESPONSES, [{"type": "response.completed", "response": {"error": None}}], None),
        (RESPONSES, [{"type": "response.incomplete", "response": {"error": None}}], None),
    ],
)
def test_an_error_event_is_noted_with_whom_it_blames(
    dialect: Dialect, events: list[dict[str, object]], error: int | None
) -> None:
    out, reader = through(dialect, [event(each) for each in events])
    assert reader.error == error
    assert out == b"".join(event(each) for each in events)


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}',
        b'{"prompt_tokens":"5"}',
        b'{"input_tokens":5,"output_tokens":2,"cache_read_input_tokens":7}',
        *(b"null", b"[]", b"7", b"{}"),
    ],
)
@pytest.mark.parametrize(
    ("params", "hidden"),
    [
        (b"null", False),
        (b'{"a":1}', True),
        (b'"text"', True),
        (b'null,"ec_transfer_params":null', False),
        (b'{"a":1},"kv_transfer_params":null', True),
        (b'null,"x_transfer_params":1', False),
    ],
)
def test_an_answer_of_odd_types_is_read_as_the_usual_one(usage, params, hidden, monkeypatch):
    body = b'{"id":"resp_1","usage":%b,"kv_transfer_params":%b}' % (usage, params)
    quick = read_body(Dialect.RESPONSES, body)
    monkeypatch.setattr("router.dataplane.answer.answer_of", lambda _: None)
    assert read_body(Dialect.RESPONSES, body) == quick
    assert (b'{"a":1}' in quick[0] or b'"text"' in quick[0]) is False
    assert (quick[0] != body) is hidden
