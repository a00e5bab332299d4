"""Heads that go past the parser are read as the parser and `HeadReader.read` would read them."""

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.errors import Refused
from router.dataplane.head import Head
from router.dataplane.head_reader import HeadReader
from router.dataplane.last_head import LastHead

END, LIMIT = b"\r\n\r\n", 65_536
START = b"POST /v1/chat/completions HTTP/1.1"

PLAIN = [
    b"Host: r",
    b"Accept: application/json",
    b"Connection: keep-alive",
    b"Proxy-Connection: Keep-Alive",
    b"Accept-Encoding: gzip, deflate",
    b"User-Agent: OpenAI/Python 2.8.0",
    b"Content-Type: application/json",
    b"X-Session-ID: agent-7",
    b"x_session_id: agent 8",
    b"Authorization: Bearer k1",
    b"X-API-Key: k2",
    b"X-Request-ID: 1f:2",
    b"Content-Length: 12",
    b"traceparent: 00-1-2-01",
    b"tracestate: a=1,b=2",
    b"X-Team: blue",
    b"X-Homing-Priority: high",
    b"X-Stainless-Timeout: 600",
    b"x-stainless-read-timeout: soon",
    b"Content_Length: 7",
]

ODD = [
    b"Host : r",
    b"Accept:application/json",
    b"Accept:  application/json",
    b"Accept: a ",
    b"Accept: a\tb",
    b"Accept: \xe9",
    b"Accept: a\x00b",
    b"Accept: a\nX-Team: b",
    b"Accept: a\rb",
    b"Accept: ",
    b"Accept",
    b" folded",
    b"Connection: close",
    b"Connection: X-Team",
    b"Proxy-Connection: close",
    b"Content-Length: +12",
    b"Content-Length: 0012",
    b"Content-Length: 1_2",
    b"Content-Length: 12, 12",
    b"Content-Length: 99999999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"Upgrade: websocket",
    b"X-Request-ID: a b",
    b"X-Tenant: blue",
    b"X-Tenant: " + b"b" * 300,
    b"Authorization: Basic eA==",
    b"X-New: 1",
    b"X New: 1",
    b"x-team: " + b"v" * 200,
]

STARTS = [
    START,
    b"GET /v1/models HTTP/1.1",
    b"POST  /v1/chat/completions HTTP/1.1",
    b"POST /v1/chat/completions HTTP/1.0",
    b"POST /v1/chat/completions?a=b HTTP/1.1",
    b"POST /other HTTP/1.1",
    b"",
]


class Parsed:
    """What a parser hands out of one head."""

    def __init__(self, raw: bytes) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.whole = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(raw + b"\r\n\r\n")

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.whole = True


def parsed(reader: HeadReader, raw: bytes) -> Head:
    """The head by way of the parser. Raises `Refused` and what the parser raises."""
    it = Parsed(raw)
    assert it.whole, "the parser waits for more"
    return reader.read(it.parser.get_method(), it.url, it.parser.get_http_version(), it.headers)


def seen(head: Head) -> dict[str, object]:
    """All that it says; how long it is, only one that is recognised knows."""
    said = {name: getattr(head, name) for name in vars(Head) if not name.startswith("_") and name != "size"}
    return said | {"forward": b"".join(head.forward)}


def reader(*, traces: bool = False) -> HeadReader:
    """One that has seen the usual clients."""
    made = HeadReader([b"x-session-id"], b"x-tenant", traces=traces)
    for start in (START, b"GET /v1/models HTTP/1.1"):
        parsed(made, b"\r\n".join([start, *PLAIN]))
    return made


LINES = st.lists(st.one_of(st.sampled_from(PLAIN), st.sampled_from(PLAIN + ODD)), min_size=0, max_size=12)


@given(
    start=st.sampled_from([START, START, *STARTS]),
    heads=st.lists(LINES, min_size=1, max_size=3),
    traces=st.booleans(),
)
def test_what_is_recognised_is_what_the_parser_reads(
    start: bytes, heads: list[list[bytes]], traces: bool
) -> None:
    one, other, last = reader(traces=traces), reader(traces=traces), LastHead()
    for lines in (*heads, *heads, *heads):  # the second time, from memory
        raw = b"\r\n".join([start, b"Host: r", *lines])
        head = one.recognise(raw + END, LIMIT, last)
        if head is not None:
            assert seen(head) == seen(parsed(other, raw))
            assert head.size == len(raw + END)


