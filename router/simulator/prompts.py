"""From a request body to the tokens that the model sees: one chat template for every dialect.

Knows nothing of HTTP. Bodies are parsed JSON objects; what the router or a client got wrong raises
`BadPrompt` with the text that the answer carries.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson
from xxhash import xxh3_64_hexdigest

from router.base.errors import HomingError
from router.simulator import tokens

Body = Mapping[str, Any]

IMAGE_TOKENS: Final = 257
"""What an image costs, whatever its size: a marker and its digest, repeated."""

_ROLES: Final[Mapping[str, bytes]] = {
    "system": tokens.SYSTEM,
    "developer": tokens.SYSTEM,
    "user": tokens.USER,
    "assistant": tokens.ASSISTANT,
    "tool": tokens.TOOL,
    "function": tokens.TOOL,
}

# Fields beside messages and tools that change what the template renders.
_TEMPLATE_FIELDS: Final = ("chat_template", "chat_template_kwargs", "documents")

_NONCE: Final = "x-anthropic-billing-header"
"""A coding agent opens one system block with this and a value that differs in every request; vLLM drops
the block, since no two prompts would share a prefix otherwise."""


class BadPrompt(HomingError):
    """The body holds no prompt that can be rendered."""


class Call(NamedTuple):
    """A tool call as the model writes it."""

    name: str
    arguments: str
    """JSON text."""


class Message(NamedTuple):
    """A message in the one form that all dialects come down to."""

    role: str
    content: bytes
    """Tokens."""
    calls: tuple[Call, ...] = ()


class Tool(NamedTuple):
    """A tool that the model may call."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema of its arguments."""


class Prompt(NamedTuple):
    """What the model sees, and what else decides how it answers."""

    tokens: bytes
    tools: tuple[Tool, ...] = ()
    forced: str | None = None
    """The tool that the reply must call; "" = any; `None` = none."""


def call_tokens(call: Call) -> bytes:
    """A tool call inside an assistant message."""
    return tokens.CALL + tokens.encode(call.name) + tokens.encode(call.arguments)


def render(messages: Iterable[Message], head: bytes = b"") -> bytes:
    """The chat template: `head`, the messages, and the marker after which the reply starts."""
    parts = [head]
    for message in messages:
        parts += (_ROLES[message.role], message.content, *map(call_tokens, message.calls), tokens.END)
    parts.append(tokens.ASSISTANT)
    return b"".join(parts)


def chat(body: Body) -> Prompt:
    """`/v1/chat/completions`, and `/tokenize` with messages."""
    messages = [_chat_message(message) for message in _objects(body, "messages")]
    if not messages:
        raise BadPrompt("messages: must not be empty")
    tools = tuple(
        Tool(_text(function, "name"), function.get("parameters") or {})
        for tool in _objects(body, "tools", missing=())
        if isinstance(function := tool.get("function"), dict)
    )
    choice = body.get("tool_choice")
    forced = "" if choice == "required" else None
    if isinstance(choice, dict):
        forced = _text(choice.get("function") or {}, "name")
    return _prompt(render(messages, _head(body)), tools, forced, choice, messages)


def anthropic(body: Body) -> Prompt:
    """`/v1/messages`."""
    system = body.get("system")
    texts = (
        [system] if isinstance(system, str) else [_text(block, "text") for block in _listed(system, "system")]
    )
    kept = [text for text in texts if not text.startswith(_NONCE)]
    messages = [Message("system", tokens.encode("".join(kept)))] if kept else []
    for message in _objects(body, "messages"):
        messages += _anthropic_messages(message)
    if not messages:
        raise BadPrompt("messages: must not be empty")
    tools = tuple(
        Tool(_text(tool, "name"), tool.get("input_schema") or {})
        for tool in _objects(body, "tools", missing=())
    )
    choice = body.get("tool_choice") or {}
    kind = choice.get("type")
    forced = _text(choice, "name") if kind == "tool" else "" if kind == "any" else None
    return _prompt(render(messages, _head(body)), tools, forced, kind, messages)


def responses_input(body: Body) -> list[Message]:
    """The messages that the `input` of `/v1/responses` adds to what is stored."""
    given = body.get("input")
    if isinstance(given, str):
        return [Message("user", tokens.encode(given))]
    messages: list[Message] = []
    for item in _objects(body, "input"):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(Message(_role(item), _content(item.get("content"))))
        elif kind == "function_call":
            call = Call(_text(item, "name"), _text(item, "arguments"))
            messages.append(Message("assistant", b"", (call,)))
        elif kind == "function_call_output":
            messages.append(Message("tool", _content(item.get("output"))))
        elif kind != "reasoning":
            raise BadPrompt(f"input: items of type {kind!r} are not supported")
    if not messages:
        raise BadPrompt("input: must not be empty")
    return messages


