"""What a case says, and the bytes that cases are made of.

`tests/integration/test_strictness.py` plays every case on sockets.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from router.dataplane.limits import Limits

BODY = b'{"model":"m","messages":[]}'
CHAT = b"POST /v1/chat/completions HTTP/1.1"
GET = b"GET /v1/thing HTTP/1.1"
HOST = b"Host: router"

THING = "GET /v1/thing HTTP/1.1"
TURN = "POST /v1/chat/completions HTTP/1.1"

# What a request smuggled past the router would look like: no replica may ever see it.
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: router\r\n\r\n"


class Seen(NamedTuple):
    """One request as the replica must get it."""

    line: str
    body: bytes = b""
    headers: tuple[str, ...] = ()
    """All lines but those that the router adds itself: host, ids, length, and a JSON content type."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a client sends and what it gets."""

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    """Of the answers, in order."""
    closed: bool
    """Whether the router closes the connection after the last answer; else it serves another request."""
    seen: tuple[Seen, ...] = ()
    """What reaches the replica; nothing where the request is refused."""
    limits: Limits = field(default_factory=Limits)
    refuse_reserved: bool = False
    drip: bool = False
    """Sent one byte at a time."""
    half_close: bool = False
    """The client closes its sending side after the last byte."""
    head_only: bool = False
    """The answer to a HEAD request: it has no body, whatever its head says."""
    interim: bool = False
    """An interim `100 Continue` precedes the answer."""


class Then(Enum):
    """What a replica does after its answer."""

    STAY = "stays"
    CLOSE = "closes"
    RESET = "resets"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What a replica answers and what its client gets."""

    name: str
    answer: bytes
    then: Then = Then.STAY
    asked: bytes = b""
    """The request; empty = a chat that is not streamed."""
    status: int = 502
    body: bytes | None = None
    """What the client gets of the body; `None` = the router's own error, which names the replica."""
    error_event: bool = False
    """The body is followed by an error event."""
    whole: bool = True
    """Whether the client can tell that the body is complete; else the connection ends in the middle."""
    reused: bool = False
    """Whether the connection to the replica serves the next turn."""
    has: tuple[str, ...] = ()
    """Header lines that reach the client."""
    lacks: tuple[str, ...] = ()
    """Header names that do not."""
    at_head: bool = False
    """The replica answers when it has the request's head, and reads no further."""


def head(*lines: bytes, start: bytes = CHAT, host: bytes = HOST) -> bytes:
    """A request head."""
    return b"\r\n".join((start, *([host] if host else ()), *lines, b"", b""))


def sized(*lines: bytes, body: bytes = BODY, start: bytes = CHAT) -> bytes:
    """A request with these lines and a body of the length said."""
    return head(*lines, b"Content-Length: %d" % len(body), start=start) + body


def chunks(data: bytes, *lines: bytes, start: bytes = CHAT) -> bytes:
    """A request whose chunked body is `data`, framing included."""
    return head(*lines, b"Transfer-Encoding: chunked", start=start) + data


ONE = b"%x\r\n%b\r\n" % (len(BODY), BODY)
LAST = b"0\r\n\r\n"

OK = b'{"id":"x","object":"chat.completion","choices":[]}'
OK_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(OK),
    OK,
)
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def answer(*lines: bytes, body: bytes = b"", status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    """A replica's answer with these header lines."""
    return b"\r\n".join((status, *lines, b"", body))


def events(data: bytes) -> bytes:
    """A stream's head and the chunks `data`, framing included."""
    return answer(b"content-type: text/event-stream", b"transfer-encoding: chunked", body=data)


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)
