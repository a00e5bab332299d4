"""A request head: checked, split into what the router needs and what goes on to a replica.

llhttp has already refused what is malformed on the wire (both lengths, folded or bare lines, control
characters, spaces before a colon). This module refuses what is well-formed and still must not pass.
"""

from typing import Final, NamedTuple

from router.base.errors import ErrorKind, Refused
from router.dataplane.problems import HttpRefused

# Hop-by-hop, or the router's to say. A client's key never goes on; the replica's own is added.
# `accept-encoding` goes because the router reads answers, and would have to inflate them.
_DROPPED: Final = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-api-key",
        b"x-request-id",
        b"x-session-id",
    }
)

_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"})

_MAX_REQUEST_ID: Final = 128
_REQUEST_ID_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")


class Head(NamedTuple):
    """What a request head says. `forward` holds `name: value\\r\\n` lines, ready to be sent on."""

    method: bytes
    target: bytes
    """Origin form: path and query, as sent."""
    path: str
    version: str
    forward: list[bytes]
    sessions: tuple[tuple[bytes, bytes], ...]
    """Headers that name a session, in the order sent; which one counts is for the policy to say."""
    key: bytes | None
    """The API key: a bearer token, or `x-api-key`."""
    tenant: bytes | None
    """The value of the tenant header where one is trusted."""
    request_id: bytes | None
    content_type: bytes
    has_body: bool
    expects_continue: bool


def read_head(
    method: bytes,
    url: bytes,
    version: str,
    headers: list[tuple[bytes, bytes]],
    *,
    session_headers: frozenset[bytes],
    tenant_header: bytes | None,
) -> Head:
    """Check a head and sort it. Header names come in lower case. Raises `Refused`.

    `session_headers` are the names that any policy looks at, lower case with `-` for `_`. They do not go
    on as they are: the replica gets the keyed hash instead.
    """
    if method not in _METHODS:
        raise HttpRefused(
            501 if method in (b"CONNECT", b"TRACE") else 405,
            f"method {method.decode('latin-1')} is not supported",
            code="method_not_allowed",
        )
    target, path = _target(url)
    forward: list[bytes] = []
    sessions: tuple[tuple[bytes, bytes], ...] = ()
    key = tenant = request_id = None
    content_type = b""
    has_body = expects_continue = False
    hosts = 0
    listed: bytes | None = None
    for name, value in headers:
        if name not in _DROPPED:
            dashed = name.replace(b"_", b"-") if b"_" in name else name
            if dashed in session_headers:
                if value:
                    sessions += ((dashed, value),)
                continue
            if name == tenant_header:
                tenant = value
                continue
            if name == b"content-type":
                content_type = value
            forward.append(b"%b: %b\r\n" % (name, value))
        elif name == b"content-length":
            has_body = has_body or value.strip() != b"0"
        elif name == b"x-session-id":
            if value and name in session_headers:
                sessions += ((name, value),)
        elif name == b"authorization":
            if value[:7].lower() == b"bearer ":
                key = value[7:].strip()
        elif name == b"x-api-key":
            key = key or value
        elif name == b"x-request-id":
            request_id = value
        elif name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise HttpRefused(
                    501,
                    "the only transfer encoding that is understood is 'chunked'",
                    code="unsupported_transfer_encoding",
                )
            has_body = True
        elif name == b"expect":
            if value.strip().lower() != b"100-continue":
                raise HttpRefused(
                    417, "the only expectation that is met is '100-continue'", code="expectation"
                )
            expects_continue = version == "1.1"
        elif name == b"upgrade":
            raise HttpRefused(
                501, "protocol upgrades (WebSocket, /v1/realtime) are not supported", code="upgrade"
            )
        elif name == b"connection":
            listed = value
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise Refused(ErrorKind.BAD_REQUEST, f"a request must have exactly one Host header; this has {hosts}")
    if listed is not None and (extra := _named(listed)):
        forward = [line for line in forward if line[: line.index(b":")] not in extra]
    if request_id is not None and not (
        0 < len(request_id) <= _MAX_REQUEST_ID and _REQUEST_ID_BYTES.issuperset(request_id)
    ):
        # It becomes part of the engine's own ids and of log lines, so only a plain one is kept.
        request_id = None
    return Head(
        method,
        target,
        path,
        version,
        forward,
        sessions,
        key,
        tenant,
        request_id,
        content_type,
        has_body,
        expects_continue,
    )


def _named(connection: bytes) -> frozenset[bytes]:
    """Header names that a Connection header declares hop-by-hop, beyond the usual."""
    lowered = connection.lower()
    if lowered in (b"keep-alive", b"close"):
        return frozenset()
    return frozenset(token.strip() for token in lowered.split(b",")) - {b"keep-alive", b"close", b""}


def _target(url: bytes) -> tuple[bytes, str]:
    """Origin-form target and decoded path. Raises `Refused` for what has no one meaning."""
    if not url.startswith(b"/"):
        scheme, found, rest = url.partition(b"://")
        if not found or scheme.lower() not in (b"http", b"https"):
            raise Refused(ErrorKind.BAD_REQUEST, "the request target must be a path or an http(s) URL")
        slash = rest.find(b"/")
        url = rest[slash:] if slash >= 0 else b"/"
    raw = url.partition(b"?")[0]
    if b"#" in url or b"\\" in raw or b"%" in raw or b"//" in raw or b"/." in raw:
        # No endpoint of vLLM needs any of these, and a router and a server that read them differently
        # would disagree on which endpoint is meant. An id with a dot inside is fine.
        raise Refused(
            ErrorKind.BAD_REQUEST,
            "the path must be plain: no escapes, backslashes, empty or dot segments, and no fragment",
        )
    try:
        return url, raw.decode("ascii")
    except UnicodeDecodeError:
        raise Refused(ErrorKind.BAD_REQUEST, "the path must be ASCII") from None
