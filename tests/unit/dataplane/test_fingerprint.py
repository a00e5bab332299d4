"""Prompts as chains of hashes."""

import base64
import copy
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from router.base.ids import OPEN_TENANT
from router.core.request import Chain
from router.dataplane.fingerprint import AUDIO_BYTES, CHUNK, IMAGE_BYTES, VIDEO_BYTES, Segments
from router.dataplane.reader import RequestReader

READER = RequestReader(body_fields=(), derive=True)
MARK = {"cache_control": {"type": "ephemeral"}}
CHAT, MESSAGES, RESPONSES, COMPLETIONS = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/completions",
)


def chain(body: Any, path: str = CHAT) -> Chain:
    return READER.read(path, json.dumps(body).encode(), OPEN_TENANT).chain


def of(*messages: Any, path: str = CHAT, **more: Any) -> Chain:
    return chain({"model": "m", "messages": list(messages), **more}, path)


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def starts(longer: Chain, shorter: Chain) -> bool:
    """Whether all of the shorter prompt is where the longer one begins."""
    size = len(shorter.hashes)
    return longer.hashes[:size] == shorter.hashes and longer.ends[:size] == shorter.ends


# A coding agent in both dialects. Turn by turn: the mark rolls on to the newest message, the attribution
# block has another nonce, a message is a string while it is old and a list of blocks while it is marked.

TOOLS = [
    {
        "name": name,
        "description": f"{name} things. " * 40,
        "input_schema": {"type": "object", "properties": {"cache_control": {}}},
    }
    for name in ("Bash", "Read", "Edit")
]


def history(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [user('Fix the "flaky" test\nin a/b.py. ' * 30)]
    for turn in range(turns):
        call = f"toolu_{turn:02}"
        messages.append(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": f"Hm, {turn}…", "signature": "c2ln"},
                    text(f"Let me look ({turn}). "),
                    {
                        "type": "tool_use",
                        "id": call,
                        "name": "Read",
                        "input": {"path": "a.py", "cache_control": turn},
                    },
                ],
            }
        )
        result: Any = "    1→import os\n" * 200 if turn % 2 else [text("line\n" * 50), text("and more")]
        messages.append(user([{"type": "tool_result", "tool_use_id": call, "content": result}]))
        if turn % 3 == 2:
            messages.append({"role": "assistant", "content": [text("Done.")]})
            messages.append(user(f"And number {turn}?"))
    return messages


def marked(message: dict[str, Any], *, deep: bool = False) -> dict[str, Any]:
    """With a mark on its last block, as agents set it."""
    message = copy.deepcopy(message)
    if isinstance(message["content"], str):
        message["content"] = [text(message["content"])]
    block = message["content"][-1]
    if deep and isinstance(block.get("content"), list):
        block = block["content"][-1]
    block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    return message


def anthropic_turn(turns: int, *, last_system: bool = False) -> dict[str, Any]:
    messages = history(turns)
    for i in (-1, -3):
        if len(messages) >= -i:
            messages[i] = marked(messages[i], deep=turns % 2 == 0)
    tools = copy.deepcopy(TOOLS)
    if turns % 2:
        tools[-1] |= MARK
    return {
        "model": "m",
        "system": [
            text(f"x-anthropic-billing-header: cc_version=2; cch={turns:05x};"),
            text("You are an agent.", **MARK),
            text("Be brief. " * 500, **(MARK if turns % 2 else {})),
        ],
        "tools": tools,
        "messages": messages,
        "max_tokens": 100 + turns,
        "metadata": {"user_id": f"u{turns}"},
        "stream": True,
    }


