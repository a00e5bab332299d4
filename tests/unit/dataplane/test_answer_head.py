"""Answers that go past the parser tell what the parser would tell."""

import socket
from errno import EBADF
from typing import Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.build import kind_of_build
from router.dataplane.answer_head import AnswerHeads, ResponseHead
from router.dataplane.outbox import Outbox
from router.dataplane.pool import Pool
from router.dataplane.upstream import Receiver, UpstreamConnection

if kind_of_build() == "compiled":
    pytest.skip("puts interpreted classes in the place of compiled ones", allow_module_level=True)

PLAIN = [b"date: now", b"server: uvicorn", b"Content-Type: text/event-stream", b"x-request-id: 1"]
ODD = [
    b"connection: close",
    b"connection: keep-alive",
    b"connection: server",
    b"content-length: 5",
    b"content-length: 05",
    b"content-length: +5",
    b"transfer-encoding: gzip",
    b"transfer-encoding: Chunked",
    b"content-encoding: gzip",
    b"location: http://r0:8000/x",
    b"server:uvicorn",
    b"server: a\tb",
    b"x-homing-decision: mine",
    b"x-new: 1",
    b"bad name: 1",
]
STARTS = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 404 Not Found",
    b"HTTP/1.1 200",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 600 Odd",
]
CHUNKS = [
    b"5\r\nhello\r\n",
    b"1\r\n\n\r\n",
    b"A\r\n0123456789\r\n",
    b"3;x=y\r\nabc\r\n",
    b"03\r\nabc\r\n",
    b"0x3\r\nabc\r\n",
    b"+3\r\nabc\r\n",
    b"3\r\nabcd\r\n",
    b"3\nabc\n",
    b"fffffffff\r\n",
]
ENDS = [b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"00\r\n\r\n", b"0\r\n\r\nHTTP/1.1 200 OK\r\n", b""]


class FakePool:
    """As much of a pool as a connection asks for."""

    def __init__(self) -> None:
        self.answer_heads = AnswerHeads()
        self.outbox = Outbox()
        self.kept = 0

    def put(self, _connection: UpstreamConnection) -> None:
        self.kept += 1

    def lost(self, _connection: UpstreamConnection) -> None: ...

    def local_location(self, location: bytes) -> bytes:
        return location


class FakeTransport:
    def writelines(self, _parts: object) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> None: ...


class Heard(Receiver):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.head: tuple[object, ...] | None = None
        self.body = b""
        self.ends: list[str] = []

    def on_head(self, head: ResponseHead) -> None:
        assert self.head is None
        self.head = (
            head.status,
            b"".join(head.forward),
            head.content_type,
            head.content_encoding,
            head.length,
        )

    def on_piece(self, piece: bytes) -> None:
        assert not self.ends
        self.body += piece

    def on_end(self) -> None:
        self.ends.append("end")

    def on_broken(self, why: str, *, answered: bool, taken: bool) -> None:
        self.ends.append("broken")


class Parsing(UpstreamConnection):
    """One that leaves all to the parser."""

    def _take(self, data: bytes) -> bool:
        return False


def heard(kind: type[UpstreamConnection], pool: FakePool, pieces: list[bytes]) -> tuple[object, ...]:
    connection = kind(cast("Pool", pool), 65_536)
    connection.connection_made(FakeTransport())  # type: ignore[arg-type]
    receiver = Heard()
    connection.send(receiver, (b"",), head_only=False)
    before = pool.kept
    for piece in pieces:
        if connection._receiver is not None:
            connection.data_received(piece)
    connection.connection_lost(None)
    # Of an answer that broke in the middle, how much came through depends on where it was cut.
    body = receiver.body if receiver.ends == ["end"] else b""
    return receiver.head, body, receiver.ends, pool.kept - before


def warm() -> FakePool:
    """A pool that has seen an answer of this kind."""
    pool = FakePool()
    usual = b"\r\n".join([b"HTTP/1.1 200 OK", *PLAIN, b"content-length: 1", b"", b"x"])
    assert heard(Parsing, pool, [usual])[2] == ["end"]
    return pool


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({at % (len(raw) + 1) for at in cuts})
    return [raw[a:b] for a, b in zip([0, *places], [*places, len(raw)], strict=True) if a < b]


@given(
    start=st.sampled_from([STARTS[0]] * 6 + STARTS),
    lines=st.lists(st.sampled_from(PLAIN * 3 + ODD), max_size=5),
    length=st.one_of(st.none(), st.integers(0, 12)),
    chunks=st.lists(st.sampled_from(CHUNKS[:3] * 3 + CHUNKS), max_size=5),
    end=st.sampled_from(ENDS[:1] * 4 + ENDS),
    body=st.binary(max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=4),
)
def test_past_the_parser_an_answer_is_the_same(
    start: bytes,
    lines: list[bytes],
    length: int | None,
    chunks: list[bytes],
    end: bytes,
    body: bytes,
    cuts: list[int],
) -> None:
    framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    head = b"\r\n".join([start, *lines, framing, b"", b""])
    pieces = cut(head + (b"".join(chunks) + end if length is None else body), cuts)
    pool = warm()
    plain = heard(UpstreamConnection, pool, pieces)
    assert plain == heard(Parsing, warm(), pieces)
    # And once more, on what the pool has learned by then.
    assert heard(UpstreamConnection, pool, pieces) == plain


