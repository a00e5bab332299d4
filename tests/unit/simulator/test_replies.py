"""Replies: the same for the same prompt, of the length asked for, and the same tokens when they return."""

from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.simulator import tokens
from router.simulator.prompts import Prompt, Tool
from router.simulator.replies import NATURAL_LENGTHS, example, reply

texts = st.text("abc é", min_size=1, max_size=20)


def prompt(text: str) -> Prompt:
    return Prompt(tokens.encode(text))


@given(texts)
def test_a_reply_is_decided_by_its_prompt_and_has_its_natural_length(text: str) -> None:
    made = reply(prompt(text))
    assert made == reply(prompt(text))
    assert made.finish == "stop"
    assert NATURAL_LENGTHS[0] <= len(made.pieces) - 1 <= NATURAL_LENGTHS[1]


@given(texts, st.one_of(st.none(), st.integers(1, 100)))
def test_a_reply_that_returns_has_the_tokens_that_were_made(text: str, limit: int | None) -> None:
    made = reply(prompt(text), max_tokens=limit)
    again = tokens.encode(made.text) + (tokens.END if made.finish == "stop" else b"")
    assert again == made.tokens
    assert tokens.count(made.tokens) == len(made.pieces)


def test_a_reply_survives_a_client_that_strips_it() -> None:
    made = reply(prompt("a"))
    assert made.text.strip() == made.text


def test_a_limit_cuts_and_says_so() -> None:
    made = reply(prompt("a"), max_tokens=5)
    assert (len(made.pieces), made.finish) == (5, "length")


def test_a_limit_beyond_the_natural_length_changes_nothing() -> None:
    assert reply(prompt("a"), max_tokens=5000) == reply(prompt("a"))


def test_more_can_be_asked_for() -> None:
    made = reply(prompt("a"), min_tokens=300)
    assert (len(made.pieces), made.finish) == (300, "stop")
    made = reply(prompt("a"), max_tokens=300, ignore_eos=True)
    assert (len(made.pieces), made.finish) == (300, "length")


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "città": {"type": "string", "enum": ["Zürich"]},
        "days": {"type": "integer", "minimum": 3},
    },
    "required": ["città", "days"],
}
CALLING = Prompt(b"abcd", (Tool("other", {}), Tool("weather", SCHEMA)), "weather")


def test_a_forced_tool_is_called_with_arguments_its_schema_allows() -> None:
    made = reply(CALLING)
    assert made.finish == "tool_calls"
    assert made.call is not None
    assert made.call.name == "weather"
    assert orjson.loads(made.text) == {"città": "Zürich", "days": 3}
    assert made.text == made.call.arguments


def test_any_tool_is_the_first() -> None:
    made = reply(CALLING._replace(forced=""))
    assert made.call is not None
    assert made.call.name == "other"


def test_a_call_shows_nothing_before_its_name_is_complete() -> None:
    made = reply(CALLING)
    assert set(made.pieces[: made.named_at + 1]) == {""}
    assert made.pieces[made.named_at + 1] == '{"ci'
    assert tokens.count(made.tokens) == len(made.pieces)


def test_a_call_can_be_cut() -> None:
    made = reply(CALLING, max_tokens=6)
    assert (made.finish, len(made.pieces), tokens.count(made.tokens)) == ("length", 6, 6)


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, str),
        ({"type": ["null", "number"]}, int),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "array", "items": {"type": "boolean"}}, list),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, str),
        ({"const": 4}, int),
        ({}, dict),
    ],
)
def test_an_example_is_of_the_type_that_its_schema_has(schema: dict[str, Any], kinds: type) -> None:
    assert type(example(schema, Random(1))) is kinds


def test_an_example_keeps_to_lengths() -> None:
    assert len(str(example({"type": "string", "minLength": 40}, Random(1)))) == 40
    assert len(str(example({"type": "string", "maxLength": 2}, Random(1)))) == 2
    listed = example({"type": "array", "minItems": 3}, Random(1))
    assert isinstance(listed, list)
    assert len(listed) == 3


def test_a_schema_without_end_ends() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["self"] = schema
    assert "self" in str(example(schema, Random(1)))
