"""A whole answer as the stream that its client asked for.

For engines that say only in whole answers what they keep. Knows chat and completions, and no connections.
"""

from typing import Any, Final

import orjson

from router.dataplane.dialects import Dialect

_DONE: Final = b"data: [DONE]\n\n"
_SHARED: Final = ("id", "created", "model", "system_fingerprint", "service_tier")


def restreamed(dialect: Dialect, body: bytes, *, usage: bool) -> bytes:
    """The events of the answer in `body`: its reply in one piece, then the reason for its end. What is no
    answer of the dialect stays as it is. `usage`: the client asked for the event with the usage."""
    try:
        whole: Any = orjson.loads(body)
        [choice] = whole["choices"]
        shared = {name: whole[name] for name in _SHARED if name in whole}
        events = _chat(choice) if dialect is Dialect.CHAT else _completion(choice)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return body
    kind = "chat.completion.chunk" if dialect is Dialect.CHAT else "text_completion"
    envelopes = [{**shared, "object": kind, "choices": [one]} for one in events]
    if usage:
        envelopes.append({**shared, "object": kind, "choices": [], "usage": whole.get("usage")})
    return b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in envelopes) + _DONE


def _chat(choice: Any) -> list[dict[str, Any]]:
    message = choice["message"]
    delta = {name: value for name, value in message.items() if value is not None and value != []}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    delta.setdefault("content", "" if "tool_calls" not in delta else None)
    first = {"index": 0, "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
    last = {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
    }
    return [first, last]


def _completion(choice: Any) -> list[dict[str, Any]]:
    return [
        {
            "index": 0,
            "text": choice["text"],
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice.get("stop_reason"),
        }
    ]