def openai_turn(turns: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": [text("You are an agent.")]}]
    for message in history(turns):
        content = message["content"]
        if isinstance(content, str):
            messages.append(message)
        elif content[0]["type"] == "tool_result":
            messages.append(
                {"role": "tool", "tool_call_id": content[0]["tool_use_id"], "content": content[0]["content"]}
            )
        elif len(content) == 1:
            messages.append({"role": "assistant", "content": content[0]["text"], "refusal": None})
        else:
            function = {"name": "Read", "arguments": json.dumps(content[2]["input"])}
            calls = [{"id": content[2]["id"], "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "reasoning": "Hm", "tool_calls": calls})
    messages[0] = marked(messages[0])
    if isinstance(messages[-1]["content"], str):
        messages[-1] = {**messages[-1], **MARK}
    else:
        messages[-1] = marked(messages[-1])
    tools = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "input_schema"}}
        for tool in TOOLS
    ]
    if turns % 2:
        tools[0] |= MARK
    return {"model": "m", "messages": messages, "tools": tools, "temperature": turns / 10, "stream": True}


def responses_turn(turns: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for message in history(turns):
        content = message["content"]
        if isinstance(content, str):
            items.append(
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": content}]}
            )
        elif content[0]["type"] == "tool_result":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": content[0]["tool_use_id"],
                    "output": content[0]["content"],
                }
            )
        elif len(content) == 1:
            items.append(
                {
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": content[0]["text"], "annotations": []}],
                }
            )
        else:
            items.append(
                {"type": "function_call", "call_id": content[2]["id"], "name": "Read", "arguments": "{}"}
            )
    return {"model": "m", "instructions": "Be brief.", "tools": TOOLS, "input": items, "stream": True}


@pytest.mark.parametrize(
    ("path", "turn"), [(MESSAGES, anthropic_turn), (CHAT, openai_turn), (RESPONSES, responses_turn)]
)
def test_each_turn_of_a_coding_agent_begins_with_the_turn_before(
    path: str, turn: Callable[[int], dict[str, Any]]
) -> None:
    chains = [chain(turn(turns), path) for turns in range(9)]
    for before, after in pairwise(chains):
        assert starts(after, before)
        assert len(after.hashes) > len(before.hashes)
        assert after.opening == before.opening > 0


def test_agents_that_do_other_things_share_no_more_than_what_is_common() -> None:
    one, two = anthropic_turn(3), anthropic_turn(3)
    two["messages"][2]["content"][0]["content"] = "other"
    a, b = chain(one, MESSAGES), chain(two, MESSAGES)
    same = [x == y for x, y in zip(a.hashes, b.hashes, strict=False)]
    assert same.index(False) == a.opening + 1
    assert not any(same[a.opening + 1 :])


def test_a_text_equals_the_same_text_as_a_single_block_with_or_without_a_mark() -> None:
    plain = of(user('say "hi"\n'), user("b"))
    assert of(user([text('say "hi"\n')]), user("b")) == plain
    assert of(user([text('say "hi"\n', **MARK)]), user("b")) == plain
    assert of(user([{"text": 'say "hi"\n', **MARK, "type": "text"}]), user("b")) == plain
    assert of({"content": 'say "hi"\n', "role": "user"}, user("b")) == plain


@pytest.mark.parametrize(
    "words",
    ['"type":', '"type', '"tool_use_id":', '"cache_control":1', '"image_url"', "\\", '\\"', "x-anthropic"],
)
def test_no_text_can_pass_for_structure(words: str) -> None:
    assert of(user([text(words)])) == of(user([text(words, **MARK)])) == of(user(words))
    assert of(user([text(words), text("b")])) == of(user([text(words, **MARK), text("b")]))


@pytest.mark.parametrize(
    "other", [user([text("a"), text("b")]), user("ab"), user(["a", "b"]), user([text("ab"), text("")])]
)
def test_blocks_are_not_run_together(other: dict[str, Any]) -> None:
    different = {
        of(one).hashes
        for one in (user([text("a"), text("b")]), user("ab"), user(["a", "b"]), user([text("ab"), text("")]))
    }
    assert len(different) == 4
    assert of(other).hashes in different


