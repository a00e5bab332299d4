"""Replies as vLLM puts them on the wire: whole JSON objects and server-sent events, for each dialect.

Bytes that do not change from token to token are made once a stream. Knows nothing of connections.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import orjson

from router.simulator.replies import Reply
from router.simulator.tokens import to_ids

_DONE: Final = b"data: [DONE]\n\n"


class Facts(NamedTuple):
    """What all renderings of one answer say."""

    id: str
    model: str
    created: int
    """Unix seconds."""
    prompt_tokens: int
    reply: Reply
    prompt_ids: list[int] | None = None
    """Where the request asked for token ids."""
    offer: dict[str, Any] | None = None
    """Of the blocks that are kept, for whoever fetches them; whole answers tell of it."""
    streams_offer: bool = False
    """Whether streams tell of it too, in the chunk with the reason for the end."""

    @property
    def reply_ids(self) -> list[int] | None:
        """Of the reply, where the request asked for token ids."""
        return to_ids(self.reply.tokens) if self.prompt_ids is not None else None

    @property
    def call_id(self) -> str:
        return f"chatcmpl-tool-{self.id.rpartition('-')[2]}"


class Wire(Protocol):
    """One answer in one dialect. `cached` is the number of prompt tokens that were cached."""

    def whole(self, cached: int) -> dict[str, Any]:
        """The answer in one piece."""
        ...

    def start(self) -> Iterator[bytes]:
        """Events ahead of the first token, sent when it is out."""
        ...

    def token(self, at: int) -> bytes:
        """The event of token `at`, `b""` for one that shows nothing."""
        ...

    def end(self, cached: int) -> Iterator[bytes]:
        """Events after the last token."""
        ...


def _usage(facts: Facts, cached: int | None, made: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": facts.prompt_tokens,
        "total_tokens": facts.prompt_tokens + made,
        "completion_tokens": made,
    }
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


def _data(event: object) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _event(name: str, event: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + _data(event)


def _around(event: bytes) -> tuple[bytes, bytes]:
    """An event made with the text `@` as what goes before and after a JSON string."""
    before, _, after = event.partition(b'"@"')
    return before, after


class Chat:
    """`/v1/chat/completions`."""

    def __init__(self, facts: Facts, *, usage: bool = False, continuous: bool = False) -> None:
        """`usage` sends the chunk with the usage at the end; `continuous` puts it into every chunk."""
        self._facts = facts
        self._with_usage = usage
        self._continuous = usage and continuous
        self._last = len(facts.reply.pieces) - 1
        delta: dict[str, Any] = {"content": "@"}
        if facts.reply.call is not None:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": "@"}}]}
        self._before, self._after = _around(_data(self._chunk(delta)))

    def whole(self, cached: int) -> dict[str, Any]:
        facts, reply = self._facts, self._facts.reply
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text,
            "refusal": None,
            "tool_calls": [],
        }
        if reply.call is not None:
            function = {"name": reply.call.name, "arguments": reply.text}
            message["content"] = None
            message["tool_calls"] = [{"id": facts.call_id, "type": "function", "function": function}]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": reply.finish,
            "stop_reason": None,
            "token_ids": facts.reply_ids,
        }
        return {
            "id": facts.id,
            "object": "chat.completion",
            "created": facts.created,
            "model": facts.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(facts, cached, len(reply.pieces)),
            "prompt_logprobs": None,
            "prompt_token_ids": facts.prompt_ids,
            "kv_transfer_params": facts.offer,
        }

    def start(self) -> Iterator[bytes]:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        yield _data(self._envelope([choice], 0) | {"prompt_token_ids": None})

    def token(self, at: int) -> bytes:
        reply = self._facts.reply
        piece = reply.pieces[at]
        if at == self._last:
            return _data(self._chunk(self._delta(piece), at + 1, finish=reply.finish))
        if reply.call is not None and at == reply.named_at:
            function = {"name": reply.call.name, "arguments": ""}
            call = {"id": self._facts.call_id, "type": "function", "index": 0, "function": function}
            return _data(self._chunk({"tool_calls": [call]}, at + 1))
        if not piece:
            return b""
        if self._continuous:
            return _data(self._chunk(self._delta(piece), at + 1))
        return self._before + orjson.dumps(piece) + self._after

    def end(self, cached: int) -> Iterator[bytes]:
        if self._with_usage:
            event = self._envelope([], None)
            event["usage"] = _usage(self._facts, cached, self._last + 1)
            yield _data(event)
        yield _DONE

    def _delta(self, piece: str) -> dict[str, Any]:
        if self._facts.reply.call is None or not piece:
            return {"content": piece}
        return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}

    def _chunk(self, delta: object, made: int = 0, *, finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        if finish is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        event = self._envelope([choice], made)
        if finish is not None and self._facts.streams_offer:
            event["kv_transfer_params"] = self._facts.offer
        return event

    def _envelope(self, choices: list[Any], made: int | None) -> dict[str, Any]:
        facts = self._facts
        event: dict[str, Any] = {
            "id": facts.id,
            "object": "chat.completion.chunk",
            "created": facts.created,
            "model": facts.model,
            "choices": choices,
        }
        if self._continuous and made is not None:
            event["usage"] = _usage(facts, None, made)
        return event


class Completion:
    """`/v1/completions`."""

    def __init__(self, facts: Facts, *, usage: bool = False) -> None:
        self._facts = facts
        self._with_usage = usage
        self._last = len(facts.reply.pieces) - 1
        self._before, self._after = _around(_data(self._chunk("@", None)))

    def whole(self, cached: int) -> dict[str, Any]:
        facts, reply = self._facts, self._facts.reply
        choice = {
            "index": 0,
            "text": reply.text,
            "logprobs": None,
            "finish_reason": reply.finish,
            "stop_reason": None,
            "token_ids": facts.reply_ids,
            "prompt_logprobs": None,
            "prompt_token_ids": facts.prompt_ids,
        }
        return {
            "id": facts.id,
            "object": "text_completion",
            "created": facts.created,
            "model": facts.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(facts, cached, len(reply.pieces)),
            "kv_transfer_params": facts.offer,
        }

    def start(self) -> Iterator[bytes]:
        return iter(())

    def token(self, at: int) -> bytes:
        piece = self._facts.reply.pieces[at]
        if at == self._last:
            return _data(self._chunk(piece, self._facts.reply.finish))
        return self._before + orjson.dumps(piece) + self._after

    def end(self, cached: int) -> Iterator[bytes]:
        if self._with_usage:
            usage = _usage(self._facts, cached, self._last + 1)
            yield _data(self._envelope([]) | {"usage": usage})
        yield _DONE

    def _chunk(self, text: str, finish: str | None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        event = self._envelope([choice]) | {"usage": None}
        if finish is not None and self._facts.streams_offer:
            event["kv_transfer_params"] = self._facts.offer
        return event

    def _envelope(self, choices: list[Any]) -> dict[str, Any]:
        facts = self._facts
        return {
            "id": facts.id,
            "object": "text_completion",
            "created": facts.created,
            "model": facts.model,
            "choices": choices,
        }


class Messages:
    """`/v1/messages`, Anthropic's dialect."""

    _STOP: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        delta = {"type": "text_delta", "text": "@"}
        if facts.reply.call is not None:
            delta = {"type": "input_json_delta", "partial_json": "@"}
        event = {"type": "content_block_delta", "delta": delta, "index": 0}
        self._before, self._after = _around(_event("content_block_delta", event))

    def whole(self, cached: int) -> dict[str, Any]:
        facts, reply = self._facts, self._facts.reply
        block: dict[str, Any] = {"type": "text", "text": reply.text}
        if reply.call is not None:
            # Half a tool call is no JSON: where the reply was cut, the arguments stay empty.
            arguments = orjson.loads(reply.text) if reply.finish == "tool_calls" else {}
            block = {"type": "tool_use", "id": facts.call_id, "name": reply.call.name, "input": arguments}
        return {
            "id": facts.id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "model": facts.model,
            "stop_reason": self._STOP[reply.finish],
            "stop_sequence": None,
            "usage": self._usage(cached, len(reply.pieces)),
            "kv_transfer_params": facts.offer,
        }

    def start(self) -> Iterator[bytes]:
        facts = self._facts
        message: dict[str, Any] = {
            "id": facts.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": facts.model,
            "stop_reason": None,
            "stop_sequence": None,
            # vLLM knows the prompt's length at this point, and what was cached only at the end.
            "usage": {"input_tokens": facts.prompt_tokens, "output_tokens": 0},
        }
        yield _event("message_start", {"type": "message_start", "message": message})
        if facts.reply.call is None:
            yield self._open({"type": "text", "text": ""})

    def token(self, at: int) -> bytes:
        reply = self._facts.reply
        if reply.call is not None and at == reply.named_at:
            return self._open(
                {"type": "tool_use", "id": self._facts.call_id, "name": reply.call.name, "input": {}}
            )
        piece = reply.pieces[at]
        return self._before + orjson.dumps(piece) + self._after if piece else b""

    def end(self, cached: int) -> Iterator[bytes]:
        reply = self._facts.reply
        made = len(reply.pieces)
        if reply.call is None or made > reply.named_at:
            yield _event("content_block_stop", {"type": "content_block_stop", "index": 0})
        delta = {"stop_reason": self._STOP[reply.finish], "stop_sequence": None}
        event = {"type": "message_delta", "delta": delta, "usage": self._usage(cached, made)}
        yield _event("message_delta", event)
        yield _event("message_stop", {"type": "message_stop"})

    def _open(self, block: dict[str, Any]) -> bytes:
        event = {"type": "content_block_start", "content_block": block, "index": 0}
        return _event("content_block_start", event)

    def _usage(self, cached: int, made: int) -> dict[str, int]:
        # In this dialect the cached tokens are not part of `input_tokens`.
        return {
            "input_tokens": self._facts.prompt_tokens - cached,
            "output_tokens": made,
            "cache_read_input_tokens": cached,
        }


