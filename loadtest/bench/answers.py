"""The canned answers of the replicas, byte for byte: what they send, and what a client must get. Pure.

Each answer names its replica, so that a client can tell where its turn went whatever the proxy says.
"""

from typing import Final

import orjson

from loadtest.bench.loads import CHUNKS

_ID: Final = b'{"id":"chatcmpl-r'
_TEXT: Final = b'"content":" '
_STAMP_DIGITS: Final = 16

MARK_BYTES: Final = 2
"""Length of a replica's mark: its number in two digits."""
CHAT_MARK_AT: Final = len(_ID)
"""Where the mark stands in the body of an answer."""
STREAM_MARK_AT: Final = len(b"data: ") + len(_ID)
"""Where the mark stands in the body of a stream."""

_HEAD: Final = b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 21:00:00 GMT\r\nserver: uvicorn\r\n"


def mark(replica: int) -> bytes:
    return b"%02d" % replica


def plain(status: bytes, content_type: bytes, body: bytes) -> bytes:
    """A whole answer with a length."""
    head = _HEAD.replace(b"200 OK", status)
    return b"%bcontent-length: %d\r\ncontent-type: %b\r\n\r\n%b" % (head, len(body), content_type, body)


def chat_body(replica: int) -> bytes:
    usage = {
        "prompt_tokens": 500,
        "total_tokens": 516,
        "completion_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 480},
    }
    message: dict[str, object] = {
        "role": "assistant",
        "content": "The change is made and the tests of the module pass.",
        "refusal": None,
        "annotations": None,
        "tool_calls": [],
    }
    return orjson.dumps(
        {
            "id": f"chatcmpl-r{mark(replica).decode()}-4f1c2b7a9d3e4c05b6a1",
            "object": "chat.completion",
            "created": 1795986000,
            "model": "bench",
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage,
            "prompt_logprobs": None,
            "kv_transfer_params": None,
        }
    )


STREAM_HEAD: Final = (
    _HEAD + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _event(replica: int, rest: bytes) -> bytes:
    return (
        b"data: %b%b-4f1c2b7a9d3e4c05b6a1" % (_ID, mark(replica))
        + b'","object":"chat.completion.chunk","created":1795986000,"model":"bench",'
        + rest
        + b"}\n\n"
    )


def token_event(replica: int, last: bool) -> bytes:
    """The event of one token, with `%016x` where the time of sending goes."""
    reason = b'"stop"' if last else b"null"
    return _event(
        replica,
        b'"choices":[{"index":0,"delta":{%b%%016x"},"logprobs":null,"finish_reason":%b}]' % (_TEXT, reason),
    )


def usage_event(replica: int) -> bytes:
    """What follows the last token of a stream whose request asked for usage."""
    return _event(
        replica,
        b'"choices":[],"usage":{"prompt_tokens":500,"total_tokens":550,"completion_tokens":50,'
        b'"prompt_tokens_details":{"cached_tokens":480}}',
    )


DONE_EVENT: Final = b"data: [DONE]\n\n"


def chunked(event: bytes) -> bytes:
    """An event as one chunk of a body. A template's stamp counts by the length that it will have."""
    grown = _STAMP_DIGITS - len(b"%016x") if b"%016x" in event else 0
    return b"%x\r\n%b\r\n" % (len(event) + grown, event)


LAST_CHUNK: Final = b"0\r\n\r\n"


def stream_bytes() -> int:
    """Length of a stream's body as a client that did not ask for usage must get it."""
    tokens = (CHUNKS - 1) * len(token_event(0, last=False) % 0) + len(token_event(0, last=True) % 0)
    return tokens + len(DONE_EVENT)


def stamps(piece: bytes) -> list[int]:
    """When the token events in a piece of a stream were sent, in ns. A stamp cut in two is left out."""
    found = []
    at = piece.find(_TEXT)
    while at >= 0:
        start = at + len(_TEXT)
        digits = piece[start : start + _STAMP_DIGITS]
        if len(digits) == _STAMP_DIGITS:
            found.append(int(digits, 16))
        at = piece.find(_TEXT, start)
    return found


def metrics_page() -> bytes:
    """A page as long as a real replica's, which a router that scrapes has to read.

    Its KV cache holds 4 million tokens, as that of eight large cards does with a byte a value: half of the
    sessions of the longest load fit, as they have to where sessions are worth keeping together.
    """
    labels = '{engine="0",model_name="bench"}'
    lines = [
        f"vllm:num_requests_running{labels} 4.0",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:kv_cache_usage_perc{labels} 0.31",
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="262144"} 1.0',
        "process_start_time_seconds 1795980000.0",
    ]
    for name in _HISTOGRAMS:
        lines.append(f"# TYPE vllm:{name} histogram")
        lines += [
            f'vllm:{name}_bucket{{engine="0",le="{2.0**power / 1000}",model_name="bench"}} {power * 1000.0}'
            for power in range(24)
        ]
        lines += [f"vllm:{name}_count{labels} 24000.0", f"vllm:{name}_sum{labels} 71234.5"]
    return "\n".join(lines).encode() + b"\n"


_HISTOGRAMS: Final = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "request_max_num_generation_tokens",
)
