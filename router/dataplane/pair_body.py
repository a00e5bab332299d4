"""What of requests and answers concerns pairs of a prefill and a decode replica: bodies in, bodies out.

Both get the client's request, so that both render the same prompt; prefill is asked for one token. Knows no
connections, no sessions and no transfer parameters.
"""

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.core.observe import Usage
from router.dataplane.abridged import Abridged, abridged
from router.dataplane.answer_facts import INTERNAL, is_null, text_of, usage_of
from router.dataplane.dialects import Dialect
from router.dataplane.schemas import PairAnswer, PairMessage, PairPart
from router.dataplane.splice import Edit, Member, cuts, edited, inserted, members, without

_ANSWER: Final = msgspec.json.Decoder(PairAnswer)

_LIMITS: Final = {
    Dialect.CHAT: b'"max_tokens":1',
    Dialect.COMPLETIONS: b'"max_tokens":1',
    Dialect.MESSAGES: b'"max_tokens":1',
    Dialect.RESPONSES: b'"max_output_tokens":1,"store":false',
}
"""By dialect, how a reply of one token is asked for."""

# What says how long and in which form a reply is to be, and nothing of the prompt.
_REPLY: Final = frozenset(
    (
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "min_tokens",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "store",
    )
)
_HARMLESS: Final = {
    "n": b"1",
    "best_of": b"1",
    "echo": b"false",
    "use_beam_search": b"false",
    "background": b"false",
    "prompt_logprobs": b"null",
    "prompt_embeds": b"null",
    "truncate_prompt_tokens": b"null",
    "previous_response_id": b"null",
}
"""Members for whose sake a single replica does all of it, unless they are null or this."""
_ASKS_IDS: Final = "return_token_ids"
_TELLING: Final = frozenset((*_HARMLESS, _ASKS_IDS, "messages", "prompt"))
_STREAM: Final = frozenset(("stream", "stream_options"))
_IDS: Final = frozenset(("token_ids", "prompt_token_ids"))


class PairBody(NamedTuple):
    """A request whose prompt one replica may compute for another."""

    comparable: bool
    """Its prompt is text alone, and what tokens it is made of can be asked for."""
    asks_ids: bool
    """The client asked for token ids."""
    members: list[Member]
    """Of the body, in order."""


class Told(NamedTuple):
    """What a replica's whole answer tells."""

    params: bytes | None
    """Of the blocks that it keeps."""
    prompt_ids: bytes | None
    reply_ids: bytes | None
    """Each a list, sound or not; `None` where it does not say."""
    usage: Usage | None = None
    response_id: str | None = None
    """Of the stored response (Responses only)."""


