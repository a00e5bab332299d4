"""What of a replica's answer goes to the client, and what is learned from it on the way.

Bytes in, bytes out: knows events and bodies, but no connection and no HTTP. Almost everything passes
untouched. Cut out are `kv_transfer_params` and, where the router alone asked for it, the usage of a stream.
"""

import re
import sys
from typing import Final

from msgspec import UNSET

from router.base.common import common_length
from router.core.observe import Usage
from router.dataplane.answer_facts import (
    INTERNAL_BYTES,
    answer_of,
    counted,
    error_of,
    facts_of,
    is_empty_list,
    is_null,
    text_of,
    usage_of,
    without_internal,
)
from router.dataplane.answer_long import LongEvent
from router.dataplane.dialects import Dialect
from router.dataplane.schemas import Facts

HELD: Final = 65_536
"""Bytes of an event at most that are held until it is complete. A longer one goes out as it comes: then
`kv_transfer_params` is not cut but becomes null."""

# An event ends with an empty line. Each of \n\n, \r\n\r\n, \r\r and their mixtures ends in one of these, so
# the end is found at the same byte however the stream is cut up.
_EMPTY_LINE: Final = re.compile(rb"\n\r?\n|\r\r")
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_BOUNDARIES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")

_ENDS: Final = frozenset(("response.completed", "response.failed", "response.incomplete"))
_FAILURES: Final = frozenset(("response.failed", "error"))
_BEFORE_CONTENT: Final = frozenset(("response.created", "response.queued", "response.in_progress", "error"))

# An event without any of these tells nothing and hides nothing. Short lists: every look costs as much as
# all else that is done with a piece. (`find`, as `in` tries whether they are numbers first.)
_MARKERS: Final[dict[Dialect, tuple[bytes, ...]]] = {
    Dialect.MESSAGES: (INTERNAL_BYTES, b'"message_', b'"error"'),  # start, delta and stop have all the usage
    # So have the events that hold the whole response.
    Dialect.RESPONSES: (INTERNAL_BYTES, b'"response":', b'"error"'),
}
_OPENAI_MARKERS: Final[tuple[bytes, ...]] = (INTERNAL_BYTES, b'"usage"', b"[DONE]", b'"error"')

_QUOTE: Final = ord('"')
_RETURN: Final = ord("\r")
_NEWLINE: Final = ord("\n")

_SHAPES: Final = 32
"""How often a stream is asked for a shape that its events share."""


