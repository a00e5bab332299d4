"""An event too long to hold, let through as it comes: what is internal blanked, what it tells noted.

Nothing is parsed and little is held. The few members that matter are found by their text: within a JSON
string every quote has a backslash before it, so what a model wrote cannot be taken for a member. An
internal member is blanked (its value becomes null) wherever it stands, as the place in the tree is not
known here, and because the comma before it is on its way already.
"""

import re
from typing import Final

from router.core.observe import Usage
from router.dataplane.answer_facts import INTERNAL_BYTES, usage_of

# What is looked for. An id counts where it opens the stored response, as replicas write it.
_LOOK: Final = re.compile(
    rb"""
    "(?: (?P<internal>(?:kv|ec)%b)"\s?:
      |  (?P<usage>usage)"\s?:
      |  (?P<end>type)"\s?:\s?"response\.(?:completed|failed|incomplete)"
      |  response"\s?:\s?\{\s?"id"\s?:\s?"(?P<id>[^"\\]{1,128})"
    )"""
    % INTERNAL_BYTES,
    re.VERBOSE,
)
_LONGEST: Final = 192
"""No match of `_LOOK` is longer, in bytes; so many are held back at the end of a piece."""

_NOTED: Final = 4096
"""A usage object of more bytes is not read."""

_PLAIN: Final = re.compile(rb'[^"\\{}\[\], \t\r\n]*')
_NEXT_QUOTE: Final = re.compile(rb'[^"\\]*')
_NEXT_SIGN: Final = re.compile(rb'[^"{}\[\]]*')


class _Value:
    """The way through one JSON value that comes in pieces. Expects well-formed JSON."""

    __slots__ = ("_depth", "_escaped", "_in_string", "_scalar", "over")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar = False
        self.over = False

    def take(self, data: bytes, at: int) -> int:
        """Go on from `at`; the answer is where the value ends, or the length of `data`."""
        size = len(data)
        while at < size:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                    at += 1
                    continue
                match = _NEXT_QUOTE.match(data, at)
                assert match is not None
                at = match.end()
                if at < size:
                    self._escaped = data[at] == 0x5C
                    self._in_string = self._escaped
                    at += 1
                    if not self._in_string and not self._depth:
                        self.over = True
                        return at
            elif self._scalar:
                match = _PLAIN.match(data, at)
                assert match is not None
                at = match.end()
                if at < size:
                    self.over = True
                    return at
            elif self._depth:
                match = _NEXT_SIGN.match(data, at)
                assert match is not None
                at = match.end()
                if at < size:
                    sign = data[at : at + 1]
                    at += 1
                    if sign == b'"':
                        self._in_string = True
                    else:
                        self._depth += 1 if sign in b"{[" else -1
                        if not self._depth:
                            self.over = True
                            return at
            else:
                sign = data[at : at + 1]
                if sign in b" \t\r\n":
                    at += 1
                elif sign == b'"':
                    self._in_string = True
                    at += 1
                elif sign in b"{[":
                    self._depth = 1
                    at += 1
                else:
                    self._scalar = True
        return at


class LongEvent:
    """One event, from its first byte to the end of its last line."""

    __slots__ = ("_backslashes", "_held", "_noted", "_value", "ended", "response_id", "usage")

    def __init__(self) -> None:
        self._held = b""
        self._backslashes = 0
        self._value: _Value | None = None
        self._noted: bytearray | None = None
        self.usage: Usage | None = None
        self.response_id: str | None = None
        self.ended = False
        """It says that the response is over."""

    def feed(self, piece: bytes, *, last: bool = False) -> bytes:
        """What may go out. `last`: nothing follows, so nothing is held back."""
        data = self._held + piece
        self._held = b""
        out: list[bytes] = []
        at = 0
        while at < len(data):
            if self._value is not None:
                end = self._value.take(data, at)
                if self._noted is not None:
                    out.append(data[at:end])
                    self._noted += data[at:end][: _NOTED + 1 - len(self._noted)]
                at = end
                if self._value.over:
                    self._note()
                continue
            match = _LOOK.search(data, at)
            safe = len(data) if last else max(at, len(data) - _LONGEST)
            if match is None or match.start() >= safe:
                out.append(data[at:safe])
                self._count_backslashes(data[at:safe])
                self._held = data[safe:]
                break
            before = data[at : match.start()]
            out.append(before)
            self._count_backslashes(before)
            at = match.start() + 1
            out.append(b'"')
            if self._backslashes % 2 == 0:
                at = match.end()
                out.append(data[match.start() + 1 : at])
                self._found(match)
                if match["internal"]:
                    out.append(b"null")
            self._backslashes = 0
        return b"".join(out)

    def _found(self, match: re.Match[bytes]) -> None:
        if match["internal"]:
            self._value = _Value()
        elif match["usage"]:
            self._value = _Value()
            self._noted = bytearray()
        elif match["end"]:
            self.ended = True
        elif self.response_id is None:
            self.response_id = match["id"].decode("utf-8", "replace")

    def _note(self) -> None:
        """A value that was looked into is over."""
        self._value = None
        if self._noted is not None:
            if len(self._noted) <= _NOTED:
                self.usage = usage_of(bytes(self._noted), self.usage)
            self._noted = None

    def _count_backslashes(self, passed: bytes) -> None:
        """Keep how many backslashes the bytes that went out end with."""
        run = len(passed) - len(passed.rstrip(b"\\"))
        self._backslashes = self._backslashes + run if run == len(passed) else run
