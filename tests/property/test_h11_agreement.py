"""Another parser reads the same requests: what h11 refuses is refused here, and both see the same ends.

Requests are generated, damaged byte by byte, cut in pieces and fed to a connection without a socket. What the
router takes and h11 refuses stands in `EXCEPTIONS`, with its reason; nothing else gets past the comparison.
"""

import re
from typing import Final, NamedTuple

import h11
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.base.build import kind_of_build
from router.base.errors import Refused
from router.base.ids import OPEN_TENANT, TenantId
from router.dataplane.client import ClientConnection, Reading
from router.dataplane.head import Head
from router.dataplane.head_reader import HeadReader
from router.dataplane.limits import Limits
from router.dataplane.outbox import Outbox

if kind_of_build() == "compiled":
    pytest.skip("inherits from what is compiled", allow_module_level=True)

EXCEPTIONS: Final = {
    "empty lines before a request, which RFC 9112 §2.2 asks servers to skip": re.compile(
        r"no request line received|illegal request line$|illegal request line: bytearray\(b'(\\r)+([A-Z]|'\))"
    ),
    "spaces beside those that part a request line, which RFC 9112 §3 lets servers take": re.compile(
        r"illegal request line: bytearray\(b'[A-Z]+ +[!-~]+ +HTTP/1\.[01]'\)"
    ),
    "RTSP for HTTP: llhttp speaks both and does not tell which; what goes on is HTTP/1.1": re.compile(
        r"illegal request line: bytearray\(b'(GET|POST) +[!-~]+ +RTSP/1\.[01]'\)"
    ),
    "chunk sizes with many leading zeros, which are still one number": re.compile(
        r"illegal chunk header: bytearray\(b'0+[0-9a-fA-F]{0,16}[;\\]"
    ),
}
"""What the router takes all the same, as h11 words its refusal."""


class Taken(NamedTuple):
    """A request as a parser understood it."""

    method: bytes
    target: bytes
    version: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Verdict(NamedTuple):
    """What a parser made of some bytes."""

    taken: list[Taken]
    refusal: str | None
    """Why it read no further; `None` where it waits for more, or where the last request closes."""
    closes: bool
    """The last request taken ends the connection: what follows is not read."""


class Plane:
    """What a client connection asks of its plane while it only reads."""

    limits = Limits()
    heads = HeadReader([b"x-session-id"], None)

    def __init__(self) -> None:
        self.connections: set[ClientConnection] = set()
        self.outbox = Outbox()
        self.held_bytes = 0

    def now(self) -> float:
        return 0.0

    def tenant_of(self, _head: Head) -> TenantId:
        return OPEN_TENANT

    def hold(self, size: int) -> None:
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        self.held_bytes -= size


class Transport:
    """A transport to a client that reads nothing."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> None: ...

    def write(self, _data: bytes) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def close(self) -> None: ...


class Recorder(ClientConnection):
    """A connection that keeps its requests instead of relaying them."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.refusal: Refused | None = None
        self.closes = False
        self.lines: list[tuple[bytes, bytes, list[tuple[bytes, bytes]]]] = []
        super().__init__(Plane())  # type: ignore[arg-type]
        self.connection_made(Transport())  # type: ignore[arg-type]

    def on_headers_complete(self) -> None:
        self.lines.append((self._url, self._parser.get_http_version().encode(), self._headers))
        super().on_headers_complete()

    def _take(self, data: bytes) -> bool:
        known = len(self.taken)
        self.lines.append(as_it_lies(data))
        taken = super()._take(data)
        if len(self.taken) == known and not taken:
            self.lines.pop()  # the parser will say what it holds
        return taken

    def _run(self, head: Head, tenant: TenantId | None, content: bytes, keep_alive: bool) -> None:
        url, version, headers = self.lines[len(self.taken)]
        named = [(name.lower(), value.strip(b" \t")) for name, value in headers]
        self.taken.append(Taken(head.method, url, version, named, content))
        self._plane.give_back(len(content))
        self.keep_alive = keep_alive
        self.closes = not keep_alive
        self.finished(keep=True)

    def _refuse(self, refusal: Refused) -> None:
        self.refusal = refusal
        self._refusal = None
        self._reading = Reading.NOTHING


def as_it_lies(data: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """Target, version and headers of a request that goes past the parser: what its bytes say to the eye."""
    first, *rest = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    target = first.split(b" ")[1] if first.count(b" ") == 2 else b""
    headers = [(name, value) for name, _, value in (line.partition(b":") for line in rest)]
    return target, b"1.1", headers


def ours(pieces: list[bytes]) -> Verdict:
    connection = Recorder()
    for piece in pieces:
        connection.data_received(piece)
    return Verdict(
        connection.taken, connection.refusal.message if connection.refusal else None, connection.closes
    )


def theirs(pieces: list[bytes]) -> Verdict:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=Plane.limits.head)
    taken: list[Taken] = []
    request, body = None, b""
    for piece in pieces:
        connection.receive_data(piece)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                return Verdict(taken, str(error), False)
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                headers = [(bytes(name), bytes(value)) for name, value in request.headers]
                taken.append(
                    Taken(request.method, request.target, request.http_version, headers, bytes(body))
                )
                # An answer that agrees to no change of protocol.
                connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return Verdict(taken, None, True)
                connection.start_next_cycle()
            else:
                break
    return Verdict(taken, None, False)


