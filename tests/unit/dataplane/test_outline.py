"""Outlines of real bodies, held against their chains."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import OPEN_TENANT
from router.core.breaks import Cause, find_difference
from router.core.outline import Outline, Part
from router.dataplane.reader import Read, RequestReader

READER = RequestReader(body_fields=(), derive=True)
CHAT, MESSAGES, RESPONSES, COMPLETIONS, POOLING = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/completions",
    "/v1/embeddings",
)
NONCE = {"type": "text", "text": "x-anthropic-billing-header: nonce"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:..."}}


def read(body: Any, path: str = CHAT) -> Read:
    return READER.read(path, json.dumps({"model": "m", **body}).encode(), OPEN_TENANT)


def outline(body: Any, path: str = CHAT) -> Outline:
    told = read(body, path).outline
    assert told is not None
    whole = told(0)
    assert whole is not None
    return whole


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


LONG = "many words " * 2000
CONVERSATION = [
    say("system", "At 10:31, be kind."),
    say("user", LONG),
    say("assistant", None, tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]),
    say("tool", "result " * 900, tool_call_id="1"),
    say("user", [{"type": "text", "text": "look"}, IMAGE]),
]
BODIES = [
    (CHAT, {"messages": CONVERSATION}),
    (CHAT, {"messages": CONVERSATION, "tools": [{"type": "function", "x": LONG}], "documents": [1]}),
    (MESSAGES, {"system": [NONCE, {"type": "text", "text": LONG}], "messages": CONVERSATION[1:2]}),
    (
        MESSAGES,
        {"system": "At 10:31", "tools": [{"name": "t"}], "messages": [say("system", [NONCE]), *CONVERSATION]},
    ),
    (RESPONSES, {"instructions": "Be kind.", "input": "hello"}),
    (
        RESPONSES,
        {
            "instructions": LONG,
            "tools": [{"name": "t"}],
            "input": [*CONVERSATION[:2], {"type": "x", "output": "y"}],
        },
    ),
    (RESPONSES, {"input": {"odd": 1}}),
    (COMPLETIONS, {"prompt": LONG}),
    (COMPLETIONS, {"prompt": ["one", "two"]}),
    (COMPLETIONS, {"prompt": list(range(5000))}),
    (POOLING, {"input": ["one", "two"]}),
    ("/tokenize", {"messages": CONVERSATION}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_there_is_one_entry_for_each_segment_of_the_chain(path: str, body: dict[str, Any]):
    assert len(outline(body, path)) == len(read(body, path).chain.hashes)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_end_of_an_outline_is_the_same_alone(path: str, body: dict[str, Any]):
    whole = outline(body, path)
    told = read(body, path).outline
    assert told is not None
    for first in range(1, len(whole)):
        end = told(first)
        if end is None:
            # Only messages can be told without all that stands before them.
            assert whole.message(first) is None
            continue
        assert (end.tags, end.own, end.shapes) == (
            whole.tags[first:],
            whole.own[first:],
            whole.shapes[first:],
        )


def test_digits_are_looked_for_in_the_first_and_last_messages_of_a_long_history_and_in_all_that_are_added():
    history = [say("system", "s"), *(say("user", f"message {at} of many") for at in range(40))]
    whole = outline({"messages": history})
    unknown = [at for at, shape in enumerate(whole.shapes) if not shape]
    # The root, and those amid the history: the system message is the first of the first eight.
    assert unknown == [0, *range(9, 42 - 8)]
    told = read({"messages": history}).outline
    assert told is not None
    for first in (2, 20, 36):
        end = told(first)
        assert end is not None
        assert (end.tags, end.own) == (whole.tags[first:], whole.own[first:])
        assert all(end.shapes[:8]), "what is told from anywhere begins with a shape"


def test_a_clock_in_a_message_is_told_where_either_prompt_had_a_look_at_it():
    def later(minute: int, more: int = 0) -> dict[str, Any]:
        note = say("user", f"It is 10:{minute} now")
        return turns("s", *[say("assistant", "a")] * 30, note, *[say("assistant", "b")] * (3 + more))

    assert difference(CHAT, later(30), later(31)) == (Part.MESSAGE, Cause.DIGITS, 32)
    # Told as changed where it lay amid a history that came at once.
    assert difference(CHAT, later(30, 20), later(31, 20)) == (Part.MESSAGE, Cause.CHANGED, 32)


def test_a_body_without_a_prompt_has_none():
    assert read({}).outline is None
    assert read({"messages": []}).outline is None


def test_parts_and_messages_are_named_as_their_sender_knows_them():
    made = outline({"messages": CONVERSATION, "tools": [{"type": "function"}]})
    assert [(made.part(at), made.message(at), made.role(at)) for at in made.beginnings(0)] == [
        (Part.PARAMETERS, None, None),
        (Part.TOOLS, None, None),
        (Part.SYSTEM, 0, "system"),
        (Part.MESSAGE, 1, "user"),
        (Part.MESSAGE, 2, "assistant"),
        (Part.MESSAGE, 3, "tool"),
        (Part.MESSAGE, 4, "user"),
    ]
    made = outline(
        {"instructions": "x", "input": [{"type": "function_call_output", "output": "y"}]}, RESPONSES
    )
    assert (made.part(1), made.message(1)) == (Part.SYSTEM, None)
    assert (made.part(2), made.message(2), made.role(2)) == (Part.MESSAGE, 0, "item")


def difference(path: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[Part, Cause, int | None]:
    found = find_difference(outline(before, path), outline(after, path))
    return found.part, found.cause, found.message


def turns(system: Any, *more: Any) -> dict[str, Any]:
    return {"messages": [say("system", system), say("user", "hi"), *more]}


@pytest.mark.parametrize("behind", ["", LONG])
def test_a_clock_in_the_system_prompt_is_told_from_another_text(behind: str):
    later = (say("assistant", "yes"), say("user", "go on"))
    before = turns(f"It is 2026-01-09 9:59:59 now. {behind}")
    assert difference(CHAT, before, turns(f"It is 2026-01-10 10:00:00 now. {behind}", *later)) == (
        Part.SYSTEM,
        Cause.DIGITS,
        0,
    )
    assert difference(CHAT, before, turns(f"It is 2026-01-10 late now. {behind}", *later)) == (
        Part.SYSTEM,
        Cause.CHANGED,
        0,
    )


def test_what_does_not_reach_the_model_makes_no_difference():
    mark = {"cache_control": {"type": "ephemeral"}}
    before = {"system": [NONCE, {"type": "text", "text": "s", **mark}], "messages": [say("user", "hi")]}
    after = {
        "system": [{"type": "text", "text": NONCE["text"] + "9"}, {"type": "text", "text": "s"}],
        "messages": [say("user", [{"type": "text", "text": "hi", **mark}]), say("assistant", "yes")],
    }
    one, other = outline(before, MESSAGES), outline(after, MESSAGES)
    assert one.common(other) == len(one)


def test_a_changed_tool_list_is_named():
    before = {"tools": [{"name": "a"}], **turns("s")}
    after = {"tools": [{"name": "a"}, {"name": "b"}], **turns("s", say("assistant", "yes"))}
    assert difference(CHAT, before, after) == (Part.TOOLS, Cause.CHANGED, None)


def test_a_template_argument_that_changes_is_a_parameter():
    before, after = (
        turns("s"),
        {**turns("s", say("assistant", "y")), "chat_template_kwargs": {"thinking": True}},
    )
    assert difference(CHAT, before, after)[:2] == (Part.PARAMETERS, Cause.CHANGED)


def test_a_muddle_of_objects_is_not_looked_into():
    message = say("user", [{"type": "text", "text": "x"}] * 2100)
    told = read({"messages": [message, message]}).outline
    assert told is not None
    assert told(0) is None
    assert told(1) is None
    assert told(len(read({"messages": [message, message]}).chain.hashes) - 1) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["system", "user", "assistant", "tool"]),
            st.one_of(
                st.text(max_size=30),
                st.integers(0, 9000).map(lambda size: "x" * size),
                st.just([{"type": "text", "text": "a"}, IMAGE]),
                st.none(),
            ),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_outlines_fit_chains_whatever_the_messages(messages: list[tuple[str, Any]]):
    for path in (CHAT, MESSAGES):
        body = read({"messages": [say(role, content) for role, content in messages]}, path)
        assert body.outline is not None
        whole = body.outline(0)
        assert whole is not None
        assert len(whole) == len(body.chain.hashes)
