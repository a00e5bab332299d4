"""A replica's answer on its way to the client: how it is framed, and what of it has come.

Bytes in, bytes out: knows no connection. Whether an answer may go on, and what follows from its end, is the
exchange's to say.
"""

from typing import Final

from router.dataplane.answer import StreamReader
from router.dataplane.answer_head import ResponseHead, is_bodiless
from router.dataplane.dialects import Dialect, generates

LAST_CHUNK: Final = b"0\r\n\r\n"
"""Ends a body in chunks."""


class Answer:
    """One attempt's answer. A stream passes as it comes, with a reader beside it; a JSON body is gathered,
    since what is cut out of it changes its length; all else passes unread."""

    __slots__ = (
        "accepted",
        "chunked",
        "ends_with_connection",
        "framing",
        "gathered_bytes",
        "head",
        "held",
        "is_strange",
        "pieces",
        "reader",
    )

    def __init__(
        self, head: ResponseHead, dialect: Dialect | None, *, bodiless: bool, chunks: bool, hide_usage: bool
    ) -> None:
        """`bodiless`: the request asked for a head only. `chunks`: the client reads a body in chunks.
        `hide_usage`: the router alone asked for a stream's usage."""
        self.head = head
        has_body = not bodiless and not is_bodiless(head.status)
        succeeded = head.status < 300
        self.is_strange = has_body and succeeded and _is_strange(dialect, head.content_type)
        """The status says yes, and the body is of a type that no engine gives."""
        self.accepted = False
        """Whether the replica has begun to give what was asked for."""
        self.chunked = False
        self.ends_with_connection = False
        """Whether only the connection's end tells the client where the body ends."""
        self.framing = b""
        """Lines for the head; none where they are known only once the body is gathered."""
        self.reader: StreamReader | None = None
        self.pieces: list[bytes] | None = None
        """What is gathered of a body."""
        self.gathered_bytes = 0
        self.held = 0
        """Bytes of them that count against the budget of held bytes."""
        length = head.length
        if has_body and succeeded and not head.content_encoding:
            if head.content_type.startswith(b"text/event-stream"):
                self.reader = StreamReader(dialect, hide_usage=hide_usage)
                length = None
            elif head.content_type.startswith(b"application/json"):
                self.pieces = []
                return
        if length is not None:
            # Of a head alone it says what a GET would have brought; with a 204 it has no meaning.
            if head.status != 204:
                self.framing = b"content-length: %d\r\n" % length
        elif has_body:
            if chunks:
                self.chunked = True
                self.framing = b"transfer-encoding: chunked\r\n"
            else:
                self.ends_with_connection = True

    @property
    def status(self) -> int:
        """Of the answer as a whole: a stream can fail whose head said yes."""
        reader = self.reader
        return self.head.status if reader is None or reader.error is None else reader.error

    def framed(self, piece: bytes) -> bytes:
        """A piece of the body, not empty, as the client is to have it."""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked else piece

    def gather(self, piece: bytes, *, held: bool) -> None:
        """Keep a piece until the body is whole; `held`: it counts against the budget."""
        assert self.pieces is not None
        self.pieces.append(piece)
        self.gathered_bytes += len(piece)
        if held:
            self.held += len(piece)

    def gathered(self) -> bytes:
        """The body, as it came."""
        pieces = self.pieces
        assert pieces is not None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _is_strange(dialect: Dialect | None, content_type: bytes) -> bool:
    """Whether an answer's type is none that the endpoint has: a proxy, a captive portal or a wrong URL says
    200 in HTML. One without a type may be anything."""
    if content_type == b"application/json" or not content_type or not generates(dialect):
        return False
    kind = content_type.lower()
    return b"json" not in kind and not kind.startswith(b"text/event-stream")