def lowered(requests: list[Taken]) -> list[Taken]:
    """h11 writes the transfer encoding in lower case."""
    return [
        request._replace(
            headers=[
                (name, value.lower() if name == b"transfer-encoding" else value)
                for name, value in request.headers
            ]
        )
        for request in requests
    ]


def compare(pieces: list[bytes]) -> None:
    mine, other = ours(pieces), theirs(pieces)
    both = min(len(mine.taken), len(other.taken))
    assert lowered(mine.taken[:both]) == other.taken[:both]
    if other.refusal is not None and any(pattern.match(other.refusal) for pattern in EXCEPTIONS.values()):
        return
    if not other.closes:  # h11 closes after every HTTP/1.0 request, the router only where it is asked to
        assert len(mine.taken) == both, f"taken here, and not by h11: {other.refusal}"
    if len(other.taken) > both or other.refusal is not None:
        assert mine.refusal is not None or mine.closes, f"waited for here, and not by h11: {other.refusal}"


CRLF: Final = b"\r\n"

# The parts of a request that has nothing odd. `%s` stands for the length of the content.
PLAIN: Final = {
    "before": b"",
    "method": b"POST",
    "space": b" ",
    "target": b"/v1/thing",
    "second space": b" ",
    "version": b"HTTP/1.1",
    "end": CRLF,
    "host": b"Host: r\r\n",
    "name": b"X-A",
    "colon": b":",
    "blank": b" ",
    "value": b"1",
    "blank after": b"",
    "line end": CRLF,
    "length": b"Content-Length: %s\r\n",
    "encoding": b"Transfer-Encoding: chunked\r\n",
    "before size": b"",
    "after size": b"",
    "size end": CRLF,
    "chunk end": CRLF,
    "last": b"0\r\n",
    "trailer": b"",
    "end of head": CRLF,
    "end of trailers": CRLF,
}

LENGTHS: Final = (
    *(b"+%s", b"-%s", b"0%s", b"0x%s", b"%s, %s", b"%s,", b"%s_0", b"%s.0", b"%s ", b"\t%s\t", b"1%s", b""),
    *(b"0" * zeros + b"%s" for zeros in (18, 19, 30)),
)
ENCODINGS: Final = (
    *(b"Chunked", b"chunked ", b"\tchunked", b"chunked\t", b"xchunked", b"chunkedx", b"chunked, chunked"),
    *(b"identity", b"gzip, chunked", b"chunked, gzip", b"", b'"chunked"', b"chunked;a", b"\x0bchunked"),
    *(b",chunked", b"chunked,"),
)

