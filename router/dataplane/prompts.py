"""What of a body makes its prompt, by dialect: which members, in which order, and what renders them.

The prompt stays the bytes that it is; here it becomes segments.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.dataplane.dialects import Dialect
from router.dataplane.fingerprint import Message, Segments
from router.dataplane.members import OBJECT, raw

_ITEMS: Final = msgspec.json.Decoder(list[Message])

# What changes the rendered prompt beside tools and messages, by dialect: vLLM's chat parameters, and what
# says how the text becomes tokens. `tool_choice` and `response_format` are left out on purpose: next to no
# template renders them, and agents change them from turn to turn.
_TOKENS: Final = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side", "mm_processor_kwargs")
_CHAT: Final = (
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "media_io_kwargs",
    *_TOKENS,
)
RENDERING: Final[dict[Dialect | None, tuple[str, ...]]] = {
    Dialect.CHAT: _CHAT,
    Dialect.COMPLETIONS: ("suffix", "prompt_embeds", *_TOKENS),
    Dialect.RESPONSES: (
        "previous_response_id",
        "previous_response",
        "previous_input_messages",
        "chat_template_kwargs",
        "reasoning",
        "truncation",
        *_TOKENS,
    ),
    Dialect.MESSAGES: ("chat_template_kwargs", "thinking", "output_config"),
    Dialect.TOKENIZE: _CHAT,
    # The documents of a pooling request are prompts of their own.
    Dialect.POOLING: tuple(name for name in _CHAT if name != "documents"),
    None: (),
}

POOLED: Final = (
    *("input", "prompt", "query", "queries", "text_1", "data_1"),
    *("documents", "items", "text_2", "data_2"),
)

Field = tuple[str, Any, Any]
"""Name, type and default, as `msgspec.defstruct` takes them."""

_MESSAGES: Final[Field] = ("messages", list[Message] | UnsetType, UNSET)

# By dialect, what makes the prompt. A plain name is a member of any type, kept as sent.
PROMPT: Final[dict[Dialect | None, tuple[str | Field, ...]]] = {
    Dialect.CHAT: (_MESSAGES, "tools"),
    Dialect.COMPLETIONS: ("prompt",),
    Dialect.RESPONSES: ("instructions", "tools", "input"),
    Dialect.MESSAGES: (_MESSAGES, "system", "tools"),
    Dialect.TOKENIZE: (_MESSAGES, "tools", "prompt"),
    Dialect.POOLING: (_MESSAGES, "tools", *POOLED),
    None: (),
}


def rendered(member: str, value: Raw | UnsetType) -> bytes:
    """What of a member reaches the prompt; empty if nothing does."""
    sent = raw(value)
    if not sent or member not in ("reasoning", "output_config", "thinking"):
        return sent
    try:
        inner = OBJECT.decode(sent)
    except msgspec.DecodeError:
        return sent
    if member != "thinking":
        return raw(inner.get("effort", UNSET))
    # A budget bounds the reply. Only thinking that is switched off is told to the template.
    kind = raw(inner.get("type", UNSET))
    return kind if kind == b'"disabled"' else b""


def _add_messages(head: Any, segments: Segments) -> int:
    """Chat: tools, then messages. The answer of all these is how many segments make the opening."""
    if tools := raw(head.tools):
        segments.add_tools(tools)
    return 0 if head.messages is UNSET else segments.add_messages(head.messages)


def _add_anthropic(head: Any, segments: Segments) -> int:
    if tools := raw(head.tools):
        segments.add_tools(tools)
    if system := raw(head.system):
        segments.add_system(system)
    return 0 if head.messages is UNSET else segments.add_messages(head.messages, billing=True)


def _add_responses(head: Any, segments: Segments) -> int:
    if instructions := raw(head.instructions):
        segments.add_system(instructions)
    if tools := raw(head.tools):
        segments.add_tools(tools)
    sent = raw(head.input)
    if not sent:
        return 0
    if not sent.startswith(b"["):
        # A string is what a single message of the user would be.
        return segments.add_messages(({"role": Raw(b'"user"'), "content": head.input},))
    try:
        items = _ITEMS.decode(sent)
    except msgspec.ValidationError:
        segments.add(sent)
        return 0
    return segments.add_messages(items)


def _add_completion(head: Any, segments: Segments) -> int:
    """A bare prompt shows no turns: all of it is the opening. To end the opening after a first stretch would
    make one session of all conversations that share a long preamble."""
    if prompt := raw(head.prompt):
        segments.add_prompt(prompt)
    return len(segments.hashes) if prompt else 0


def _add_tokenize(head: Any, segments: Segments) -> int:
    if head.messages is not UNSET:
        return _add_messages(head, segments)
    return _add_completion(head, segments)


def _add_pooling(head: Any, segments: Segments) -> int:
    if head.messages is not UNSET:
        _add_messages(head, segments)
    for name in POOLED:
        if prompt := raw(getattr(head, name)):
            segments.add_prompt(prompt)
    return 0


def _add_nothing(_head: Any, _segments: Segments) -> int:
    return 0


ADD_PROMPT: Final[dict[Dialect | None, Callable[[Any, Segments], int]]] = {
    Dialect.CHAT: _add_messages,
    Dialect.COMPLETIONS: _add_completion,
    Dialect.RESPONSES: _add_responses,
    Dialect.MESSAGES: _add_anthropic,
    Dialect.TOKENIZE: _add_tokenize,
    Dialect.POOLING: _add_pooling,
    None: _add_nothing,
}