def read_pair(dialect: Dialect | None, body: bytes) -> PairBody | None:
    """What a request says; `None` for one that a single replica must do alone: several answers, several
    prompts, figures of the prompt's own tokens, one that goes on from a stored response."""
    if dialect not in _LIMITS:
        return None
    try:
        found = members(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    said: dict[str, bytes] = {}
    for one in found:
        if one.key in _TELLING:
            # Of a repeated member, the last is the one that counts.
            said[one.key] = body[one.value : one.end]
    for key, harmless in _HARMLESS.items():
        value = said.get(key)
        if value is not None and value != harmless and value != b"null":
            return None
    asks = said.get(_ASKS_IDS) == b"true"
    if dialect is Dialect.COMPLETIONS:
        if not said.get("prompt", b"").startswith(b'"'):
            # A list may be one prompt in token ids or several prompts.
            return None
        return PairBody(True, asks, found)
    return PairBody(dialect is Dialect.CHAT and _is_text(said.get("messages", b"")), asks, found)


def prefill_body(dialect: Dialect, body: bytes, found: list[Member], params: bytes, *, ids: bool) -> bytes:
    """The request for the prefill replica: the same prompt, one token, in one piece. `found`: the members of
    `body`. `ids`: it is to tell which tokens the prompt has."""
    gone = [one.key in _REPLY for one in found]
    edits = cuts(found, gone)
    start = body.index(b"{") + 1
    added = b'"kv_transfer_params":%b,%b%b,"stream":false%b' % (
        params,
        _LIMITS[dialect],
        b',"return_token_ids":true' if ids else b"",
        b"" if all(gone) else b",",
    )
    first: Edit = (start, start, added)
    return b"".join(edited(body, sorted([*edits, first])))


def decode_parts(
    parts: tuple[bytes | memoryview, ...], params: bytes, *, ids: bool, whole: bool
) -> tuple[bytes | memoryview, ...]:
    """The request for the decode replica: the client's, and where to fetch the prompt's KV. `whole`: the
    answer is to come in one piece, whatever the client asked for."""
    if whole:
        parts = (without(b"".join(parts), _STREAM),)
    member = b'"kv_transfer_params":' + params
    if ids:
        member += b',"return_token_ids":true'
    return inserted(parts, member)


def told(dialect: Dialect | None, body: Abridged) -> Told:
    """What a whole answer tells of what its replica keeps, and of its tokens; and what any answer tells, so
    that it is read once."""
    try:
        answer = _ANSWER.decode(body.text)
    except (msgspec.DecodeError, RecursionError):
        return Told(None, None, None)
    params, prompt, reply = answer.kv_transfer_params, answer.prompt_token_ids, answer.token_ids
    choices = answer.choices
    if not isinstance(choices, UnsetType) and choices is not None and len(choices) == 1:
        reply = choices[0].token_ids
        # Completions tell the prompt's with the choice.
        prompt = prompt if not _is_absent(prompt) else choices[0].prompt_token_ids
    response_id = text_of(answer.id) if dialect is Dialect.RESPONSES else None
    return Told(
        _restored(params, body),
        _restored(prompt, body),
        _restored(reply, body),
        usage_of(answer.usage),
        response_id,
    )


def rendered_ids(body: bytes) -> bytes | None:
    """The prompt's token ids in the answer of a `/render` endpoint, which is one object or a list of one."""
    brief = abridged(body)
    try:
        if brief.text.lstrip()[:1] == b"[":
            [one] = _RENDERED.decode(brief.text)
        else:
            one = _ANSWER.decode(brief.text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return _restored(one.token_ids, brief)


_RENDERED: Final = msgspec.json.Decoder(list[PairAnswer])


def shown(answer: Abridged, *, ids: bool) -> bytes:
    """A whole answer as its client is to see it: null where the engine writes null unless it was asked, as
    the router did. `ids`: the client asked for token ids, too. What is no JSON object stays as it is."""
    body = answer.text
    edits = []
    try:
        found = members(body)
    except (msgspec.DecodeError, RecursionError):
        return answer.restored(body)
    for one in found:
        if one.key in INTERNAL or (one.key in _IDS and not ids):
            edits.append((one.value, one.end, b"null"))
        elif one.key == "choices" and not ids and body[one.value : one.value + 1] == b"[":
            start, end = body.find(b"{", one.value, one.end), body.rfind(b"}", one.value, one.end) + 1
            if start < 0 or end <= start:
                continue
            edits += [
                (start + inner.value, start + inner.end, b"null")
                for inner in members(body[start:end])
                if inner.key in _IDS
            ]
    return answer.restored(b"".join(edited(body, edits)))


def _is_text(messages: bytes) -> bool:
    """Whether all messages are texts and tool calls, whose tokens say all that there is to them."""
    try:
        for message in _MESSAGES.decode(messages):
            content = message.content
            # A text may be as long as the prompt: it is neither read nor copied.
            if isinstance(content, UnsetType) or memoryview(content)[0] == _QUOTE or is_null(content):
                continue
            for part in _PARTS.decode(content):
                if part.type != "text":
                    return False
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


_MESSAGES: Final = msgspec.json.Decoder(list[PairMessage])
_PARTS: Final = msgspec.json.Decoder(list[PairPart])
_QUOTE: Final = ord('"')


def _is_absent(value: Raw | UnsetType) -> bool:
    return value is UNSET or is_null(value)


def _restored(value: Raw | UnsetType, body: Abridged) -> bytes | None:
    given = _given(value)
    return body.restored(given) if given is not None else None


def _given(value: Raw | UnsetType) -> bytes | None:
    return None if isinstance(value, UnsetType) or is_null(value) else bytes(value)