CHANGING = [b"X-Session-ID", b"x_session_id", b"Content-Length", b"X-Request-ID", b"traceparent", b"Accept"]
VALUES = [
    *(b"1", b"12", b"a-7", b"application/json"),
    # As long as those below that hold a line's end.
    *(b"1234567", b"1234567890"),
    *(b"", b" 1", b"1 ", b"a b", b"+1", b"1\n", b"1\r", b"\xe9", b"9" * 16, b"1\r\nX: y", b"1\r\nHost: s"),
]


@given(
    before=st.lists(st.sampled_from(PLAIN), max_size=2),
    behind=st.lists(st.sampled_from(PLAIN), max_size=2),
    names=st.lists(st.sampled_from(CHANGING), max_size=3),
    values=st.lists(
        st.lists(st.one_of(st.sampled_from(VALUES[:6]), st.sampled_from(VALUES)), min_size=3, max_size=3),
        min_size=4,
        max_size=6,
    ),
    tail=st.sampled_from([b"", b"", b"", b"x", b"\r\nX-New: 1", b"\r\nContent-Length: 3"]),
    traces=st.booleans(),
)
def test_what_differs_in_a_few_values_is_what_the_parser_reads_too(
    before: list[bytes],
    behind: list[bytes],
    names: list[bytes],
    values: list[list[bytes]],
    tail: bytes,
    traces: bool,
) -> None:
    one, other, last = reader(traces=traces), reader(traces=traces), LastHead()
    for number, said in enumerate(values):
        changing = [b"%b: %b" % (name, value) for name, value in zip(names, said, strict=False)]
        raw = b"\r\n".join([START, b"Host: r", *before, *changing, *behind])
        if number == len(values) - 1:
            raw += tail
        head = one.recognise(raw + END, LIMIT, last)
        if head is not None:
            assert seen(head) == seen(parsed(other, raw))
            assert head.size == len(raw + END)


def test_a_connections_third_head_is_known_by_what_it_has_in_common_with_the_second() -> None:
    known, last = reader(), LastHead()
    for number in range(3):
        raw = b"\r\n".join(
            [
                START,
                b"Host: r",
                b"X-Session-ID: s-%d" % number,
                b"Accept: application/json",
                b"Content-Length: %d" % (number + 1),
            ]
        )
        known._seen.clear()  # what is looked up by its line fills this again
        head = known.recognise(raw + END, LIMIT, last)
        assert head is not None
        assert (head.sessions, head.length) == (((b"x-session-id", b"s-%d" % number),), number + 1)
        assert head.forward == [b"accept: application/json\r\n"]
    assert not known._seen


def test_a_head_is_recognised_within_the_limit_only_and_what_follows_is_no_part_of_it() -> None:
    known, last = reader(), LastHead()
    raw = b"\r\n".join([START, b"Host: r", b"Content-Length: 1"]) + END
    for limit, data, found in (
        (len(raw), raw, True),
        (len(raw), raw + b"x", True),
        (len(raw), raw + raw, True),
        (len(raw) - 1, raw + b"x", False),
        (len(raw), raw[:-1], False),
        (len(raw), raw[:-3], False),
        (len(raw), raw[:-4] + b"1" + END, False),
    ):
        head = known.recognise(data, limit, last)
        assert (head is not None) is found
        assert head is None or head.size == len(raw)


def test_what_another_reader_made_of_a_line_counts_for_nothing() -> None:
    raw, last = b"%b\r\nHost: r\r\nContent-Length: 1\r\nX-Mine: 1" % START, LastHead()
    for name, sessions in ((b"x-mine", ((b"x-mine", b"1"),)), (b"x-theirs", ())):
        known = HeadReader([name], None)
        parsed(known, raw)
        for _ in range(4):  # by its lines, then by what it has in common with the last
            head = known.recognise(raw + END, LIMIT, last)
            assert head is not None
            assert head.sessions == sessions


