"""How an answer's body is framed for its client, by what its head says of it."""

import pytest

from router.dataplane.answer_head import ResponseHead
from router.dataplane.answering import Answer
from router.dataplane.dialects import Dialect

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
LENGTH = b"content-length: 7\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def answer(
    status=200,
    content_type=b"text/plain",
    *,
    length=7,
    encoding=b"",
    dialect=Dialect.CHAT,
    bodiless=False,
    chunks=True,
):
    head = ResponseHead(status, [], content_type, encoding, length)
    return Answer(head, dialect, bodiless=bodiless, chunks=chunks, hide_usage=False)


@pytest.mark.parametrize(
    ("wishes", "framing", "chunked", "ends_with_connection"),
    [
        ({}, LENGTH, False, False),
        ({"length": None}, CHUNKED, True, False),
        ({"length": None, "chunks": False}, b"", False, True),
        ({"content_type": EVENTS}, CHUNKED, True, False),
        ({"content_type": EVENTS, "chunks": False}, b"", False, True),
        ({"content_type": EVENTS, "encoding": b"gzip"}, LENGTH, False, False),
        ({"content_type": JSON}, b"", False, False),
        ({"content_type": JSON, "encoding": b"gzip"}, LENGTH, False, False),
        ({"content_type": JSON, "status": 400}, LENGTH, False, False),
        ({"bodiless": True}, LENGTH, False, False),
        ({"bodiless": True, "length": None}, b"", False, False),
        ({"status": 204}, b"", False, False),
        ({"status": 304}, LENGTH, False, False),
        ({"status": 304, "length": None}, b"", False, False),
    ],
)
def test_framing(wishes, framing, chunked, ends_with_connection):
    made = answer(**wishes)
    assert (made.framing, made.chunked, made.ends_with_connection) == (framing, chunked, ends_with_connection)


def test_a_piece_is_a_chunk_only_where_the_body_is_in_chunks():
    assert answer(length=None).framed(b"0123456789") == b"a\r\n0123456789\r\n"
    assert answer().framed(b"0123456789") == b"0123456789"


@pytest.mark.parametrize(
    ("content_type", "dialect", "strange"),
    [
        (b"text/html", Dialect.CHAT, True),
        (b"text/html", Dialect.POOLING, False),
        (b"text/html", None, False),
        (b"", Dialect.CHAT, False),
        (JSON, Dialect.CHAT, False),
        (b"Application/Problem+JSON", Dialect.MESSAGES, False),
        (b"TEXT/event-stream", Dialect.RESPONSES, False),
    ],
)
def test_a_page_is_no_answer_of_an_engine(content_type, dialect, strange):
    assert answer(content_type=content_type, dialect=dialect).is_strange is strange


@pytest.mark.parametrize("wishes", [{"status": 502}, {"bodiless": True}, {"status": 204}])
def test_what_fails_or_has_no_body_is_not_strange(wishes):
    assert not answer(content_type=b"text/html", **wishes).is_strange


def test_a_gathered_body_is_what_came_and_counts_what_is_held():
    made = answer(content_type=JSON)
    made.gather(b"{", held=False)
    assert (made.gathered(), made.held) == (b"{", 0)
    made.gather(b'"a":1}', held=True)
    assert (made.gathered(), made.gathered_bytes, made.held) == (b'{"a":1}', 7, 6)


def test_a_stream_that_fails_has_the_status_of_its_error():
    made = answer(content_type=EVENTS)
    assert made.status == 200
    made.reader.feed(b'data: {"error":{"message":"no","code":404}}\n\n')
    assert made.status == 404
    assert answer(502).status == 502
