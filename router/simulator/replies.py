"""What the simulated model says: words, or a tool call with arguments that its schema allows.

The same prompt always gets the same reply. Every word is four bytes, one token, so that a reply that
comes back as a message has the tokens that were generated.
"""

from codecs import getincrementaldecoder
from collections.abc import Mapping
from random import Random
from typing import Any, Final, Literal, NamedTuple

import orjson
from xxhash import xxh3_64_intdigest

from router.simulator import tokens
from router.simulator.prompts import Call, Prompt, call_tokens

_SPOKEN: Final = (
    "antbaycapdenelkfiggemhayinkjarkitlogmapnetoakpenrayseatinurnvanwaxyewziparcbowcupdewearfingaphut"
)
_WORDS: Final = tuple(_SPOKEN[at : at + 3] for at in range(0, len(_SPOKEN), 3))

NATURAL_LENGTHS: Final = (16, 64)
"""A reply that nothing limits has this many words, at least and at most."""

_MAX_DEPTH: Final = 8


class Reply(NamedTuple):
    """A reply, token by token."""

    tokens: bytes
    pieces: tuple[str, ...]
    """The text that each token adds: of the words, or of the arguments of a call. "" for the others."""
    finish: Literal["stop", "length", "tool_calls"]
    call: Call | None = None
    """The call that the reply makes, whole even where `finish` is "length" and `pieces` end before it."""
    named_at: int = 0
    """The token with which the call's name is complete."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def reply(
    prompt: Prompt, *, max_tokens: int | None = None, min_tokens: int = 0, ignore_eos: bool = False
) -> Reply:
    """The reply to a prompt: of its natural length or `min_tokens`, and never above `max_tokens`.

    With `ignore_eos` it is `max_tokens` long, where there is such a limit.
    """
    seed = xxh3_64_intdigest(prompt.tokens)
    if prompt.forced is not None:
        return _call(prompt, seed, max_tokens)
    words = seed % (NATURAL_LENGTHS[1] - NATURAL_LENGTHS[0] + 1) + NATURAL_LENGTHS[0]
    words = max(words, min_tokens - 1)
    if max_tokens is not None and (ignore_eos or words >= max_tokens):
        said = _say(seed, max_tokens)
        return Reply("".join(said).encode(), tuple(said), "length")
    said = _say(seed, words)
    said[-1] = said[-1].rstrip() + "."
    return Reply("".join(said).encode() + tokens.END, (*said, ""), "stop")


def _say(seed: int, words: int) -> list[str]:
    chance = Random(seed)
    return [f"{word} " for word in chance.choices(_WORDS, k=words)]


def _call(prompt: Prompt, seed: int, max_tokens: int | None) -> Reply:
    tool = next(tool for tool in prompt.tools if prompt.forced in ("", tool.name))
    arguments = orjson.dumps(example(tool.schema, Random(seed)))
    call = Call(tool.name, arguments.decode())
    sequence = call_tokens(call) + tokens.END
    named_at = tokens.count(tokens.encode(tool.name))
    decoder = getincrementaldecoder("utf-8")()
    fragments = [decoder.decode(arguments[at : at + 4]) for at in range(0, len(arguments), 4)]
    pieces = ("",) * (named_at + 1) + tuple(fragments) + ("",)
    if max_tokens is not None and max_tokens < len(pieces):
        return Reply(sequence[: max_tokens * 4], pieces[:max_tokens], "length", call, named_at)
    return Reply(sequence, pieces, "tool_calls", call, named_at)


def example(schema: Mapping[str, Any], chance: Random, *, depth: int = 0) -> object:
    """A value that a JSON schema allows, for the parts of JSON schema that tools use.

    References and recursion end in `{}`: a simulated model does not resolve them.
    """
    if depth > _MAX_DEPTH:
        return {}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return example(schema[union][0], chance, depth=depth + 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    match kind:
        case "string":
            return _string(schema, chance)
        case "integer" | "number":
            return schema.get("minimum", schema.get("maximum", chance.randint(0, 99)))
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
        case "array":
            items = schema.get("items") or {"type": "string"}
            return [example(items, chance, depth=depth + 1) for _ in range(max(1, schema.get("minItems", 1)))]
        case _:
            properties: Mapping[str, Any] = schema.get("properties") or {}
            wanted = schema.get("required", list(properties))
            return {name: example(properties.get(name) or {}, chance, depth=depth + 1) for name in wanted}


def _string(schema: Mapping[str, Any], chance: Random) -> str:
    text: str = " ".join(chance.choices(_WORDS, k=3))
    longest: int | None = schema.get("maxLength")
    text += "." * (schema.get("minLength", 0) - len(text))
    return text[:longest]
