"""What a request head says, and which of its values are plain."""

import re
from typing import Final

MAX_TENANT: Final = 256
"""Bytes of a tenant's name in a header."""

MAX_DIGITS: Final = 20
"""Of a length. One of more has leading zeros, or is no length that could ever be served."""
FEW_DIGITS: Final = 15
"""Of a length that is read without asking how many there may be: a petabyte."""

_MAX_REQUEST_ID: Final = 128
_REQUEST_ID_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")

_SECONDS: Final = re.compile(rb"[0-9]+(?:\.[0-9]+)?")

_SPACE: Final = ord(" ")


class Head:
    """What a request head says. `forward` holds `name: value\\r\\n` lines, ready to be sent on."""

    __slots__ = (
        "content_type",
        "expects_continue",
        "forward",
        "has_body",
        "key",
        "length",
        "method",
        "path",
        "patience_s",
        "priority",
        "request_id",
        "sessions",
        "size",
        "target",
        "tenant",
        "traceparent",
        "tracestate",
        "version",
    )

    def __init__(self, method: bytes, target: bytes, path: str, version: str) -> None:
        self.method = method
        self.target = target
        """Origin form: path and query, as sent."""
        self.path = path
        self.version = version
        self.size = 0
        """Its bytes, the empty line at its end included, where it was recognised."""
        self.forward: list[bytes] = []
        self.sessions: tuple[tuple[bytes, bytes], ...] = ()
        """Headers that name a session, in the order sent; which one counts is for the policy to say."""
        self.key: bytes | None = None
        """The API key: a bearer token, or `x-api-key`."""
        self.tenant: bytes | None = None
        """The value of the tenant header where one is trusted."""
        self.request_id: bytes | None = None
        self.content_type = b""
        self.has_body = False
        self.length = 0
        """Content-Length; 0 where there is none."""
        self.expects_continue = False
        self.priority: bytes | None = None
        """What the client asks for in `X-Homing-Priority`."""
        self.patience_s: float | None = None
        """For how long the client waits for an answer, as its SDK says; `None` = it does not."""
        self.traceparent: bytes | None = None
        """Where turns are traced: what the client says of its trace. More than one are no good one."""
        self.tracestate = b""


def add_traceparent(head: Head, value: bytes) -> None:
    """Several are kept, and are then no good one."""
    head.traceparent = value if head.traceparent is None else head.traceparent + b"," + value


def add_tracestate(head: Head, value: bytes) -> None:
    """Several are one list."""
    head.tracestate = head.tracestate + b"," + value if head.tracestate else value


def seconds(value: bytes) -> float | None:
    """A time as an SDK writes it; `None` for anything else, which goes on all the same."""
    text = value.strip()
    if len(text) > MAX_DIGITS or _SECONDS.fullmatch(text) is None:
        return None
    return float(text) or None


def is_plain_value(value: bytes) -> bool:
    """Whether every parser takes a header's value for the same: printable ASCII, with nothing to strip."""
    if not value or value[0] == _SPACE or value[-1] == _SPACE or not value.isascii():
        return False
    return value.decode("ascii").isprintable()


def is_plain_id(request_id: bytes) -> bool:
    """Whether a request id can be kept: short, and of letters, digits and a few marks."""
    if not 0 < len(request_id) <= _MAX_REQUEST_ID:
        return False
    # Most are UUIDs or the like, and the first is the quicker look.
    return request_id.replace(b"-", b"").isalnum() or _REQUEST_ID_BYTES.issuperset(request_id)


def listed_in(connection: bytes) -> frozenset[bytes]:
    """Header names that a Connection header declares hop-by-hop, beyond the usual."""
    lowered = connection.lower()
    if lowered in (b"keep-alive", b"close"):
        return frozenset()
    return frozenset(token.strip() for token in lowered.split(b",")) - {b"keep-alive", b"close", b""}
