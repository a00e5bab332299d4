"""What of a body makes its prompt, and so its chain."""

from typing import Any

import pytest

from router.core.request import EMPTY_CHAIN
from router.dataplane.reader import Read, RequestReader
from tests.support.bodies import USER, read


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
