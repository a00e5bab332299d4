"""What the JSON of an answer tells: token counts, the id of a stored response, what must not go out.

Knows whole JSON texts only, one event's or one body's; how they arrive is for its callers.
"""

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Raw, UnsetType

from router.core.observe import Usage
from router.dataplane.schemas import Answer, Counts, Error, Facts
from router.dataplane.splice import cuts, edited, members

INTERNAL: Final = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""Members that replicas put into answers for the router. No client may see them."""
INTERNAL_BYTES: Final = b"_transfer_params"
"""What is in all of their names, and hardly ever elsewhere."""


_FACTS: Final = msgspec.json.Decoder(Facts)
_ANSWER: Final = msgspec.json.Decoder(Answer)
_ERROR: Final = msgspec.json.Decoder(Error)
_COUNTS: Final = msgspec.json.Decoder(Counts)
_TEXT: Final = msgspec.json.Decoder(str)


def facts_of(text: bytes | Raw | UnsetType) -> Facts | None:
    """The telling members of a JSON object; `None` for anything else."""
    if isinstance(text, UnsetType):
        return None
    try:
        return _FACTS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def answer_of(text: bytes) -> Answer | None:
    """What a whole answer tells; `None` where some of it is of another type than engines write."""
    try:
        return _ANSWER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def text_of(value: Raw | UnsetType) -> str | None:
    """A member that is a text with something in it."""
    if isinstance(value, UnsetType):
        return None
    try:
        return _TEXT.decode(value) or None
    except msgspec.DecodeError:
        return None


def is_empty_list(value: Raw | UnsetType) -> bool:
    return not isinstance(value, UnsetType) and bytes(value).translate(None, b" \t\r\n") == b"[]"


def is_null(value: Raw | UnsetType) -> bool:
    return not isinstance(value, UnsetType) and bytes(value) == b"null"


def error_of(error: Raw | UnsetType) -> int | None:
    """The status that an error member stands for; `None` where there is no error. Unless it says that the
    client is to blame, the replica is."""
    if isinstance(error, UnsetType) or is_null(error):
        return None
    try:
        said = _ERROR.decode(error)
    except (msgspec.DecodeError, RecursionError):
        return 500
    if isinstance(said.code, int):
        return said.code if 400 <= said.code < 500 else 500
    return 400 if said.type == "invalid_request_error" else 500


def usage_of(usage: bytes | Raw | UnsetType, before: Usage | None = None) -> Usage | None:
    """Token counts from a usage object of any dialect. What it does not say is as it was `before`.

    Anthropic's `input_tokens` leave out what was read from the cache and what was written to it; the
    prompt is the sum (vLLM fills them so too).
    """
    if isinstance(usage, UnsetType):
        return before
    try:
        counts = _COUNTS.decode(usage)
    except (msgspec.DecodeError, RecursionError):
        return before
    return counted(counts, before)


def counted(counts: Counts, before: Usage | None = None) -> Usage | None:
    """The same of a usage object that is decoded."""
    prompt, completion, details = counts.prompt_tokens, counts.completion_tokens, counts.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    if prompt is None and counts.input_tokens is not None:
        details = counts.input_tokens_details
        cached = details.cached_tokens if details is not None else counts.cache_read_input_tokens
        prompt = counts.input_tokens + (counts.cache_read_input_tokens or 0)
        prompt += counts.cache_creation_input_tokens or 0
    if completion is None:
        completion = counts.output_tokens
    if prompt is None and completion is None:
        return before
    if before is not None:
        if prompt is None:
            prompt, cached = before.prompt_tokens, before.cached_tokens
        if completion is None:
            completion = before.completion_tokens
    return Usage(prompt, completion, cached)


def without_internal(text: bytes, *, inside: Collection[str] = ("response", "message")) -> bytes:
    """A JSON object less its internal members, at the top and in the answer that an event holds `inside`.

    Those that are null may stay. Raises as `splice.members` does for what is no object.
    """
    found = members(text)
    gone = [one.key in INTERNAL and text[one.value : one.end] != b"null" for one in found]
    edits = cuts(found, gone)
    for one in found:
        inner = text[one.value : one.end] if one.key in inside else b""
        if inner.startswith(b"{") and INTERNAL_BYTES in inner:
            edits.append((one.value, one.end, without_internal(inner, inside=())))
    return b"".join(edited(text, sorted(edits)))