def test_marks_do_not_count_wherever_they_sit() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("x"), text("y")]}
    deep = {**result, "content": [text("x"), text("y", **MARK)]}
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    plain = of(user([text("a"), result, image]), path=MESSAGES)
    assert of(user([text("a"), deep, image]), path=MESSAGES) == plain
    assert of(user([text("a", **MARK), {**MARK, **deep}, {**image, **MARK}]), path=MESSAGES) == plain
    assert of({**user([text("a"), result, image]), **MARK}, path=MESSAGES) == plain


@pytest.mark.parametrize("content", ["x", [], None, [text("x")], [{"type": "odd"}], {"a": 1}])
def test_a_mark_beside_any_result_changes_nothing(content: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    assert of(user([text("a"), {**result, **MARK}])) == of(user([text("a"), result]))


def test_a_mark_is_no_mark_where_it_is_data() -> None:
    def call(value: Any) -> Chain:
        return of(
            {"role": "assistant", "content": [text("a"), {"type": "tool_use", "id": "t", "input": value}]}
        )

    assert call({"cache_control": 1}) != call({"cache_control": 2})
    schema = {"properties": {"cache_control": {"type": "string"}}}
    assert of(user("a"), tools=[{"name": "f", "input_schema": schema}]) != of(
        user("a"), tools=[{"name": "f", "input_schema": {"properties": {}}}]
    )


def test_marks_on_tools_and_system_do_not_count() -> None:
    plain = of(user("a"), path=MESSAGES, system=[text("s")], tools=TOOLS)
    tools = [TOOLS[0], {**MARK, **TOOLS[1]}, {**TOOLS[2], **MARK}]
    assert of(user("a"), path=MESSAGES, system=[text("s", **MARK)], tools=tools) == plain
    assert of(user("a"), path=MESSAGES, system="s", tools=TOOLS) == plain


def test_a_nonce_in_the_system_prompt_does_not_count() -> None:
    nonce = text("x-anthropic-billing-header: cch=123;")
    plain = of(user("a"), path=MESSAGES, system=[text("s"), text("t")])
    assert of(user("a"), path=MESSAGES, system=[nonce, text("s"), text("t")]) == plain
    assert of(user("a"), path=MESSAGES, system=[text("s"), nonce, text("t", **MARK)]) == plain
    assert of(user("a"), path=MESSAGES, system=[nonce, text("s")]) == of(user("a"), path=MESSAGES, system="s")
    assert of(user("a"), path=MESSAGES, system=[nonce]) == of(user("a"), path=MESSAGES)


def test_a_nonce_in_a_system_message_does_not_count_and_elsewhere_it_is_text() -> None:
    def system(content: Any) -> dict[str, Any]:
        return {"role": "system", "content": content}

    nonce = "x-anthropic-billing-header: cch=123;"
    assert of(system([text(nonce), text("s")]), path=MESSAGES) == of(system("s"), path=MESSAGES)
    assert of(system(nonce), path=MESSAGES) == of(system(nonce + "4"), path=MESSAGES)
    assert of(user(nonce), path=MESSAGES) != of(user(nonce + "4"), path=MESSAGES)
    assert of(system(nonce)) != of(system(nonce + "4"))
    assert of(user("a"), path=MESSAGES, system=nonce) != of(user("a"), path=MESSAGES, system=nonce + "4")


def test_role_position_and_kind_tell_equal_texts_apart() -> None:
    assert of(user("a")) != of({"role": "assistant", "content": "a"})
    assert of(user("a"), user("b")).hashes[2] != of(user("b"), user("b")).hashes[2]
    assert of({"role": "system", "content": "a"}, path=MESSAGES) != of(path=MESSAGES, system="a")
    assert of(user("a"), user("user")) != of(user([text("a"), text("user")]))


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        (
            "tool_calls",
            [{"id": "1", "function": {"arguments": "{}"}}],
            [{"id": "1", "function": {"arguments": "{ }"}}],
        ),
        ("tool_call_id", "a", "b"),
        ("name", "a", "b"),
        ("reasoning", "a", "b"),
        ("anything", 1, 12),
    ],
)
def test_whatever_else_is_in_a_message_counts(name: str, one: Any, two: Any) -> None:
    assert (
        len({of(user("x")).hashes, of(user("x", **{name: one})).hashes, of(user("x", **{name: two})).hashes})
        == 3
    )