# And what may take their place.
ODD: Final[dict[str, list[bytes]]] = {
    "before": [CRLF, b"\r\n\r\n", b"\n", b"\r", b" ", b"\x00"],
    "method": [
        b"GET",
        b"HEAD",
        b"DELETE",
        b"PATCH",
        b"TRACE",
        b"CONNECT",
        b"OPTIONS",
        b"post",
        b"FOO",
        b"P\tT",
        b"",
    ],
    "space": [b"  ", b"\t", b"", b" \t"],
    "target": [
        b"/v1/thing?a=b#",
        b"http://h/v1/x",
        b"http://h?/v1/x",
        b"*",
        b"/%2e%2e/x",
        b"//x",
        b"/\xc3\xa9",
        b"",
        b"/#x",
        b"/v1/models/a%2Fb",
        b"h:1",
        b"/a\x7f",
        b"/a b",
        b"ftp://h/",
        b"/\\x",
        b'/"',
        b"/v1/" + b"x" * 300,
    ],
    "second space": [b"  ", b"\t", b"", b"\x0b"],
    "version": [
        b"HTTP/1.0",
        b"HTTP/1.2",
        b"HTTP/0.9",
        b"HTTP/2.0",
        b"http/1.1",
        b"RTSP/1.0",
        b"HTTP/1.10",
        b"HTTP/11",
        b"",
    ],
    "end": [b"\n", b"\r", b"\r\r\n", b"\r\n ", b" \r\n"],
    "host": [b"", b"Host: r\r\nHost: r\r\n", b"host:\r\n", b"Host : r\r\n", b"Host: r\n", b"HOST: a b\r\n"],
    "name": [
        b"Connection",
        b"Expect",
        b"X_B",
        b"Host",
        b"",
        b"X ",
        b"X\x00",
        b"X\xe9",
        b"X(",
        b"TE",
        b"content-length",
        b"Content-Length",
        b"Transfer-Encoding",
        b"Upgrade",
        b"\tX",
        b"X\r",
    ],
    "colon": [b"", b" :", b"::", b"\t:", b"="],
    "blank": [b"", b"  ", b"\t", b" \t ", b"\x0b", b"\x0c", b"\r\n ", b"\xa0"],
    "value": [
        b"",
        b"close",
        b"keep-alive",
        b"keep-alive, close",
        b"upgrade",
        b"100-continue",
        b"\xe9",
        b"a\x00",
        b"\x7f",
        b"\x1b",
        b"chunked",
        b"0",
        b"5",
        b"x\ty",
        b"a\rb",
        b"a\nb",
        b"a\r\n b",
    ],
    "blank after": [b" ", b"\t", b" \t ", b"\x0b", b"\x85"],
    "line end": [b"\n", b"\r", b"\r\r\n", b"\r\n "],
    "length": [
        *(b"Content-Length: " + said + CRLF for said in LENGTHS),
        b"Content-Length: %s\r\nContent-Length: %s\r\n",
        b"Content-Length: %s\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length : %s\r\n",
        b"Content_Length: %s\r\n",
        b"Content-Length:\r\n %s\r\n",
        b"",
    ],
    "encoding": [
        *(b"Transfer-Encoding: " + said + CRLF for said in ENCODINGS),
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n" * 2,
        b"Transfer-Encoding:\r\n chunked\r\n",
        b"Transfer_Encoding: chunked\r\n",
        b"",
    ],
    "before size": [b"0", b"+", b"-", b"0x", b" ", b"\t", b"0" * 30, b"f" * 16, b"1", b"_"],
    "after size": [
        b";a",
        b";a=b",
        b';a="b c"',
        b";",
        b" ",
        b"\t",
        b" ;a",
        b"; a",
        b"_0",
        b";a=\x00",
        b";\xe9",
        b"x",
        b"L",
    ],
    "size end": [b"\n", b"\r", b"", b"\r\r\n", b";\n\r\n"],
    "chunk end": [b"\n", b"\r", b"", b"\r\r\n", b"\n\r", b"x\r\n"],
    "last": [b"", b"00\r\n", b"0" * 25 + CRLF, b"0\n", b"0;a\r\n", b"-0\r\n", b"0x0\r\n", b"0 \r\n"],
    "trailer": [
        b"X: 1\r\n",
        b"X : 1\r\n",
        b"X: 1\n",
        b" X: 1\r\n",
        b"X\r\n",
        b"Content-Length: 5\r\n",
        b"Host: a\r\n",
        b"X: a\x00\r\n",
        b"X: 1\r\n 2\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ],
    "end of head": [b"\n", b"\r", b"", b"\r\r\n", b" \r\n"],
    "end of trailers": [b"\n", b"\r", b"", b"\r\r\n"],
}

contents = st.sampled_from(
    [b"", b"{}", CRLF, b"0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
) | st.binary(max_size=20)
oddities = st.sampled_from([(part, bytes_) for part, all_ in ODD.items() for bytes_ in all_])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request with up to two odd parts."""
    part = PLAIN | dict(draw(st.lists(oddities, max_size=2)))
    kind = draw(st.sampled_from(["none", "sized", "chunked"]))
    framing, body = b"", b""
    if kind == "sized":
        body = draw(contents)
        framing = part["length"].replace(b"%s", b"%d" % len(body))
    elif kind == "chunked":
        framing = part["encoding"]
        for content in filter(None, draw(st.lists(contents, max_size=2))):
            body += part["before size"] + b"%x" % len(content) + part["after size"] + part["size end"]
            body += content + part["chunk end"]
        body += part["last"] + part["trailer"] + part["end of trailers"]
    line = ("before", "method", "space", "target", "second space", "version", "end", "host")
    header = ("name", "colon", "blank", "value", "blank after", "line end")
    return b"".join((*map(part.get, line), *map(part.get, header), framing, part["end of head"], body))


# Bytes that mean something to a parser, to damage a request with.
tokens = st.sampled_from(
    [
        b"\r",
        b"\n",
        CRLF,
        b"\r\n\r\n",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"\x00",
        b"\x0b",
        b"0",
        b"1",
        b"a",
        b"-",
        b"_",
        b"\x80",
        b"\xff",
        b"chunked",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """A few requests on one connection, perhaps damaged, in pieces."""
    data = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.sampled_from([0, 0, 1, 2]))
        data = data[:at] + draw(tokens | st.just(b"")) + data[at + gone :]
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams())
@example([b"GET /v1/x HTTP/1.1\r\nHost: r\r\nContent-Length: 0002\r\n\r\n{}"])
@example([b"POST /v1/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
@example([b"GET /v1/x HTTP/1.1\r\nHost: r\r\nContent-Length: " + b"0" * 30 + b"2\r\n\r\n{}"])
@example([b"GET /v1/x HTTP/2.0\r\nHost: r\r\n\r\n"])
def test_what_h11_refuses_is_refused_and_both_see_the_same_requests(pieces: list[bytes]) -> None:
    compare(pieces)
