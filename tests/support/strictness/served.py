"""Requests that are unusual and right, and what a replica must get of them."""

from support.strictness.cases import (
    BODY,
    CHAT,
    GET,
    HIDDEN,
    LAST,
    ONE,
    THING,
    TURN,
    Case,
    Seen,
    chunks,
    head,
    sized,
)


def _served(
    name: str, sent: bytes, *seen: Seen, statuses: tuple[int, ...] = (), closed: bool = False, **more: object
) -> Case:
    return Case(
        name=name,
        sent=sent,
        seen=seen,
        statuses=statuses or (200,) * len(seen),
        closed=closed,
        **more,  # type: ignore[arg-type]
    )


_TURN = Seen(TURN, BODY)
_THING = Seen(THING)

SERVED: tuple[Case, ...] = (
    _served("a chat", sized(), _TURN),
    _served("a chat, byte by byte", sized(), _TURN, drip=True),
    _served("one chunk", chunks(ONE + LAST), _TURN),
    _served(
        "chunks of one byte, byte by byte",
        chunks(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + LAST),
        _TURN,
        drip=True,
    ),
    _served(
        "a large body in crumbs",
        chunks(b"2\r\n  \r\n" * 40_000 + ONE + LAST),
        Seen(TURN, b"  " * 40_000 + BODY),
    ),
    _served("chunk size with leading zeros", chunks(b"0000" + ONE + LAST), _TURN),
    _served("chunk size in capitals", chunks(ONE.replace(b"1b", b"1B") + LAST), _TURN),
    _served(
        "chunk extensions, which are dropped",
        chunks(ONE.replace(b"\r\n", b';a=b;c="d";e\r\n', 1) + b"0;f\r\n\r\n"),
        _TURN,
    ),
    _served(
        "trailers, which are dropped",
        chunks(ONE + b"0\r\nX: 1\r\nHost: other\r\nX-Session-ID: a\r\n\r\n") + head(start=GET),
        _TURN,
        _THING,
    ),
    _served("`Transfer-Encoding: CHUNKED`", head(b"transfer-encoding: CHUNKED") + ONE + LAST, _TURN),
    _served("`Transfer-Encoding` after a tab", head(b"Transfer-Encoding:\tchunked") + ONE + LAST, _TURN),
    _served("`Content-Length` with leading zeros", head(b"Content-Length: 00%d" % len(BODY)) + BODY, _TURN),
    _served(
        "`Content-Length` between tabs and spaces", head(b"Content-Length: \t%d \t" % len(BODY)) + BODY, _TURN
    ),
    _served(
        "`Content_Length` and `Transfer_Encoding`, which are dropped",
        sized(b"Content_Length: 5", b"transfer_encoding: chunked"),
        _TURN,
    ),
    _served("an API key spelled `X_Api_Key`, which is dropped", head(b"X_Api_Key: k", start=GET), _THING),
    _served(
        "a body of no length",
        head(b"Content-Length: 0", start=b"POST /v1/thing HTTP/1.1"),
        Seen("POST /v1/thing HTTP/1.1"),
    ),
    _served(
        "an empty chunked body",
        chunks(LAST, start=b"POST /v1/thing HTTP/1.1"),
        Seen("POST /v1/thing HTTP/1.1"),
    ),
    _served(
        "a POST without any length", head(start=b"POST /v1/thing HTTP/1.1"), Seen("POST /v1/thing HTTP/1.1")
    ),
    _served(
        "a body with GET, and a request behind it",
        sized(start=GET, body=HIDDEN) + head(start=GET),
        Seen(THING, HIDDEN),
        _THING,
    ),
    _served(
        "a chunked body with DELETE",
        chunks(ONE + LAST, start=b"DELETE /v1/thing HTTP/1.1"),
        Seen("DELETE /v1/thing HTTP/1.1", BODY),
    ),
    _served(
        "`HEAD`", head(start=b"HEAD /v1/thing HTTP/1.1"), Seen("HEAD /v1/thing HTTP/1.1"), head_only=True
    ),
    _served("HTTP/1.0", sized(start=CHAT[:-1] + b"0"), _TURN, closed=True),
    _served("HTTP/1.0 without `Host`", head(start=GET[:-1] + b"0", host=b""), _THING, closed=True),
    _served(
        "HTTP/1.0 with `Connection: keep-alive`",
        head(b"Connection: keep-alive", start=GET[:-1] + b"0"),
        _THING,
    ),
    _served(
        "HTTP/1.0 with `Expect`, which it does not know",
        sized(b"Expect: 100-continue", start=CHAT[:-1] + b"0"),
        _TURN,
        closed=True,
    ),
    _served("`Connection: close`", sized(b"Connection: close"), _TURN, closed=True),
    _served(
        "`Connection: close`, and a request behind it",
        head(b"Connection: close", start=GET) + HIDDEN,
        _THING,
        closed=True,
    ),
    _served(
        "`Connection: keep-alive, close`",
        head(b"Connection: keep-alive, close", start=GET),
        _THING,
        closed=True,
    ),
    _served(
        "`Upgrade: h2c`, which is not taken up",
        head(
            b"Connection: Upgrade, HTTP2-Settings",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
            b"X-C: 1",
            start=GET,
        ),
        Seen(THING, headers=("x-c: 1",)),
    ),
    _served("`Connection: upgrade` without `Upgrade`", head(b"Connection: upgrade", start=GET), _THING),
    _served(
        "headers named in `Connection`, which are dropped",
        head(b"X-A: 1", b"Connection: X-A, x-b", b"X-B: 1", b"X-C: 1", start=GET),
        Seen(THING, headers=("x-c: 1",)),
    ),
    _served(
        "hop-by-hop headers, which are dropped",
        head(
            b"TE: trailers",
            b"Trailer: X",
            b"Keep-Alive: 5",
            b"Proxy-Connection: keep-alive",
            b"Proxy-Authorization: x",
            start=GET,
        ),
        _THING,
    ),
    _served("`Expect: 100-continue`", sized(b"Expect: 100-continue"), _TURN, interim=True),
    _served(
        "`Expect: 100-Continue` with chunks", chunks(ONE + LAST, b"expect: 100-Continue"), _TURN, interim=True
    ),
    _served("line ends before a request", b"\r\n\r\n" + head(start=GET), _THING),
    _served("a line end after a body", sized() + b"\r\n" + head(start=GET), _TURN, _THING),
    _served(
        "an absolute URL",
        head(start=b"GET http://other:99/v1/thing?a=b HTTP/1.1"),
        Seen("GET /v1/thing?a=b HTTP/1.1"),
    ),
    _served("an absolute URL in capitals", head(start=b"GET HTTPS://OTHER/v1/thing HTTP/1.1"), _THING),
    _served(
        "a query with everything in it",
        head(start=b"GET /v1/thing?a=%2e%2e/../%00&b=?//x HTTP/1.1"),
        Seen("GET /v1/thing?a=%2e%2e/../%00&b=?//x HTTP/1.1"),
    ),
    _served(
        "a target of 8192 bytes",
        head(start=b"GET /v1/" + b"x" * 8188 + b" HTTP/1.1"),
        Seen("GET /v1/" + "x" * 8188 + " HTTP/1.1"),
    ),
    _served("more than one space in the request line", head(start=b"GET  /v1/thing  HTTP/1.1"), _THING),
    _served(
        "empty header values",
        head(b"X-A:", b"X-B: ", b"X-C:\t", b"X-D: 1", start=GET),
        Seen(THING, headers=("x-a: ", "x-b: ", "x-c: ", "x-d: 1")),
    ),
    _served(
        "spaces around a header value", head(b"X-A: \t 1 2 ", start=GET), Seen(THING, headers=("x-a: 1 2 ",))
    ),
    _served(
        "a header value that is not ASCII", head(b"X-A: \xe9", start=GET), Seen(THING, headers=("x-a: é",))
    ),
    _served("a colon in a header value", head(b"X-A:b:c", start=GET), Seen(THING, headers=("x-a: b:c",))),
    _served(
        "a header twice", head(b"X-A: 1", b"x-a: 2", start=GET), Seen(THING, headers=("x-a: 1", "x-a: 2"))
    ),
    _served(
        "255 headers beside `Host`", head(*[b"X: y"] * 255, start=GET), Seen(THING, headers=("x: y",) * 255)
    ),
    _served(
        "a head of nearly 64 KiB",
        head(b"X: " + b"y" * 65_000, start=GET),
        Seen(THING, headers=("x: " + "y" * 65_000,)),
    ),
    _served(
        "a head of 3 KB, byte by byte",
        head(b"X: " + b"y" * 3_000, start=GET),
        Seen(THING, headers=("x: " + "y" * 3_000,)),
        drip=True,
    ),
    _served("three requests at once", sized() + head(start=GET) + chunks(ONE + LAST), _TURN, _THING, _TURN),
    _served(
        "a malformed request behind a good one",
        sized() + b"BAD\r\n\r\n" + HIDDEN,
        _TURN,
        statuses=(200, 400),
        closed=True,
    ),
    _served(
        "a refused request between two good ones",
        sized() + head(start=b"GET /v1/../x HTTP/1.1") + HIDDEN,
        _TURN,
        statuses=(200, 400),
        closed=True,
    ),
    _served(
        "a head over `limits.head` behind a good request",
        head(start=GET) + head(b"X: " + b"y" * 70_000, start=GET),
        _THING,
        statuses=(200, 431),
        closed=True,
    ),
    _served(
        "a head without end behind a good request",
        head(start=GET) + head(b"X: " + b"y" * 400_000, start=GET)[:-4],
        _THING,
        statuses=(200, 431),
        closed=True,
    ),
    _served(
        "a head of nearly 64 KiB behind a large body",
        sized(body=BODY[:-1] + b" " * 200_000 + b"}") + head(b"X: " + b"y" * 65_000, start=GET),
        Seen(TURN, BODY[:-1] + b" " * 200_000 + b"}"),
        Seen(THING, headers=("x: " + "y" * 65_000,)),
    ),
    _served(
        "a bad body between two good ones",
        sized() + sized(body=b"[]") + head(start=GET),
        _TURN,
        _THING,
        statuses=(200, 400, 200),
    ),
    _served(
        "an unknown endpoint between two others",
        head(start=GET) + head(start=b"GET /other HTTP/1.1") + head(start=GET),
        _THING,
        _THING,
        statuses=(200, 404, 200),
    ),
    _served(
        "an escaped slash in a model's name",
        head(start=b"GET /v1/models/org%2Fmodel HTTP/1.1"),
        statuses=(404,),
    ),
    _served(
        "the client closes its sending side after the request", sized(), _TURN, half_close=True, closed=True
    ),
    _served(
        "the client closes its sending side after two requests",
        sized() + head(start=GET),
        _TURN,
        _THING,
        half_close=True,
        closed=True,
    ),
    _served(
        "the client closes its sending side within a request", sized()[:-1], half_close=True, closed=True
    ),
    _served(
        "a field that JSON repeats, as it is",
        sized(body=b'{"model":"m","messages":[],"n":1,"n":2}'),
        Seen(TURN, b'{"model":"m","messages":[],"n":1,"n":2}'),
    ),
    _served(
        "reserved fields repeated and escaped, which are cut out",
        sized(body=b'{"model":"m","priority":1,"messages":[],"\\u0070riority":2,"cache_salt":"a"}'),
        Seen(TURN, b'{"model":"m","messages":[]}'),
    ),
)