def test_names_and_values_of_members_are_not_run_together() -> None:
    assert of(user("x", ab=1)) != of(user("x", a=1))
    assert of(user("x", a=1, b=2)) != of(user("x", a=12))


def test_long_texts_are_cut_by_position_and_never_equal_short_ones() -> None:
    long = of(user("x" * 3 * CHUNK), user("b"))
    assert len(long.hashes) == 1 + 4 + 1
    assert [b - a for a, b in zip(long.ends, long.ends[1:-1], strict=False)] == [
        CHUNK,
        CHUNK,
        CHUNK,
        len('"user"""'),
    ]
    # One payload of two chunks, and two payloads with just these bytes.
    room = CHUNK - len('"user""a""user"""')
    one = of(user([text("a"), text("user"), text("c" * room), text("user"), text("d")]))
    two = of(user([text("a"), text("user"), text("c" * room)]), user("d"))
    assert one != two


def test_a_bare_prompt_that_grows_keeps_its_full_segments() -> None:
    one, two = (chain({"prompt": "x\n" * size}, COMPLETIONS) for size in (5000, 9000))
    full = 10_000 * 3 // 2 // CHUNK
    assert one.hashes[: full + 1] == two.hashes[: full + 1]
    assert one.hashes[full + 1] != two.hashes[full + 1]


def test_token_ids_count_four_bytes_each_and_keep_their_segments() -> None:
    one, two = (chain({"prompt": list(range(10_000, 10_000 + size))}, COMPLETIONS) for size in (2000, 3000))
    assert one.ends[-1] == 8000
    assert two.ends[-1] == 12_000
    assert one.hashes[:3] == two.hashes[:3]
    assert one.ends[:3] == two.ends[:3]


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        ("a", ["a"], True),
        ([1, 2], [[1, 2]], True),
        (["a", "b"], ["ab"], False),
        ("1,2", [1, 2], False),
        ([[1], [2]], [1, 2], False),
        ([], [[]], False),
    ],
)
def test_prompts_of_each_form(one: Any, two: Any, equal: bool) -> None:
    assert (chain({"prompt": one}, COMPLETIONS) == chain({"prompt": two}, COMPLETIONS)) is equal


def data(size: int, fill: bytes = b"\x00") -> str:
    return base64.b64encode(fill * size).decode()


def images(payload: str) -> Iterator[Any]:
    yield {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": payload}}
    yield {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{payload}"}}
    yield {"type": "input_image", "image_url": f"data:image/png;base64,{payload}"}
    yield {"image_url": {"url": f"data:image/png;base64,{payload}"}}


@pytest.mark.parametrize("form", range(4))
def test_an_image_counts_by_its_tokens_and_is_told_by_its_data(form: int) -> None:
    bare = of(user([text("a"), text("b")])).ends[-1]
    sizes, hashes = set(), set()
    for payload in (data(30), data(100_000), data(100_000, b"\x01")):
        block = list(images(payload))[form]
        seen = of(user([text("a"), block, text("b")]))
        sizes.add(seen.ends[-1])
        hashes.add(seen.hashes[-1])
        assert of(user([text("a"), {**block, **MARK}, text("b")])) == seen
    assert len(sizes) == 1
    assert len(hashes) == 3
    assert 0 < sizes.pop() - bare - IMAGE_BYTES < 10


def test_images_in_results_of_tools_count_by_their_tokens() -> None:
    block = next(images(data(100_000)))
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("a"), block]}
    assert of(user([result]), path=MESSAGES).ends[-1] < IMAGE_BYTES + 300
    output = {"type": "function_call_output", "call_id": "c", "output": [next(images(data(100_000)))]}
    assert chain({"input": [output]}, RESPONSES).ends[-1] < IMAGE_BYTES + 300


