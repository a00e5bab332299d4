"""Bodies of every dialect come down to one template; what is no prompt is refused with its field."""

from typing import Any

import pytest

from router.simulator import prompts, tokens
from router.simulator.prompts import BadPrompt

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
ANTHROPIC_TOOL = {"name": "look_up", "input_schema": {"type": "object"}}


def shown(prompt: prompts.Prompt) -> str:
    return tokens.decode(prompt.tokens)


def ask(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], **more}


def test_chat_is_rendered_message_by_message() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "yes."},
            {"role": "tool", "tool_call_id": "x", "content": "42"},
        ]
    }
    assert shown(prompts.chat(body)) == (
        "<|sys|>be brief<|end|><|usr|>hi<|end|><|ast|>yes.<|end|><|tol|>42<|end|><|ast|>"
    )


def test_a_longer_conversation_starts_with_the_tokens_of_the_shorter() -> None:
    first = prompts.chat(ask())
    longer = ask()
    longer["messages"] += [{"role": "assistant", "content": "ant bay."}, {"role": "user", "content": "go on"}]
    assert prompts.chat(longer).tokens.startswith(first.tokens + tokens.encode("ant bay.") + tokens.END)


def test_the_same_conversation_is_the_same_in_three_dialects() -> None:
    chat = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    messages = {"system": "s", "messages": [{"role": "user", "content": "u"}]}
    responses = {"instructions": "s", "input": "u"}
    assert prompts.chat(chat) == prompts.anthropic(messages)
    assert prompts.chat(chat) == prompts.responses(responses, prompts.responses_input(responses))


def test_a_tool_call_and_its_result_are_the_same_in_three_dialects() -> None:
    call = {"name": "look_up", "arguments": '{"a":1}'}
    chat = [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    blocks = [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "look_up", "input": {"a": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
    ]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "1", **call},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
    ]
    expected = prompts.chat({"messages": chat}).tokens
    assert prompts.anthropic({"messages": blocks}).tokens == expected
    assert prompts.render(prompts.responses_input({"input": items})) == expected


def test_marks_that_wander_and_nonces_are_no_part_of_the_prompt() -> None:
    def body(marked: int, nonce: str) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"data": "x"}},
        ]
        parts[marked]["cache_control"] = {"type": "ephemeral"}
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {nonce}"},
            {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
        ]
        tool = ANTHROPIC_TOOL | ({"cache_control": {"type": "ephemeral"}} if marked else {})
        return {"system": system, "tools": [tool], "messages": [{"role": "user", "content": parts}]}

    assert prompts.anthropic(body(0, "17")) == prompts.anthropic(body(1, "18"))


def test_whatever_changes_the_template_changes_the_prompt() -> None:
    plain = prompts.chat(ask()).tokens
    for more in (
        {"tools": [TOOL]},
        {"chat_template_kwargs": {"thinking": True}},
        {"documents": [{"a": "b"}]},
    ):
        assert prompts.chat(ask(**more)).tokens != plain


def test_an_image_costs_the_same_whatever_its_size() -> None:
    def tokens_of(url: str) -> int:
        part = {"type": "image_url", "image_url": {"url": url}}
        return tokens.count(prompts.chat({"messages": [{"role": "user", "content": [part]}]}).tokens)

    assert tokens_of("data:" + "A" * 9000) == tokens_of("data:B") == prompts.IMAGE_TOKENS + 3


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("required", ""),
        ({"type": "function", "function": {"name": "look_up"}}, "look_up"),
        ("auto", None),
        ("none", None),
        (None, None),
    ],
)
def test_a_tool_is_called_when_the_choice_says_so(choice: object, forced: str | None) -> None:
    assert prompts.chat(ask(tools=[TOOL], tool_choice=choice)).forced == forced


def test_a_tool_is_called_when_its_user_names_it() -> None:
    asked = {"messages": [{"role": "user", "content": "please look_up this"}], "tools": [TOOL]}
    assert prompts.chat(asked).forced == "look_up"
    assert prompts.chat(asked | {"tool_choice": "none"}).forced is None
    asked["messages"].append({"role": "tool", "content": "look_up gave 42"})  # type: ignore[attr-defined]
    assert prompts.chat(asked).forced is None


@pytest.mark.parametrize(
    ("choice", "forced"),
    [({"type": "any"}, ""), ({"type": "tool", "name": "look_up"}, "look_up"), (None, None)],
)
def test_a_tool_choice_of_the_messages_dialect(choice: object, forced: str | None) -> None:
    assert prompts.anthropic(ask(tools=[ANTHROPIC_TOOL], tool_choice=choice)).forced == forced


def test_a_completion_takes_text_or_token_ids() -> None:
    assert prompts.completion({"prompt": "abcdef"}).tokens == b"abcdef\xff\xff"
    ids = tokens.to_ids(b"abcdef\xff\xff")
    assert prompts.completion({"prompt": ids}).tokens == b"abcdef\xff\xff"
    assert prompts.completion({"prompt": [ids]}).tokens == b"abcdef\xff\xff"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "messages: a list of objects"),
        ({"messages": []}, "messages: must not be empty"),
        ({"messages": ["x"]}, "messages: a list of objects"),
        ({"messages": [{"role": ["x"], "content": "a"}]}, "unknown role"),
        ({"messages": [{"role": "user", "content": 3}]}, "content: a list of objects"),
        (ask(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "no"}}), "no tool 'no'"),
        (ask(tool_choice="required"), "none is given"),
        (ask(tools=[{"type": "function", "function": {}}]), "name: a text is needed"),
    ],
)
def test_a_chat_without_a_prompt_is_refused(body: dict[str, Any], why: str) -> None:
    with pytest.raises(BadPrompt, match=why):
        prompts.chat(body)


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [1.5], [-1], {"a": 1}])
def test_a_completion_without_one_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(BadPrompt, match="prompt: "):
        prompts.completion({"prompt": prompt})


@pytest.mark.parametrize(
    "given", [None, [], [{"type": "web_search_call"}], [{"role": "nobody", "content": "x"}]]
)
def test_a_response_without_input_is_refused(given: object) -> None:
    with pytest.raises(BadPrompt):
        prompts.responses_input({"input": given})
