"""The head of a replica's answer: what of it goes on, and heads that are known line by line.

Knows no connection. What is odd is for the parser and whoever asked it to judge.
"""

import re
from typing import Final

from router.dataplane.head import FEW_DIGITS, is_plain_value

_DROPPED: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
_OURS: Final = b"x-homing-"

_END: Final = b"\r\n\r\n"

# What cannot be taken by its line alone: it frames the answer, or must be looked into.
_JUDGED: Final = frozenset({b"location", b"content-encoding"})

_STATUS: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) [ -~]*")
_BODILESS: Final = (204, 304)

# Replicas send few different lines, but for the date.
_MAX_LINES: Final = 1024
_MAX_NAMES: Final = 1024
_MAX_REMEMBERED: Final = 128
_MAX_HEADERS: Final = 100

_FORWARD: Final = 0
_DROP: Final = 1
_LENGTH: Final = 2
_CHUNKED: Final = 3
_TYPE: Final = 4


class ResponseHead:
    """A replica's response head."""

    __slots__ = ("content_encoding", "content_type", "forward", "length", "size", "status")

    def __init__(
        self,
        status: int,
        forward: list[bytes],
        content_type: bytes,
        content_encoding: bytes,
        length: int | None,
    ) -> None:
        self.status = status
        self.forward = forward
        """`name: value\\r\\n` lines, ready to be sent on."""
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.length = length
        """Content-Length; `None` where the body is chunked or ends with the connection."""
        self.size = 0
        """Its bytes, the empty line at its end included, where it was recognised."""


def is_bodiless(status: int) -> bool:
    """Whether an answer of this status has no body, whatever its head says."""
    return status in _BODILESS


def is_dropped(name: bytes) -> bool:
    """Whether an answer's header, in lower case, ends here: hop-by-hop, or the router's to say."""
    return name in _DROPPED or name.startswith(_OURS)


class _Line:
    """A header line whose meaning does not depend on any other."""

    __slots__ = ("forward", "kind", "value")

    def __init__(self, kind: int, value: bytes, forward: bytes) -> None:
        self.kind = kind
        self.value = value
        self.forward = forward


class AnswerHeads:
    """Recognises the heads of one replica's answers by their lines, as `HeadReader.recognise` does those of
    requests: it answers what the parser would, and `None` where that is for the parser to say."""

    __slots__ = ("_last", "_last_raw", "_lines", "_names", "_statuses")

    def __init__(self) -> None:
        # Streams have no length, so within a second a replica writes the same head again and again.
        self._last_raw = b""
        self._last: tuple[ResponseHead, bool] | None = None
        self._names: set[bytes] = set()
        self._lines: dict[bytes, _Line] = {}
        self._statuses: dict[bytes, int] = {}

    def note(self, name: bytes) -> None:
        """A header that went on, in lower case: a parser has found its name in order."""
        if len(name) <= _MAX_REMEMBERED and name not in _JUDGED:
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names.add(name)

    def recognise(self, data: bytes, limit: int) -> tuple[ResponseHead, bool] | None:
        """The head that `data` begins with, in `limit` bytes, and whether its body is chunked. It has
        either a length or chunks, and says nothing of the connection. Not to be changed: it may be handed out
        again."""
        last = self._last
        if last is not None and data.startswith(self._last_raw) and len(self._last_raw) <= limit:
            return last
        end = data.find(_END, 0, limit)
        if end < 0:
            return None
        lines = data[:end].split(b"\r\n")
        status = self._statuses.get(lines[0], 0) or self._status(lines[0])
        if not status or len(lines) > _MAX_HEADERS:
            return None
        known = self._lines
        forward: list[bytes] = []
        content_type = b""
        length = -1
        chunked = False
        for at in range(1, len(lines)):
            line = known.get(lines[at])
            if line is None:
                line = self._look_at(lines[at])
                if line is None:
                    return None
            kind = line.kind
            if kind == _FORWARD:
                forward.append(line.forward)
            elif kind == _TYPE:
                content_type = line.value
                forward.append(line.forward)
            elif kind == _LENGTH:
                if length >= 0:
                    return None
                length = int(line.value)
            elif kind == _CHUNKED:
                if chunked:
                    return None
                chunked = True
        if chunked == (length >= 0):
            return None  # neither, or both
        head = ResponseHead(status, [b"".join(forward)], content_type, b"", None if chunked else length)
        head.size = end + len(_END)
        self._last_raw = data[: head.size]
        self._last = (head, chunked)
        return self._last

    def _status(self, line: bytes) -> int:
        """The status in a first line; 0 where a parser is to say."""
        match = _STATUS.fullmatch(line)
        if match is None or len(line) > _MAX_REMEMBERED:
            return 0
        status = int(match[1])
        if is_bodiless(status):
            return 0
        if len(self._statuses) >= _MAX_LINES:
            self._statuses.clear()
        self._statuses[line] = status
        return status

    def _look_at(self, sent: bytes) -> _Line | None:
        """What a line says that was not seen before; `None` where a parser is to say."""
        name, colon, value = sent.partition(b": ")
        name = name.lower()
        if not colon or not is_plain_value(value):
            return None
        if name == b"content-length":
            if not value.isdigit() or len(value) > FEW_DIGITS:
                return None
            line = _Line(_LENGTH, value, b"")
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                return None
            line = _Line(_CHUNKED, value, b"")
        elif name == b"x-request-id":
            return _Line(_DROP, value, b"")  # each answer has its own
        elif name not in self._names:
            return None
        else:
            kind = _TYPE if name == b"content-type" else _FORWARD
            line = _Line(kind, value, name + b": " + value + b"\r\n")
        if len(sent) <= _MAX_REMEMBERED:
            if len(self._lines) >= _MAX_LINES:
                self._lines.clear()
            self._lines[sent] = line
        return line