def test_sounds_and_videos_count_by_their_tokens() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": data(200_000), "format": "wav"}}
    video = {"type": "video_url", "video_url": {"url": "http://v"}}
    assert AUDIO_BYTES < of(user([sound])).ends[-1] < AUDIO_BYTES + 100
    assert VIDEO_BYTES < of(user([video])).ends[-1] < VIDEO_BYTES + 100


def test_blocks_two_levels_down_are_taken_as_sent() -> None:
    def wrapped(block: dict[str, Any], times: int) -> Chain:
        for _ in range(times):
            block = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
        return of(user([block]))

    assert wrapped(text("x", **MARK), 1) == wrapped(text("x"), 1)
    assert wrapped(text("x", **MARK), 2) != wrapped(text("x"), 2)


WORDS = st.text(alphabet='ab"\\{}[]:,é\n', max_size=6)
BLOCKS = st.builds(text, WORDS) | st.builds(
    lambda words, more: {"type": "tool_result", "tool_use_id": words, "content": more},
    WORDS,
    WORDS | st.lists(st.builds(text, WORDS), max_size=2),
)
CONTENTS = WORDS | st.lists(BLOCKS, max_size=3)
HISTORIES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        CONTENTS,
    ),
    min_size=1,
    max_size=5,
)


def meaning(messages: list[dict[str, Any]]) -> list[Any]:
    """What of messages a model sees, marks apart: the slow way."""
    seen = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
            content = content[0]["text"]
        seen.append((message["role"], content))
    return seen


@given(HISTORIES, HISTORIES)
def test_chains_are_equal_where_meanings_are_and_differ_where_they_differ(
    one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> None:
    common = 0
    for a, b in zip(meaning(one), meaning(two), strict=False):
        if a != b:
            break
        common += 1
    # No text is long here, so each message makes one segment after the root.
    left, right = of(*one).hashes, of(*two).hashes
    shared = sum(a == b for a, b in zip(left, right, strict=False))
    assert shared == common + 1
    assert left[:shared] == right[:shared]


@given(HISTORIES, st.randoms(use_true_random=False))
def test_marks_and_the_form_of_a_text_never_change_a_chain(messages: list[dict[str, Any]], rng: Any) -> None:
    changed = copy.deepcopy(messages)
    for message in changed:
        if isinstance(message["content"], str) and rng.random() < 0.5:
            message["content"] = [text(message["content"])]
        if isinstance(message["content"], list):
            for block in message["content"]:
                inner = block.get("content")
                for each in [block, *(inner if isinstance(inner, list) else [])]:
                    if rng.random() < 0.5:
                        each["cache_control"] = {"type": "ephemeral"}
        if rng.random() < 0.3:
            message["cache_control"] = None
    assert of(*changed, path=MESSAGES) == of(*messages, path=MESSAGES)


def test_a_prompt_that_begins_with_a_token_id_is_one_prompt_of_token_ids():
    plain, spaced = Segments(0), Segments(0)
    plain.add_prompt(b"[1,2,3]")
    spaced.add_prompt(b"[ \n1,2,3]")
    assert plain.ends[-1] == spaced.ends[-1] == 12


def test_past_some_thousand_blocks_a_message_is_hashed_as_it_was_sent():
    def chain(count: int, mark: bytes) -> int:
        block = b'{"type":"text","text":"a"' + mark + b"}"
        segments = Segments(0)
        content = Raw(b"[" + b",".join([block] * count) + b"]")
        segments.add_messages([{"role": Raw(b'"user"'), "content": content}])
        return segments.hashes[-1]

    mark = b',"cache_control":1'
    assert chain(100, b"") == chain(100, mark)
    assert chain(5000, b"") != chain(5000, mark)


def test_a_list_of_very_many_texts_is_one_payload_and_still_tells_where_it_differs():
    chains = []
    for last in (b'"b"', b'"c"'):
        segments = Segments(0)
        segments.add_prompt(b"[" + b'"a",' * 25_000 + last + b"]")
        chains.append(segments.hashes)
    assert len(chains[0]) < 50
    assert chains[0][:-1] == chains[1][:-1]
    assert chains[0][-1] != chains[1][-1]