def responses(body: Body, messages: list[Message]) -> Prompt:
    """`/v1/responses`, with `messages` the stored conversation and the new input."""
    instructions = body.get("instructions")
    first = [Message("system", tokens.encode(instructions))] if isinstance(instructions, str) else []
    tools = tuple(
        Tool(_text(tool, "name"), tool.get("parameters") or {})
        for tool in _objects(body, "tools", missing=())
        if tool.get("type") == "function"
    )
    choice = body.get("tool_choice")
    forced = "" if choice == "required" else None
    if isinstance(choice, dict) and choice.get("type") == "function":
        forced = _text(choice, "name")
    return _prompt(render(first + messages, _head(body)), tools, forced, choice, messages)


def completion(body: Body) -> Prompt:
    """`/v1/completions`, and `/tokenize` with a prompt: text or token ids, without a template."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        rendered = tokens.encode(prompt)
    elif isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        try:
            rendered = tokens.from_ids(prompt)
        except ValueError as error:
            raise BadPrompt(f"prompt: {error}") from None
    else:
        raise BadPrompt("prompt: one text or one list of token ids is needed")
    if not rendered:
        raise BadPrompt("prompt: must not be empty")
    return Prompt(rendered)


def _prompt(
    rendered: bytes, tools: tuple[Tool, ...], forced: str | None, choice: object, messages: list[Message]
) -> Prompt:
    if forced and all(tool.name != forced for tool in tools):
        raise BadPrompt(f"tool_choice: the request has no tool {forced!r}")
    if forced == "" and not tools:
        raise BadPrompt("tool_choice: a tool is required and none is given")
    if forced is None and tools and choice != "none" and messages[-1].role == "user":
        # A simulated model cannot understand; that its user names a tool is the sign to call it.
        asked = tokens.decode(messages[-1].content)
        forced = next((tool.name for tool in tools if tool.name and tool.name in asked), None)
    return Prompt(rendered, tools, forced)


def _head(body: Body) -> bytes:
    parts = [tokens.encode(_json({field: body[field]})) for field in _TEMPLATE_FIELDS if body.get(field)]
    if body.get("tools"):
        parts.append(tokens.TOOLS + tokens.encode(_json(_unmarked(body["tools"]))) + tokens.END)
    return b"".join(parts)


def _unmarked(tools: object) -> object:
    """Tools without the `cache_control` marks that wander from turn to turn: they are no part of a prompt."""
    if not isinstance(tools, list):
        return tools
    return [
        {field: value for field, value in tool.items() if field != "cache_control"}
        if isinstance(tool, dict)
        else tool
        for tool in tools
    ]


def _chat_message(message: Body) -> Message:
    calls = tuple(
        Call(_text(function, "name"), _text(function, "arguments"))
        for call in _objects(message, "tool_calls", missing=())
        if isinstance(function := call.get("function"), dict)
    )
    return Message(_role(message), _content(message.get("content")), calls)


def _anthropic_messages(message: Body) -> list[Message]:
    """One message of this dialect: the results of tools in it are messages of their own."""
    role, content = _role(message), message.get("content")
    if isinstance(content, str):
        return [Message(role, tokens.encode(content))]
    results: list[Message] = []
    parts: list[bytes] = []
    calls: list[Call] = []
    for block in _listed(content, "content"):
        kind = block.get("type")
        if kind == "tool_result":
            results.append(Message("tool", _content(block.get("content"))))
        elif kind == "tool_use":
            calls.append(Call(_text(block, "name"), _json(block.get("input") or {})))
        elif kind not in ("thinking", "redacted_thinking"):
            parts.append(_part(block))
    if parts or calls or not results:
        results.append(Message(role, b"".join(parts), tuple(calls)))
    return results


def _content(content: object) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return tokens.encode(content)
    return b"".join(_part(part) for part in _listed(content, "content"))


def _part(part: Body) -> bytes:
    text = part.get("text")
    if isinstance(text, str):
        return tokens.encode(text)
    shown = {field: value for field, value in part.items() if field != "cache_control"}
    digest = tokens.encode(xxh3_64_hexdigest(orjson.dumps(shown)))
    return tokens.MEDIA + digest * ((IMAGE_TOKENS - 1) // tokens.count(digest))


def _role(message: Body) -> str:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadPrompt(f"messages: unknown role {role!r}")
    return role


def _objects(body: Body, field: str, *, missing: tuple[()] | None = None) -> list[Body]:
    value = body.get(field)
    return list(missing) if value is None and missing is not None else _listed(value, field, needed=True)


def _listed(value: object, field: str, *, needed: bool = False) -> list[Body]:
    if value is None and not needed:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadPrompt(f"{field}: a list of objects is needed")
    return value


def _text(body: Body, field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str):
        raise BadPrompt(f"{field}: a text is needed")
    return value


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