class StreamReader:
    """Reads one stream of server-sent events as its pieces pass.

    However the stream is cut into pieces, the bytes that come out are the same in total, and so is what is
    learned. A complete event is never held back.
    """

    __slots__ = (
        "_before",
        "_buffer",
        "_dialect",
        "_foot",
        "_head",
        "_hide_usage",
        "_least",
        "_long",
        "_looked",
        "_markers",
        "_open",
        "_shapes",
        "_tail",
        "_torn",
        "error",
        "finished",
        "offer",
        "response_id",
        "saw_content",
        "usage",
    )

    def __init__(self, dialect: Dialect | None, *, hide_usage: bool) -> None:
        """`hide_usage`: drop the event that carries nothing but the usage of a chat or completions stream.

        `dialect` is `None` where it is not known how the reply looks and how it ends: every piece counts as
        some of it, and any end as its end."""
        self._dialect = dialect
        self._hide_usage = hide_usage
        self._markers = _OPENAI_MARKERS if dialect is None else _MARKERS.get(dialect, _OPENAI_MARKERS)
        self._buffer = bytearray()
        self._looked = 0
        self._long: LongEvent | None = None
        self._tail = b""
        self._open = False
        self._torn = False
        # What the events of this stream have before and after the piece of text in each; no piece is as long
        # as both until they are known.
        self._head = self._foot = b""
        self._least = sys.maxsize
        self._before = b""
        self._shapes = _SHAPES
        self.usage: Usage | None = None
        """As last reported; `None` if never."""
        self.finished = dialect is None
        """The end that the dialect prescribes was there: without it, the stream was cut."""
        self.error: int | None = None
        """The status that an error event stands for; `None` while none has passed."""
        self.response_id: str | None = None
        """Of the stored response (Responses only)."""
        self.offer: bytes | None = None
        """What the replica says of KV that it keeps for another one; `None` while it has said nothing."""
        self.saw_content = dialect is None
        """An event with a piece of the reply has passed."""

    def passes(self, data: bytes, start: int, end: int) -> bool:
        """Whether the piece `data[start:end]` may go to the client as it is, and tells nothing: then it need
        not be fed."""
        # Nearly all events of a stream differ in nothing but a text. Without a quote in what differs, there
        # is no member that has not been seen to be harmless.
        head, foot = self._head, self._foot
        begin, behind = start + len(head), end - len(foot)
        return (
            not self._open
            and self.saw_content
            and end - start >= self._least
            and data[start:begin] == head
            and data[behind:end] == foot
            and _QUOTE not in data[begin:behind]
        )

    def feed(self, piece: bytes) -> bytes:
        """What may go to the client after `piece`, perhaps nothing."""
        if self.passes(piece, 0, len(piece)):
            return piece
        if self._open or not piece.endswith(_BOUNDARIES):
            return self._feed(piece)
        if self.saw_content and not self._tells(piece):
            if self._shapes:
                self._learn_shape(piece)
            return piece
        # Nearly all pieces are one event each.
        return self._event(piece) if _is_one_event(piece) else self._feed(piece)

    def end(self) -> bytes:
        """What was still held when the stream ended: an event without its end."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._looked = 0
        self._open = False
        if self._long is not None:
            return self._end_long(self._long, rest)
        return self._event(rest) if rest else b""

    def break_off(self) -> bytes:
        """What must go out before an event of the router's own: the end of a long event that is on its way.
        What is still held is dropped."""
        self._buffer.clear()
        self._looked = 0
        self._open = False
        self._long = None
        return b"\n\n" if self._torn else b""

    def _feed(self, piece: bytes) -> bytes:
        buffer = self._buffer
        buffer += piece
        out: list[bytes] = []
        start, looked = 0, self._looked
        if self._long is not None:
            end = _EMPTY_LINE.search(self._tail + buffer)
            if end is None:
                out.append(self._long.feed(bytes(buffer)))
                self._tail = (self._tail + buffer)[-2:]
                buffer.clear()
                return out[0]
            start = looked = end.end() - len(self._tail)
            out.append(self._end_long(self._long, bytes(buffer[:start])))
            self._torn = False
        while True:
            if looked == start:
                # Line ends before an event belong to none.
                blank = _LINE_ENDS.match(buffer, start)
                assert blank is not None
                if blank.end() > start:
                    out.append(blank[0])
                    start = looked = blank.end()
            end = _EMPTY_LINE.search(buffer, max(start, looked - 2))
            if end is None:
                break
            event = bytes(buffer[start : end.end()])
            out.append(self._event(event) if len(event) <= HELD else self._end_long(LongEvent(), event))
            start = looked = end.end()
        looked = len(buffer)
        if looked - start > HELD:
            self._long = LongEvent()
            self._torn = True
            self._tail = bytes(buffer[-2:])
            out.append(self._long.feed(bytes(buffer[start:])))
            start = looked
        del buffer[:start]
        self._looked = looked - start
        self._open = bool(buffer) or self._long is not None
        return b"".join(out)

    def _tells(self, events: bytes) -> bool:
        """Whether something in them may be to be noted, or hidden."""
        return any(events.find(marker) >= 0 for marker in self._markers)

    def _learn_shape(self, piece: bytes) -> None:
        """See whether this harmless piece and the one before, if any, differ in no more than a text."""
        before, self._before = self._before, piece
        if not before:
            return
        self._shapes -= 1
        head = piece[: common_length(before, piece)]
        head = head[: head.rfind(b':"') + 2]
        backwards = piece[: len(head) - 1 : -1]
        foot = backwards[: common_length(before[: len(head) - 1 : -1], backwards)][::-1]
        foot = foot[foot.find(b'"') :]
        known = head.endswith(b':"') and foot.startswith(b'"')
        if known and piece.find(b'"', len(head), len(piece) - len(foot)) < 0:
            self._head, self._foot, self._least = head, foot, len(head) + len(foot)

    def _event(self, event: bytes) -> bytes:
        """What of a whole event goes out."""
        if self.saw_content and not self._tells(event):
            return event
        lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
        text = b"\n".join(lines)
        if text == b"[DONE]":
            self.finished = self.finished or self._dialect not in _MARKERS
            return event
        facts = facts_of(text)
        if facts is not None and self._learn(facts):
            return b""
        if INTERNAL_BYTES not in event:
            return event
        if facts is not None and len(lines) == 1:
            return event.replace(text, without_internal(text), 1)
        return LongEvent().feed(event, last=True)

    def _learn(self, facts: Facts) -> bool:
        """Take note of an event. The answer is whether it is to be dropped."""
        if facts.error is not UNSET:
            self.error = error_of(facts.error) or self.error
        if facts.kv_transfer_params is not UNSET and not is_null(facts.kv_transfer_params):
            self.offer = bytes(facts.kv_transfer_params)
        if self._dialect is Dialect.MESSAGES:
            self._learn_messages(facts)
        elif self._dialect is Dialect.RESPONSES:
            self._learn_responses(facts)
        else:
            known = self.usage
            self.usage = usage_of(facts.usage, known)
            if facts.choices is not UNSET and not is_empty_list(facts.choices):
                self.saw_content = True
            elif self._hide_usage and facts.choices is not UNSET:
                return self.usage is not known
        return False

    def _learn_messages(self, facts: Facts) -> None:
        kind = text_of(facts.type) or ""
        if kind == "message_start":
            started = facts_of(facts.message)
            if started is not None:
                self.usage = usage_of(started.usage, self.usage)
        elif kind == "message_delta":
            self.usage = usage_of(facts.usage, self.usage)
        elif kind == "message_stop":
            self.finished = True
        elif kind.startswith("content_block"):
            self.saw_content = True

    def _learn_responses(self, facts: Facts) -> None:
        kind = text_of(facts.type) or ""
        response = facts_of(facts.response)
        if response is not None:
            self.response_id = self.response_id or text_of(response.id)
            self.usage = usage_of(response.usage, self.usage)
            self.error = error_of(response.error) or self.error
        if kind in _FAILURES:
            self.error = self.error or 500
        if kind in _ENDS:
            self.finished = True
        elif kind and kind not in _BEFORE_CONTENT:
            self.saw_content = True

    def _end_long(self, event: LongEvent, rest: bytes) -> bytes:
        """Let the last of a long event through, and take note of what it told."""
        out = event.feed(rest, last=True)
        self._long = None
        self._tail = b""
        if event.usage is not None:
            self.usage = event.usage
        if self._dialect is Dialect.RESPONSES:
            self.response_id = self.response_id or event.response_id
            self.finished = self.finished or event.ended
        else:
            self.saw_content = True
        return out


def _is_one_event(piece: bytes) -> bool:
    """Whether these are the lines of one event and the empty line behind it, which is all that is plain."""
    size = len(piece)
    return (
        2 < size <= HELD and piece.find(b"\n\n") == size - 2 and _RETURN not in piece and piece[0] != _NEWLINE
    )


def read_body(dialect: Dialect | None, body: bytes) -> tuple[bytes, Usage | None, str | None]:
    """Read an answer that is not streamed: what of it is for the client, its usage, and the id of the stored
    response (Responses only). What is no JSON object stays as it is and tells nothing."""
    # vLLM writes the members into every answer, and null means that there is nothing in it to hide.
    internal = body.count(INTERNAL_BYTES)
    answer = answer_of(body)
    if answer is not None:
        harmless = (answer.kv_transfer_params is None) + (answer.ec_transfer_params is None)
        usage = counted(answer.usage) if answer.usage is not None else None
        response_id = text_of(answer.id) if dialect is Dialect.RESPONSES else None
    else:
        facts = facts_of(body)
        if facts is None:
            return body, None, None
        harmless = is_null(facts.kv_transfer_params) + is_null(facts.ec_transfer_params)
        usage = usage_of(facts.usage)
        response_id = text_of(facts.id) if dialect is Dialect.RESPONSES else None
    return without_internal(body) if internal != harmless else body, usage, response_id
