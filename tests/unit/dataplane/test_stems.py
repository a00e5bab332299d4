"""Bodies that go on from a session's last one are read as if they were read from their beginning."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.base.errors import Refused
from router.base.ids import OPEN_TENANT, SessionKey, TenantId
from router.dataplane.reader import Read, RequestReader
from router.dataplane.stems import LEAST, MARKS, Mark, Stem, Stems, end_of_messages, is_all

CHAT = "/v1/chat/completions"
ANTHROPIC = "/v1/messages"
SESSION = SessionKey("s" * 32)
LONG = "x" * LEAST


def said(read: Read) -> tuple[Any, ...]:
    """All that a body says, its outline included."""
    outline = read.outline(0) if read.outline is not None else None
    return (
        read.model,
        read.chain,
        read.stream,
        read.session_value,
        read.previous_response_id,
        read.opening,
        read.stores,
        read.reserved,
        read.has_stream_options,
        read.asks_usage,
        None if outline is None else (outline.tags, outline.own, outline.shapes),
    )


def outcome(reader: RequestReader, body: bytes, path: str = CHAT, tenant: str = OPEN_TENANT) -> Any:
    """What a reader makes of a body of the session."""
    try:
        return said(reader.read(path, body, TenantId(tenant), SESSION))
    except Refused as refusal:
        return str(refusal)


def agreed(bodies: list[bytes], path: str = CHAT) -> None:
    """A reader that keeps bodies, and one that keeps none, say the same of one after the other."""
    keeping = RequestReader(body_fields=(), derive=True, keep_bytes=1 << 20)
    for body in bodies:
        fresh = RequestReader(body_fields=(), derive=True)
        assert outcome(keeping, body, path) == outcome(fresh, body, path)


# What could be taken for the end of the messages, or for their beginning, and is text.
TEXTS = st.text(alphabet='ab"\\[]{},:é\n ', max_size=12) | st.sampled_from(
    ['],"messages":[', '\\"]}', '"messages":[', "\\\\", '{"role":"user"}]', "日本"]
)
CONTENTS = TEXTS | st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": TEXTS}), max_size=3
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": CONTENTS},
    optional={"tool_calls": st.just([{"function": {"arguments": "{}"}}]), "messages": st.just([])},
)
ENDS = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.just([{"type": "function", "function": {"parameters": {"required": ["a"]}}}]),
        "stream": st.booleans(),
        "metadata": st.just({"messages": [{"a": [1]}]}),
        "stop": TEXTS,
        "cache_salt": st.just("mine"),
        "max_tokens": st.integers(1, 3),
    },
)


@pytest.mark.timeout(300)
@settings(max_examples=100)
@given(
    first=ENDS,
    turns=st.lists(
        st.tuples(st.none() | st.integers(0, 9), st.lists(MESSAGES, max_size=3), ENDS | st.none()),
        min_size=1,
        max_size=8,
    ),
    last=ENDS,
    style=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
    ascii_only=st.booleans(),
    path=st.sampled_from([CHAT, ANTHROPIC]),
)
def test_what_is_read_is_what_would_be_read_from_the_beginning(first, turns, last, style, ascii_only, path):
    messages: list[Any] = [{"role": "user", "content": LONG}]
    bodies = []
    states = [messages]
    for back, new, end in turns:
        messages = [*(messages if back is None else states[back % len(states)]), *new]
        states.append(messages)
        whole = {"model": "m", **first, "messages": messages, **(last if end is None else end)}
        bodies.append(json.dumps(whole, separators=style, ensure_ascii=ascii_only).encode())
    agreed(bodies, path)


@pytest.mark.parametrize(
    "new",
    [
        b"",
        b" ",
        b",",
        b',{"role":"user","content":"b"},',
        b',{"role":"user","content":"b"}',
        b' ,\n{"role":"user","content":"b"}\n',
        b',{"role":"user"',
        b',{"role":"user","content":"\xff"}',
        b',{"role":"user","content":"b"}],"messages":[{"role":"user","content":"c"}',
        b',{"role":"user","content":"b"}],"cache_salt":"theirs","x":[1',
        b',["no message"]',
        b',{"role":"user","content":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b',{"role":"user","content":"' + b"{" * 30_000 + b'"}',
        b',{"role":"user","content":[' + b",".join([b"{}"] * 20_001) + b"]}",
    ],
)
def test_whatever_stands_between_the_stem_and_the_end_is_judged_as_ever(new):
    before = b'{"model":"m","messages":[{"role":"user","content":"%b"}' % LONG.encode()
    agreed([before + b'],"stream":true}', before + new + b'],"stream":true}'])


@pytest.mark.parametrize(
    "bodies",
    [
        # The name is a value first, or a member of another object, or there twice.
        [b'{"model":"messages","messages":[{"role":"user","content":"%b"}%b]}'],
        [b'{"metadata":{"messages":[]},"messages":[{"role":"user","content":"%b"}%b]}'],
        [b'{"messages":[],"messages":[{"role":"user","content":"%b"}%b]}'],
        [b'{"messages":[{"role":"user","content":"%b"}%b],"messages":[{"role":"user","content":"z"}]}'],
        [b'{"messages":[{"role":"user","content":"%b"}%b],"mess\\u0061ges":[{"role":"user"}]}'],
        # What is found first is a list within a message, and a name with an escape stands for the real one.
        [
            b'{"model":"m","mess\\u0061ges":[],"tools":[{"messages":[1]}],"messages":['
            + b" " * 40
            + b'{"role":"system","content":"%b"},{"role":"user","a":[{"b":5}%b],"c":5}]}',
        ],
        # The end changes between two turns.
        [
            b'{"messages":[{"role":"user","content":"%b"}%b],"stream":true}',
            b'{"messages":[{"role":"user","content":"%b"}%b],"stream":false}',
        ],
        [
            b'{"messages":[{"role":"user","content":"%b"}%b],"tools":[]}',
            b'{"messages":[{"role":"user","content":"%b"}%b],"cache_salt":"theirs","tools":[]}',
        ],
    ],
)
def test_where_the_messages_end_is_known_or_nothing_is_kept(bodies):
    new = b',{"role":"assistant","content":"b"}'
    agreed([body % (LONG.encode(), new * turn) for turn in range(4) for body in bodies])


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("turns", [1, 3, 20, 50])
def test_a_conversation_is_kept_however_it_is_spaced_and_whatever_its_messages_repeat(separators, turns):
    reader = RequestReader(body_fields=(), derive=True, keep_bytes=1 << 22)
    messages = [{"content": LONG, "role": "user"}, {"content": "continue", "role": "user"}] * turns
    body = json.dumps({"model": "m", "messages": messages}, separators=separators).encode()
    reader.read(CHAT, body, OPEN_TENANT, SESSION)
    assert reader._stems.held_bytes == len(body)


def test_only_new_messages_are_read():
    reader = RequestReader(body_fields=(), derive=True, keep_bytes=1 << 20)
    decoded = []
    for reading in reader._readings.values():
        reading.decode = _noted(reading.decode, decoded)
        if reading._usual is not None:
            reading._usual = _noted(reading._usual, decoded)
    for turn in range(1, 6):
        messages = [{"role": "user", "content": LONG}] * turn
        body = json.dumps({"model": "m", "messages": messages}).encode()
        assert len(reader.read(CHAT, body, OPEN_TENANT, SESSION).chain.hashes) == 1 + 2 * turn
    assert [size for size in decoded if size > LEAST] == [
        len(json.dumps({"model": "m", "messages": [{"role": "user", "content": LONG}]}))
    ]


def test_what_goes_on_from_an_earlier_turn_is_read_from_there():
    reader = RequestReader(body_fields=(), derive=True, keep_bytes=1 << 20)
    decoded = []
    for reading in reader._readings.values():
        reading.decode = _noted(reading.decode, decoded)
        if reading._usual is not None:
            reading._usual = _noted(reading._usual, decoded)

    def body(*contents):
        messages = [{"role": "user", "content": each} for each in (LONG, *contents)]
        return json.dumps({"model": "m", "messages": messages}).encode()

    said = [(), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "d"), ("a", "b"), ("a",), (), ("e", "f"), ("e",)]
    fresh = RequestReader(body_fields=(), derive=True)
    for contents in said:
        read = reader.read(CHAT, body(*contents), OPEN_TENANT, SESSION)
        assert read.chain == fresh.read(CHAT, body(*contents), OPEN_TENANT, None).chain
    assert [size for size in decoded if size > LEAST] == [len(body())]
    # What the first turn did not have is read from the beginning.
    reader.read(CHAT, body().replace(b"xx", b"xy", 1), OPEN_TENANT, SESSION)
    assert len(decoded) == 2


def test_of_many_turns_the_first_and_the_latest_are_known():
    reader = RequestReader(body_fields=(), derive=True, keep_bytes=1 << 20)

    def body(turns):
        messages = [{"role": "user", "content": each} for each in (LONG, *map(str, range(turns)))]
        return json.dumps({"model": "m", "messages": messages}).encode()

    for turn in range(5 * MARKS):
        reader.read(CHAT, body(turn), OPEN_TENANT, SESSION)
    stem = reader._stems.find(SESSION)
    assert len(stem._marks) <= MARKS
    for turns in (0, 5 * MARKS - 3, 5 * MARKS - 2):
        news = stem.news(body(turns))
        assert news is not None
        assert (news.messages, news.mark.note[0]) == ([], 1 + 2 + turns)
    assert (
        reader.read(CHAT, body(7), OPEN_TENANT, SESSION).chain.hashes[-1]
        == (RequestReader(body_fields=(), derive=True).read(CHAT, body(7), OPEN_TENANT).chain.hashes[-1])
    )


def _noted(decode, sizes):
    def noted(body):
        sizes.append(len(body))
        return decode(body)

    return noted


def test_a_stem_is_of_one_path_and_one_tenant():
    reader = RequestReader(body_fields=(), derive=True, keep_bytes=1 << 20)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": LONG}]}).encode()
    roots = {
        reader.read(path, body, TenantId(tenant), SESSION).chain.hashes[0]
        for path, tenant in [(CHAT, "a"), (CHAT, "b"), (ANTHROPIC, "b"), (CHAT, "a")]
    }
    assert len(roots) == 2


class TestStems:
    def test_bodies_used_longest_ago_make_room(self):
        stems = Stems(250)
        sessions = [SessionKey(f"{number:032}") for number in range(3)]
        for session in sessions:
            stems.keep(session, Stem(b"x" * 100, [Mark(50, 0, None)], None))
        assert [stems.find(session) is not None for session in sessions] == [False, True, True]
        stems.keep(sessions[1], Stem(b"x" * 120, [Mark(50, 0, None)], None))
        assert stems.held_bytes == 220
        stems.keep(sessions[0], Stem(b"x" * 100, [Mark(50, 0, None)], None))
        assert [stems.find(session) is not None for session in sessions] == [True, True, False]
        assert stems.held_bytes == 220

    def test_without_a_budget_nothing_is_kept(self):
        stems = Stems(0)
        stems.keep(SESSION, Stem(b"x", [Mark(1, 0, None)], None))
        assert stems.find(SESSION) is None
        assert stems.held_bytes == 0


LIST = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


@pytest.mark.parametrize(
    ("body", "messages", "expected"),
    [
        (b'{"messages" : [ {"a":"]"} ] }', b'[{"a":"]"}]', (15, 26)),
        (b'{"messages":[{"a":"\\\\"},{"b":[{}]}],"x":[1]}', b'[{"a":"\\\\"},{"b":[{}]}]', (13, 34)),
        (b'{"messages":[{"a":"\\"]"}]}', b'[{"a":"\\"]"}]', (13, 24)),
        (b'{"messages":[{"a":[{"b":1}],"c":1}],"d":1}', b'[{"a":[{"b":1}],"c":1}]', (13, 34)),
        (b'{"messages":[{},{"a":1}],"d":[{"a":1}]}', b'[{},{"a":1}]', (13, 23)),
        (b'{"messages":[]}', b"[]", None),
        (b'{"messages":[{"a":1},{}]}', b'[{"a":1},{}]', None),
        (b'{"messages":"none"}', b'[{"a":1}]', None),
        (b'{"model":"m"}', b'[{"a":1}]', None),
    ],
)
def test_the_list_of_messages_is_found(body, messages, expected):
    assert end_of_messages(body, LIST.decode(messages)) == expected


@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=4),
    before=ENDS,
    behind=ENDS,
    style=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
    ascii_only=st.booleans(),
)
def test_what_is_found_is_never_behind_the_end_and_is_the_end_where_nothing_is_left(
    messages, before, behind, style, ascii_only
):
    whole = {**before, "messages": messages, **{f"then_{name}": end for name, end in behind.items()}}
    body = json.dumps(whole, separators=style, ensure_ascii=ascii_only).encode()
    listed = json.dumps(messages, separators=style, ensure_ascii=ascii_only).encode()
    span = end_of_messages(body, LIST.decode(listed))
    if span is None:
        return
    begin, end = span
    if is_all(body, begin, end):
        assert body[begin - 1 : end + 1] == listed
        assert json.loads(body[:begin] + body[end:]) == {**whole, "messages": []}
    if style == (",", ":") and "metadata" not in before:
        assert body[begin - 1 : end + 1] == listed