def test_a_stream_in_whole_chunks_never_reaches_the_parser() -> None:
    pool = warm()
    before = pool.kept
    connection = UpstreamConnection(cast("Pool", pool), 65_536)
    connection.connection_made(FakeTransport())  # type: ignore[arg-type]
    receiver = Heard()
    connection.send(receiver, (b"",), head_only=False)
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n"
    connection._parser = None
    for piece in (head, b"2\r\nab\r\n", b"1\r\nc\r\n1\r\nd\r\n", b"1\r\ne\r\n0\r\n\r\n"):
        connection.data_received(piece)
    assert (receiver.body, receiver.ends, pool.kept - before) == (b"abcde", ["end"], 1)


class Watched(FakeTransport):
    """Remembers what was set on its socket."""

    def __init__(self) -> None:
        self.options: list[tuple[int, ...]] = []

    def get_extra_info(self, _name: str) -> Self:  # type: ignore[override]
        return self

    def setsockopt(self, *option: int) -> None:
        self.options.append(option)
        if len(self.options) > 2:
            raise OSError(EBADF, "closed meanwhile")


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")
def test_each_stream_has_its_events_acknowledged_by_twos() -> None:
    connection, transport = UpstreamConnection(cast("Pool", warm()), 65_536), Watched()
    connection.connection_made(transport)  # type: ignore[arg-type]
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    option = (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    for streams in range(1, 4):
        receiver = Heard()
        connection.send(receiver, (b"",), head_only=False)
        connection.data_received(head + b"content-length: 1\r\n\r\nx")
        connection.send(receiver := Heard(), (b"",), head_only=False)
        connection.data_received(head + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")
        assert (receiver.body, receiver.ends) == (b"a", ["end"])
        assert transport.options == [option] * streams


@pytest.mark.parametrize("size", [1, 9, 10, 255, 256, 1023, 1024, 70_000])
def test_a_plain_chunk_is_told_of_with_its_frame(size: int) -> None:
    connection = UpstreamConnection(cast("Pool", warm()), 65_536)
    connection.connection_made(FakeTransport())  # type: ignore[arg-type]
    told: list[tuple[bytes, bytes]] = []

    class Framed(Heard):
        def on_chunk(self, data: bytes, begin: int, start: int, end: int) -> None:
            told.append((data[begin : end + 2], data[start:end]))

    connection.send(Framed(), (b"",), head_only=False)
    connection.data_received(b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n")
    chunks = [b"%x\r\n%b\r\n" % (size, letter * size) for letter in (b"a", b"b", b"c")]
    connection.data_received(chunks[0])
    connection.data_received(chunks[1] + chunks[2])
    assert told == [(chunk, letter * size) for chunk, letter in zip(chunks, (b"a", b"b", b"c"), strict=True)]


def test_what_is_remembered_of_lines_is_bounded() -> None:
    heads = warm().answer_heads
    for number in range(3000):
        assert (
            heads.recognise(b"HTTP/1.1 200 OK\r\ndate: %d\r\ncontent-length: 1\r\n\r\n" % number, 999)
            is not None
        )
    assert len(heads._lines) <= 1024


def test_names_that_are_too_many_are_forgotten_and_learned_anew() -> None:
    heads = warm().answer_heads
    for number in range(3000):
        heads.note(b"x-%d" % number)
    assert len(heads._names) <= 1024
    assert heads.recognise(b"HTTP/1.1 200 OK\r\nX-2999: 1\r\ncontent-length: 1\r\n\r\n", 999) is not None
    assert heads.recognise(b"HTTP/1.1 200 OK\r\nX-0: 1\r\ncontent-length: 1\r\n\r\n", 999) is None


def test_headers_that_are_the_routers_to_say_end_here() -> None:
    pool = warm()
    head = b"HTTP/1.1 200 OK\r\nX-Homing-Decision: mine\r\nx-homing-replica: me\r\ncontent-length: 1\r\n\r\nx"
    for _ in range(2):
        told = heard(UpstreamConnection, pool, [head])
        assert told[0] == (200, b"", b"", b"", 1)


def test_a_head_that_came_before_is_known_by_its_bytes_within_the_limit() -> None:
    heads = AnswerHeads()
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"
    longer = raw.replace(b": 1", b": 12")
    for limit, data, length in (
        (len(raw), raw, 1),
        (len(raw), raw + b"x", 1),
        (len(raw) - 1, raw + b"x", None),
        (len(raw), raw[:-1], None),
        (len(longer), longer + b"x", 12),
        (len(raw), raw, 1),
    ):
        recognised = heads.recognise(data, limit)
        if length is None:
            assert recognised is None
        else:
            assert recognised is not None
            head, chunked = recognised
            assert (head.length, head.size, chunked) == (length, data.index(b"\r\n\r\n") + 4, False)