def test_the_head_of_an_agent_is_recognised_and_from_then_on_by_its_lines() -> None:
    known = reader()
    raw = b"\r\n".join([START, *(line for line in PLAIN if line != b"x_session_id: agent 8")])
    for _ in range(2):
        head = known.recognise(raw + END, LIMIT, LastHead())
        assert head is not None
        assert (head.path, head.length, head.sessions) == (
            "/v1/chat/completions",
            12,
            ((b"x-session-id", b"agent-7"),),
        )
        assert head.key == b"k1"
        assert b"accept: application/json\r\n" in head.forward
        assert b"traceparent: 00-1-2-01\r\n" in head.forward


@pytest.mark.parametrize("odd", [b"Content-Length: 3", b"Host: s", b"Content-Type: text/plain"])
def test_what_may_be_there_once_only_is_left_to_the_parser(odd: bytes) -> None:
    assert reader().recognise(b"\r\n".join([START, *PLAIN, odd]) + END, LIMIT, LastHead()) is None


def test_a_target_or_a_name_that_never_passed_is_left_to_the_parser() -> None:
    known = reader()
    with pytest.raises(Refused):
        parsed(known, b"POST /v1/%2e HTTP/1.1\r\nHost: r")
    assert known.recognise(b"POST /v1/%2e HTTP/1.1\r\nHost: r" + END, LIMIT, LastHead()) is None
    assert known.recognise(b"\r\n".join([START, b"Host: r", b"X-Never: 1"]) + END, LIMIT, LastHead()) is None


def test_secrets_are_not_kept_and_what_is_kept_is_bounded() -> None:
    known = reader()
    for number in range(5000):
        assert known.recognise(
            b"%b\r\nHost: r\r\nAccept: %d\r\nX-API-Key: s3cret" % (START, number) + END, LIMIT, LastHead()
        )
    assert len(known._seen) <= 4096
    assert not any(b"s3cret" in line for line in known._seen)


def test_tables_that_are_full_begin_anew_and_learn_on() -> None:
    known = reader()
    for number in range(5000):
        path = b"/v1/responses/r%d" % number
        parsed(known, b"POST %b HTTP/1.1\r\nHost: r\r\nContent-Length: 1\r\nX-N%d: 1" % (path, number))
        assert len(known._targets) <= 1024
        assert len(known._starts) <= 1024
        assert len(known._lines) + len(known._kinds) <= 4096
    raw = b"\r\n".join([START, *PLAIN])
    assert seen(parsed(known, raw)) == seen(parsed(reader(), raw))
    again = known.recognise(raw + END, LIMIT, LastHead())
    assert again is not None
    assert seen(again) == seen(parsed(known, raw))


def test_the_first_line_of_a_request_without_a_body_is_not_kept() -> None:
    known = HeadReader([], None)
    for number in range(2000):
        parsed(known, b"GET /v1/responses/r%d HTTP/1.1\r\nHost: r" % number)
    assert known._starts == {}


def recognised(known: HeadReader, raw: bytes) -> Head | None:
    return known.recognise(raw + END, LIMIT, LastHead())


def test_a_clients_trace_goes_on_as_any_header_unless_turns_are_traced() -> None:
    lines = (b"traceparent: 00-1-2-01", b"tracestate: a=1,b=2")
    raw = b"\r\n".join([START, b"Host: r", *lines, b"tracestate: c=3"])
    for way in (recognised, parsed):
        head = way(reader(), raw)
        assert head is not None
        assert (head.traceparent, head.tracestate) == (None, b"")
        assert head.forward[:2] == [line + b"\r\n" for line in lines]
        head = way(reader(traces=True), raw)
        assert head is not None
        assert (head.traceparent, head.tracestate) == (b"00-1-2-01", b"a=1,b=2,c=3")
        assert head.forward == []


def test_two_traces_of_one_client_are_none() -> None:
    raw = b"\r\n".join([START, b"Host: r", b"traceparent: one", b"traceparent: two"])
    for way in (recognised, parsed):
        head = way(reader(traces=True), raw)
        assert head is not None
        assert head.traceparent == b"one,two"


def test_traces_are_not_kept_since_they_do_not_come_again() -> None:
    known = reader(traces=True)
    before = len(known._seen)
    for number in range(100):
        assert known.recognise(
            b"%b\r\nHost: r\r\ntraceparent: %d\r\ntracestate: a=%d" % (START, number, number) + END,
            LIMIT,
            LastHead(),
        )
    assert len(known._seen) <= before + 1
