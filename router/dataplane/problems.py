"""Turns a refusal into the response that the client's own SDK understands. The one place with statuses."""

from http import HTTPStatus
from typing import Final, NamedTuple

import orjson

from router.base.errors import ErrorKind, Refused


class _Shape(NamedTuple):
    status: int
    openai_type: str
    anthropic_type: str


_SHAPES: Final = {
    ErrorKind.BAD_REQUEST: _Shape(400, "invalid_request_error", "invalid_request_error"),
    ErrorKind.UNAUTHORIZED: _Shape(401, "authentication_error", "authentication_error"),
    ErrorKind.NOT_FOUND: _Shape(404, "invalid_request_error", "not_found_error"),
    ErrorKind.NO_SUCH_MODEL: _Shape(404, "invalid_request_error", "not_found_error"),
    ErrorKind.NO_REPLICAS: _Shape(503, "service_unavailable", "overloaded_error"),
    ErrorKind.NONE_HEALTHY: _Shape(503, "service_unavailable", "overloaded_error"),
    ErrorKind.OVERLOADED: _Shape(429, "rate_limit_error", "rate_limit_error"),
    ErrorKind.QUEUE_FULL: _Shape(429, "rate_limit_error", "rate_limit_error"),
    ErrorKind.QUEUE_EXPIRED: _Shape(429, "rate_limit_error", "rate_limit_error"),
    ErrorKind.PINNED_GONE: _Shape(503, "service_unavailable", "overloaded_error"),
    ErrorKind.UPSTREAM_FAILED: _Shape(502, "upstream_error", "api_error"),
    ErrorKind.UPSTREAM_DIED: _Shape(502, "upstream_error", "api_error"),
    ErrorKind.UPSTREAM_TIMEOUT: _Shape(504, "upstream_timeout", "timeout_error"),
    ErrorKind.HELD_BYTES_FULL: _Shape(503, "service_unavailable", "overloaded_error"),
    ErrorKind.SHORTAGE: _Shape(503, "service_unavailable", "overloaded_error"),
    ErrorKind.STOPPING: _Shape(503, "service_unavailable", "overloaded_error"),
    ErrorKind.INTERNAL: _Shape(500, "internal_error", "api_error"),
}

# The OpenAI SDK's own name for it, which clients match on.
_CODES: Final = {ErrorKind.NO_SUCH_MODEL: "model_not_found", ErrorKind.UNAUTHORIZED: "invalid_api_key"}


class HttpRefused(Refused):
    """A refusal whose status is more precise than its kind: 405, 408, 413, 414, 417, 431, 501, 505."""

    def __init__(self, status: int, message: str, *, code: str, allow: str = "") -> None:
        """`allow` names the methods that the resource has, for a 405."""
        super().__init__(ErrorKind.BAD_REQUEST, message)
        self.status = status
        self.code = code
        self.allow = allow


def status_of(refusal: Refused) -> int:
    """The HTTP status that says what the refusal says."""
    return refusal.status if isinstance(refusal, HttpRefused) else _SHAPES[refusal.kind].status


def headers_of(refusal: Refused) -> bytes:
    """What the response says beside its body, as `name: value\\r\\n` lines."""
    lines = b""
    if refusal.retry_after_s is not None:
        lines = b"retry-after: %d\r\n" % max(1, round(refusal.retry_after_s))
    if refusal.kind is ErrorKind.UNAUTHORIZED:
        lines += b"www-authenticate: Bearer\r\n"
    if refusal.kind is ErrorKind.UPSTREAM_DIED:
        # The OpenAI and Anthropic SDKs send a 502 again unasked, unless they are told not to.
        lines += b"x-should-retry: false\r\n"
    if isinstance(refusal, HttpRefused) and refusal.allow:
        lines += b"allow: %b\r\n" % refusal.allow.encode("ascii")
    return lines


def body_of(refusal: Refused, *, anthropic: bool) -> bytes:
    """The JSON body, in the dialect of the endpoint."""
    shape = _SHAPES[refusal.kind]
    if anthropic:
        return orjson.dumps(
            {"type": "error", "error": {"type": shape.anthropic_type, "message": refusal.message}}
        )
    code = refusal.code if isinstance(refusal, HttpRefused) else _CODES.get(refusal.kind, refusal.kind.value)
    return orjson.dumps({"error": {"message": refusal.message, "type": shape.openai_type, "code": code}})


def event_of(refusal: Refused, *, anthropic: bool) -> bytes:
    """The same as a server-sent event, for a stream that has begun."""
    data = body_of(refusal, anthropic=anthropic)
    return (b"event: error\ndata: " if anthropic else b"data: ") + data + b"\n\n"


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK` with its line end. Any three-digit status has one."""
    line = _STATUS_LINES.get(status)
    return line if line is not None else b"HTTP/1.1 %d Unknown\r\n" % status


_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
