"""Requests that are refused before any replica sees them."""

from router.dataplane.limits import Limits
from support.strictness.cases import BODY, CHAT, GET, HIDDEN, HOST, LAST, Case, chunks, head, sized


def _refused(name: str, sent: bytes, status: int = 400, *, closed: bool = True, **more: object) -> Case:
    return Case(name=name, sent=sent, statuses=(status,), closed=closed, **more)  # type: ignore[arg-type]


def _json(name: str, body: bytes, **more: object) -> Case:
    """A body in good framing that is no good: the connection lives on."""
    return _refused(name, sized(b"Content-Type: application/json", body=body), closed=False, **more)


REFUSED: tuple[Case, ...] = (
    # --- where a body ends
    _refused(
        "both lengths, `Content-Length` first",
        head(b"Content-Length: 6", b"Transfer-Encoding: chunked") + LAST + HIDDEN,
    ),
    _refused(
        "both lengths, `Transfer-Encoding` first",
        head(b"Transfer-Encoding: chunked", b"Content-Length: 6") + LAST + HIDDEN,
    ),
    _refused("`Content-Length` twice, equal", head(b"Content-Length: 2", b"Content-Length: 2") + b"{}"),
    _refused(
        "`Content-Length` twice, different",
        head(b"Content-Length: 2", b"Content-Length: 50") + b"{}" + HIDDEN,
    ),
    _refused("`Content-Length` as a list", head(b"Content-Length: 2, 2") + b"{}"),
    _refused("`Content-Length: +2`", head(b"Content-Length: +2") + b"{}"),
    _refused("`Content-Length: -2`", head(b"Content-Length: -2") + b"{}"),
    _refused("`Content-Length: 0x2`", head(b"Content-Length: 0x2") + b"{}"),
    _refused("`Content-Length: 1_0`", head(b"Content-Length: 1_0") + b"{}12345678"),
    _refused("`Content-Length: 2.0`", head(b"Content-Length: 2.0") + b"{}"),
    _refused("`Content-Length: 2 2`", head(b"Content-Length: 2 2") + b"{}"),
    _refused("`Content-Length` in other digits than ASCII", head("Content-Length: ٢".encode()) + b"{}"),
    _refused("`Content-Length` empty", head(b"Content-Length:") + b"{}"),
    _refused("`Content-Length` over 64 bits", head(b"Content-Length: 18446744073709551618") + b"{}"),
    _refused(
        "`Content-Length` of 5000 zeros and a 2", head(b"Content-Length: " + b"0" * 5000 + b"2") + b"{}"
    ),
    _refused("`Content-Length : 2`, a space before the colon", head(b"Content-Length : 2") + b"{}"),
    _refused("`Transfer-Encoding: xchunked`", head(b"Transfer-Encoding: xchunked") + LAST, 501),
    _refused("`Transfer-Encoding: chunked, identity`", head(b"Transfer-Encoding: chunked, identity") + LAST),
    _refused("`Transfer-Encoding: identity`", head(b"Transfer-Encoding: identity") + LAST, 501),
    _refused("`Transfer-Encoding: gzip`", head(b"Transfer-Encoding: gzip") + LAST, 501),
    _refused("`Transfer-Encoding: gzip, chunked`", head(b"Transfer-Encoding: gzip, chunked") + LAST, 501),
    _refused(
        "`Transfer-Encoding: chunked` twice",
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + LAST,
    ),
    _refused("`Transfer-Encoding: chunked, chunked`", head(b"Transfer-Encoding: chunked, chunked") + LAST),
    _refused('`Transfer-Encoding: "chunked"`, quoted', head(b'Transfer-Encoding: "chunked"') + LAST, 501),
    _refused("`Transfer-Encoding: chunked;q=1`", head(b"Transfer-Encoding: chunked;q=1") + LAST, 501),
    _refused("`Transfer-Encoding` empty", head(b"Transfer-Encoding:") + LAST),
    _refused("`Transfer-Encoding: chunked` and a tab", head(b"Transfer-Encoding: chunked\t") + LAST),
    _refused(
        "`Transfer-Encoding: chunked` after a vertical tab", head(b"Transfer-Encoding: \x0bchunked") + LAST
    ),
    _refused("`Transfer-Encoding` folded", head(b"Transfer-Encoding:", b" chunked") + LAST),
    _refused(
        "`Transfer-Encoding` in HTTP/1.0", head(b"Transfer-Encoding: chunked", start=CHAT[:-1] + b"0") + LAST
    ),
    # --- chunks
    _refused("chunk size `+2`", chunks(b"+2\r\n{}\r\n" + LAST)),
    _refused("chunk size `-2`", chunks(b"-2\r\n{}\r\n" + LAST)),
    _refused("chunk size `0x2`", chunks(b"0x2\r\n{}\r\n" + LAST)),
    _refused("chunk size `1_0`", chunks(b"1_0\r\n" + b" " * 16 + b"\r\n" + LAST)),
    _refused("chunk size after a space", chunks(b" 2\r\n{}\r\n" + LAST)),
    _refused("chunk size before a space", chunks(b"2 \r\n{}\r\n" + LAST)),
    _refused("chunk size empty", chunks(b"\r\n{}\r\n" + LAST)),
    _refused("chunk size over 64 bits", chunks(b"10000000000000002\r\n{}\r\n" + LAST)),
    _refused("chunk data longer than said", chunks(b"2\r\n{}{}\r\n" + LAST)),
    _refused("chunk data shorter than said", chunks(b"3\r\n{}\r\n" + LAST)),
    _refused("no line end after chunk data", chunks(b"2\r\n{}" + LAST)),
    _refused("chunk extension without a name", chunks(b"2;\r\n{}\r\n" + LAST)),
    _refused("chunk extension with a NUL", chunks(b"2;a=\x00\r\n{}\r\n" + LAST)),
    _refused("chunk extension with an open quote", chunks(b'2;a="\r\n{}\r\n' + LAST)),
    _refused("`Content-Length` in a trailer", chunks(b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n")),
    _refused("a trailer without a colon", chunks(b"2\r\n{}\r\n0\r\n" + HIDDEN)),
    # --- line ends
    _refused("bare LF after the request line", CHAT + b"\n" + HOST + b"\r\n\r\n"),
    _refused("bare LF after a header", GET + b"\r\n" + HOST + b"\nX: 1\r\n\r\n"),
    _refused("bare LF at the end of a head", GET + b"\r\n" + HOST + b"\r\n\n"),
    _refused("bare LF throughout", head(start=GET).replace(b"\r", b"")),
    _refused("bare LF after a chunk size", chunks(b"2\n{}\r\n" + LAST)),
    _refused("bare LF after chunk data", chunks(b"2\r\n{}\n" + LAST)),
    _refused("bare LF after a chunk extension", chunks(b"2;a\n{}\r\n" + LAST)),
    _refused("bare LF after the last chunk", chunks(b"2\r\n{}\r\n0\n\r\n")),
    _refused("bare LF after a trailer", chunks(b"2\r\n{}\r\n0\r\nX: 1\n\r\n")),
    _refused("bare LF at the end of trailers", chunks(b"2\r\n{}\r\n0\r\n\n")),
    _refused("bare CR after the request line", GET + b"\r" + HOST + b"\r\n\r\n"),
    _refused("bare CR in a header name", head(b"X\rY: 1", start=GET)),
    _refused("bare CR in a header value", head(b"X: 1\rY: 2", start=GET)),
    _refused("two CR before an LF", GET + b"\r\n" + HOST + b"\r\r\n\r\n"),
    _refused("bare CR at the end of a head", GET + b"\r\n" + HOST + b"\r\n\rX"),
    _refused("bare CR after chunk data", chunks(b"2\r\n{}\rX" + LAST)),
    _refused("a folded header", head(b"X: 1", b" 2", start=GET)),
    _refused("a header folded by a tab", head(b"X: 1", b"\t2", start=GET)),
    _refused("a space before the first header", GET + b"\r\n " + HOST + b"\r\n\r\n"),
    # --- names and values
    _refused("NUL in a header value", head(b"X: a\x00b", start=GET)),
    _refused("NUL in a header name", head(b"X\x00: a", start=GET)),
    _refused("NUL before the request line", b"\x00" + head(start=GET)),
    *(
        _refused(f"control character 0x{code:02x} in a header value", head(b"X: a%cb" % code, start=GET))
        for code in (0x01, 0x08, 0x0B, 0x0C, 0x1B, 0x7F)
    ),
    _refused("a byte over 0x7f in a header name", head(b"X\xe9: a", start=GET)),
    _refused("a space before the colon", head(b"X : a", start=GET)),
    _refused("a tab before the colon", head(b"X\t: a", start=GET)),
    _refused("a space in a header name", head(b"X Y: a", start=GET)),
    _refused("a quote in a header name", head(b'X"Y: a', start=GET)),
    _refused("an empty header name", head(b": a", start=GET)),
    _refused("a header without a colon", head(b"X", start=GET)),
    _refused("two `Host`", head(HOST, start=GET)),
    _refused("two `Host`, different", head(b"hOST: other", start=GET)),
    _refused("two `Host` in HTTP/1.0", head(HOST, start=GET[:-1] + b"0")),
    _refused("no `Host` in HTTP/1.1", head(start=GET, host=b"")),
    # --- the request line
    _refused("HTTP/0.9", b"GET /v1/thing\r\n\r\n", 505),
    _refused("`HTTP/0.9` as a version", head(start=GET[:-3] + b"0.9"), 505),
    _refused("`HTTP/1.2`", head(start=GET[:-3] + b"1.2")),
    _refused("`HTTP/2.0`", head(start=GET[:-3] + b"2.0"), 505),
    _refused("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    _refused("`HTTP/1.10`", head(start=GET + b"0")),
    _refused("`http/1.1` in lower case", head(start=b"GET /v1/thing http/1.1")),
    _refused("`CONNECT`", head(start=b"CONNECT other:443 HTTP/1.1"), 501),
    _refused("`TRACE`", head(start=b"TRACE /v1/thing HTTP/1.1"), 501),
    _refused("`OPTIONS *`", head(start=b"OPTIONS * HTTP/1.1"), 405),
    _refused("`PROPFIND`, a method of WebDAV", head(start=b"PROPFIND /v1/thing HTTP/1.1"), 405),
    _refused("a method that does not exist", head(start=b"FETCH /v1/thing HTTP/1.1")),
    _refused("a method in lower case", head(start=b"get /v1/thing HTTP/1.1")),
    _refused("a space before the method", b" " + head(start=GET)),
    _refused("a tab for a space", head(start=b"GET\t/v1/thing HTTP/1.1")),
    _refused("a space within the target", head(start=b"GET /v1/thi ng HTTP/1.1")),
    _refused("a space after the version", head(start=GET + b" ")),
    _refused("a NUL in the target", head(start=b"GET /v1/thi\x00ng HTTP/1.1")),
    _refused("a CR in the target", head(start=b"GET /v1/thi\rng HTTP/1.1")),
    _refused("a control character in the query", head(start=b"GET /v1/thing?a=\x01 HTTP/1.1")),
    _refused("a target that is not ASCII", head(start="GET /v1/thïng HTTP/1.1".encode())),
    _refused("a query that is not ASCII", head(start="GET /v1/thing?a=ï HTTP/1.1".encode())),
    _refused("`*` as a target", head(start=b"GET * HTTP/1.1")),
    _refused("a target without a slash", head(start=b"GET v1/thing HTTP/1.1")),
    _refused("dot segments", head(start=b"GET /v1/../v1/thing HTTP/1.1")),
    _refused("dot segments at the end", head(start=b"GET /v1/thing/.. HTTP/1.1")),
    _refused("dot segments with a parameter", head(start=b"GET /v1/..;/thing HTTP/1.1")),
    _refused("dot segments, escaped", head(start=b"GET /v1/%2e%2e/thing HTTP/1.1")),
    _refused("dot segments, escaped, in a model's name", head(start=b"GET /v1/models/%2e%2e/thing HTTP/1.1")),
    _refused("dot segments, escaped twice", head(start=b"GET /v1/models/%252e%252e/thing HTTP/1.1")),
    _refused("a slash, escaped", head(start=b"GET /v1%2fthing HTTP/1.1")),
    _refused("an empty segment", head(start=b"GET //v1/thing HTTP/1.1")),
    _refused("backslashes", head(start=b"GET /v1\\..\\thing HTTP/1.1")),
    _refused("a fragment", head(start=b"GET /v1/thing#part HTTP/1.1")),
    _refused("a URL of another scheme", head(start=b"GET ftp://router/v1/thing HTTP/1.1")),
    _refused("a URL without a host", head(start=b"GET http:///v1/thing HTTP/1.1")),
    _refused("a URL with a user", head(start=b"GET http://user@router/v1/thing HTTP/1.1")),
    _refused(
        "a URL whose only slash is in its query",
        head(start=b"GET http://router?/v1/thing HTTP/1.1"),
        404,
        closed=False,
    ),
    _refused("TLS spoken to a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    # --- what is not done here
    _refused(
        "`Upgrade: websocket`",
        head(b"Connection: Upgrade", b"Upgrade: websocket", start=b"GET /v1/realtime HTTP/1.1"),
        501,
    ),
    _refused("`Upgrade: h2c, websocket`", sized(b"Connection: Upgrade", b"Upgrade: h2c, websocket"), 501),
    _refused("an unknown `Expect`", head(b"Expect: 200-ok", b"Content-Length: 2"), 417),
    # --- sizes and times
    _refused("one header over `limits.head`", head(b"X: " + b"y" * 70_000, start=GET), 431),
    _refused("one header without end", GET + b"\r\n" + HOST + b"\r\nX: " + b"y" * 140_000, 431),
    _refused("many headers over `limits.head`", head(*[b"X: " + b"y" * 500] * 150, start=GET), 431),
    _refused("257 headers", head(*[b"X: y"] * 256, start=GET), 431),
    _refused("a target over 8192 bytes", head(start=b"GET /v1/" + b"x" * 9000 + b" HTTP/1.1"), 414),
    _refused("a target without end", b"GET /v1/" + b"x" * 140_000, 414),
    _refused(
        "`Content-Length` over `limits.body`", head(b"Content-Length: 2001"), 413, limits=Limits(body=2000)
    ),
    _refused(
        "`Content-Length` over `limits.body`, and `Expect: 100-continue`",
        head(b"Expect: 100-continue", b"Content-Length: 2001"),
        413,
        limits=Limits(body=2000),
    ),
    _refused(
        "chunks over `limits.body`",
        chunks(b"3e8\r\n%b\r\n" % (b" " * 1000) * 3),
        413,
        limits=Limits(body=2000),
    ),
    _refused(
        "chunks that say more than 2⁶³ bytes",
        chunks(b"ffffffffffffffff\r\n" + b" " * 3000),
        413,
        limits=Limits(body=2000),
    ),
    _refused("chunk extensions without end", chunks(b"2;a=" + b"b" * 400_000), 413),
    _refused("small chunks with large extensions", chunks(b"1;a=%b\r\n \r\n" % (b"b" * 5000) * 100), 413),
    _refused("trailers without end", chunks(b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 70_000), 413),
    _refused("one trailer without end", chunks(b"2\r\n{}\r\n0\r\nX: " + b"y" * 400_000), 413),
    _refused("a head slower than `limits.head_s`", GET + b"\r\nHost:", 408, limits=Limits(head_s=0.1)),
    _refused("a body slower than `limits.idle`", sized()[:-3], 408, limits=Limits(idle_s=0.1)),
    # --- bodies
    _json("a body that is not JSON", b"model=m"),
    _json("JSON that is cut short", BODY[:-1]),
    _json("JSON with something after it", BODY + b"x"),
    _json("two JSON values", BODY + BODY),
    _json("JSON that is no object", b"[1]"),
    _json("a JSON string", b'"text"'),
    _json("an empty body where there must be one", b""),
    _json("spaces for a body", b"   "),
    _json("JSON nested too deep", b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    _json(
        "JSON nested too deep beside the prompt",
        b'{"model":"m","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ),
    _json("invalid UTF-8", b'{"model":"\xff"}'),
    _json("overlong UTF-8", b'{"model":"\xc0\xaf"}'),
    _json("UTF-16", BODY.decode().encode("utf-16")),
    _json("a byte order mark", b"\xef\xbb\xbf" + BODY),
    _json("half a surrogate pair", b'{"model":"\\ud800"}'),
    _json("a line end within a string", b'{"model":"m\n"}'),
    _json("`NaN`", b'{"model":"m","temperature":NaN}'),
    _json("a comment", b'{"model":"m" /* or n */}'),
    _json("single quotes", b"{'model':'m'}"),
    _json("a trailing comma", b'{"model":"m",}'),
    _json("a model that is no string", b'{"model":5}'),
    _json(
        "reserved fields, where the policy refuses them", b'{"model":"m","priority":1}', refuse_reserved=True
    ),
    _json(
        "reserved fields repeated and escaped, where the policy refuses them",
        b'{"model":"m","\\u0063ache_salt":"a","cache_salt":null}',
        refuse_reserved=True,
    ),
)