class Responses:
    """`/v1/responses`. The events end without `[DONE]`."""

    def __init__(self, facts: Facts, *, previous: str | None = None, store: bool = True) -> None:
        self._facts = facts
        self._previous = previous
        self._store = store
        self._sequence = 0
        suffix = facts.id.partition("_")[2]
        self._item = f"fc_{suffix}" if facts.reply.call is not None else f"msg_{suffix}"

    def snapshot(self, status: str, cached: int | None = None) -> dict[str, Any]:
        """The response as it is stored and returned; output and usage only once there is `cached`."""
        facts = self._facts
        return {
            "id": facts.id,
            "created_at": facts.created,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": None,
            "model": facts.model,
            "object": "response",
            "output": [] if cached is None else [self._output("completed")],
            "parallel_tool_calls": True,
            "previous_response_id": self._previous,
            "status": status,
            "store": self._store,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if cached is None else self._usage(cached),
        }

    def whole(self, cached: int) -> dict[str, Any]:
        return self.snapshot(self._status, cached) | {"kv_transfer_params": self._facts.offer}

    def start(self) -> Iterator[bytes]:
        for name in ("response.created", "response.in_progress"):
            yield self._send(name, response=self.snapshot("in_progress"))
        item = self._output("in_progress", text="")
        yield self._send("response.output_item.added", item=item, output_index=0)
        if self._facts.reply.call is None:
            yield self._send("response.content_part.added", **self._place, part=_text_part(""))

    def token(self, at: int) -> bytes:
        reply = self._facts.reply
        if not reply.pieces[at]:
            return b""
        if reply.call is not None:
            name = "response.function_call_arguments.delta"
            return self._send(name, delta=reply.pieces[at], item_id=self._item, output_index=0)
        return self._send("response.output_text.delta", **self._place, delta=reply.pieces[at], logprobs=[])

    def end(self, cached: int) -> Iterator[bytes]:
        text = self._facts.reply.text
        if self._facts.reply.call is None:
            yield self._send("response.output_text.done", **self._place, logprobs=[], text=text)
            yield self._send("response.content_part.done", **self._place, part=_text_part(text))
        else:
            name = self._facts.reply.call.name
            yield self._send(
                "response.function_call_arguments.done",
                arguments=text,
                item_id=self._item,
                name=name,
                output_index=0,
            )
        yield self._send("response.output_item.done", item=self._output("completed"), output_index=0)
        yield self._send(f"response.{self._status}", response=self.whole(cached))

    @property
    def _status(self) -> str:
        return "incomplete" if self._facts.reply.finish == "length" else "completed"

    @property
    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item, "output_index": 0}

    def _output(self, status: str, *, text: str | None = None) -> dict[str, Any]:
        reply = self._facts.reply
        said = reply.text if text is None else text
        if reply.call is not None:
            return {
                "type": "function_call",
                "id": self._item,
                "call_id": self._facts.call_id,
                "name": reply.call.name,
                "arguments": said,
                "status": status,
            }
        content = [_text_part(said)] if status == "completed" else []
        return {
            "id": self._item,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
        }

    def _usage(self, cached: int) -> dict[str, Any]:
        made = len(self._facts.reply.pieces)
        return {
            "input_tokens": self._facts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._facts.prompt_tokens + made,
        }

    def _send(self, kind: str, **fields: Any) -> bytes:
        event = _event(kind, fields | {"sequence_number": self._sequence, "type": kind})
        self._sequence += 1
        return event


def _text_part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}
