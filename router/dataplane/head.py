"""A request head: checked, split into what the router needs and what goes on to a replica.

llhttp has already refused what is malformed on the wire (both lengths, folded or bare lines, control
characters, spaces before a colon). This module refuses what is well-formed and still must not pass.
"""

import re
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from router.base.errors import ErrorKind, Refused
from router.dataplane.problems import HttpRefused

# Hop-by-hop, or the router's to say. A client's key never goes on; the replica's own is added.
# `accept-encoding` goes because the router reads answers, and would have to inflate them.
_DROPPED: Final = (
    b"accept-encoding",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
)

_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"})

MAX_TARGET: Final = 8192
"""Bytes of a request target: what RFC 9110 asks everybody to support at least, and most servers allow."""

MAX_TENANT: Final = 256
"""Bytes of a tenant's name in a header."""

_MAX_HEADERS: Final = 256
# A length of more digits has leading zeros, or is no length that could ever be served.
MAX_DIGITS: Final = 20

_MAX_REQUEST_ID: Final = 128
_REQUEST_ID_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")


_SECONDS: Final = re.compile(rb"[0-9]+(?:\.[0-9]+)?")


class _Kind(Enum):
    """What a header is to the router. Those without a kind go on as they are."""

    DROP = auto()
    HOST = auto()
    LENGTH = auto()
    TYPE = auto()
    AUTHORIZATION = auto()
    KEY = auto()
    REQUEST_ID = auto()
    ENCODING = auto()
    EXPECT = auto()
    UPGRADE = auto()
    CONNECTION = auto()
    SESSION = auto()
    TENANT = auto()
    PRIORITY = auto()
    PATIENCE = auto()


# A member looked up on its class costs as much as the comparison; these are in nearly every head.
_TYPE: Final = _Kind.TYPE
_HOST: Final = _Kind.HOST
_LENGTH: Final = _Kind.LENGTH
_SESSION: Final = _Kind.SESSION

# What is remembered of names and targets is bounded in number and in length, whatever clients send.
_MAX_TARGETS: Final = 1024
_MAX_NAMES: Final = 4096
_MAX_REMEMBERED: Final = 128

_MODEL: Final = b"/v1/models/"


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
    length: int
    """Content-Length; 0 where there is none."""
    expects_continue: bool
    priority: bytes | None = None
    """What the client asks for in `X-Homing-Priority`."""
    patience_s: float | None = None
    """For how long the client waits for an answer, as its SDK says; `None` = it does not."""


class HeadReader:
    """Checks heads and sorts them, with one look-up for each header.

    `session_headers` are the names that any policy takes a session id from, in lower case; `-` and `_` are
    the same in them. They do not go on as they are: the replica gets the keyed hash instead.
    `tenant_header` names the tenant where it is trusted, and is dropped like a key.
    """

    __slots__ = ("_kinds", "_lines", "_session_names", "_targets")

    def __init__(self, session_headers: Iterable[bytes], tenant_header: bytes | None) -> None:
        self._kinds = {
            **dict.fromkeys(_DROPPED, _Kind.DROP),
            b"host": _Kind.HOST,
            b"content-length": _Kind.LENGTH,
            b"content-type": _Kind.TYPE,
            b"authorization": _Kind.AUTHORIZATION,
            b"x-api-key": _Kind.KEY,
            b"x-request-id": _Kind.REQUEST_ID,
            b"transfer-encoding": _Kind.ENCODING,
            b"expect": _Kind.EXPECT,
            b"upgrade": _Kind.UPGRADE,
            b"connection": _Kind.CONNECTION,
            b"x-homing-priority": _Kind.PRIORITY,
            # The OpenAI and Anthropic SDKs say how long they wait, in seconds.
            b"x-stainless-timeout": _Kind.PATIENCE,
            b"x-stainless-read-timeout": _Kind.PATIENCE,
        }
        self._session_names = {b"x-session-id": b""}
        for name in session_headers:
            self._session_names.update(dict.fromkeys(_spellings(name), name))
        self._kinds.update(dict.fromkeys(self._session_names, _Kind.SESSION))
        if tenant_header is not None:
            self._kinds[tenant_header] = _Kind.TENANT
        # Clients spell few names and name few targets: each is looked at once. By name as sent, how the
        # line of a header begins that goes on.
        self._lines: dict[bytes, bytes] = {}
        self._targets: dict[bytes, tuple[bytes, str]] = {}

    def read(self, method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> Head:
        """Check a head and sort it. Raises `Refused`."""
        if method not in _METHODS:
            raise HttpRefused(
                501 if method in (b"CONNECT", b"TRACE") else 405,
                f"method {method.decode('latin-1')} is not supported",
                code="method_not_allowed",
            )
        target, path = self._targets.get(url) or self._target(url)
        if len(headers) > _MAX_HEADERS:
            raise HttpRefused(
                431, f"the request has more than {_MAX_HEADERS} headers", code="too_many_headers"
            )
        kinds, lines = self._kinds, self._lines
        forward: list[bytes] = []
        sessions: tuple[tuple[bytes, bytes], ...] = ()
        key = tenant = request_id = listed = priority = patience_s = None
        content_type = b""
        has_body = expects_continue = False
        hosts = length = 0
        for name, value in headers:
            line = lines.get(name)
            if line is not None:
                forward.append(line + value + b"\r\n")
                continue
            kind = kinds.get(name) or self._kind(name)
            if kind is None:
                forward.append(name.lower() + b": " + value + b"\r\n")
            elif kind is _TYPE:
                if content_type:
                    # Servers take the first or the last, and whether a body is read as JSON hangs on it.
                    raise Refused(ErrorKind.BAD_REQUEST, "the request has more than one Content-Type")
                content_type = value
                forward.append(b"content-type: " + value + b"\r\n")
            elif kind is _HOST:
                hosts += 1
            elif kind is _LENGTH:
                if len(value) > MAX_DIGITS:
                    raise Refused(ErrorKind.BAD_REQUEST, "the Content-Length has too many digits")
                length = int(value)
                has_body = has_body or length > 0
            elif kind is _SESSION:
                # llhttp leaves the spaces after a value in it.
                if (value := value.strip()) and (canonical := self._session_names[name.lower()]):
                    sessions += ((canonical, value),)
            elif kind is _Kind.AUTHORIZATION:
                if value[:7].lower() == b"bearer ":
                    key = value[7:].strip()
            elif kind is _Kind.CONNECTION:
                listed = value if listed is None else listed + b"," + value
            elif kind is _Kind.KEY:
                key = key or value.strip()
            elif kind is _Kind.REQUEST_ID:
                request_id = value.strip()
            elif kind is _Kind.TENANT:
                if tenant is not None:
                    raise Refused(ErrorKind.BAD_REQUEST, "the header that names the tenant is repeated")
                tenant = value.strip()
                if len(tenant) > MAX_TENANT:
                    raise Refused(ErrorKind.BAD_REQUEST, f"the tenant's name is over {MAX_TENANT} bytes")
            elif kind is _Kind.PATIENCE:
                patience_s = _seconds(value) or patience_s
                forward.append(name.lower() + b": " + value + b"\r\n")
            elif kind is _Kind.PRIORITY:
                priority = value.strip()
            elif kind is _Kind.ENCODING:
                if version != "1.1":
                    raise Refused(ErrorKind.BAD_REQUEST, f"HTTP/{version} knows no Transfer-Encoding")
                if value.strip().lower() != b"chunked":
                    raise HttpRefused(
                        501,
                        "the only transfer encoding that is understood is 'chunked'",
                        code="unsupported_transfer_encoding",
                    )
                has_body = True
            elif kind is _Kind.EXPECT:
                if value.strip().lower() != b"100-continue":
                    raise HttpRefused(
                        417, "the only expectation that is met is '100-continue'", code="expectation"
                    )
                expects_continue = version == "1.1"
            elif kind is _Kind.UPGRADE:
                raise HttpRefused(
                    501, "protocol upgrades (WebSocket, /v1/realtime) are not supported", code="upgrade"
                )
        if hosts != 1 or version != "1.1":
            _check_version(version, hosts)
        if listed is not None and (extra := listed_in(listed)):
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
            length,
            expects_continue,
            priority,
            patience_s,
        )

    def _kind(self, name: bytes) -> _Kind | None:
        """The kind of a header, however it is spelled; `None` for one that goes on as it is."""
        lowered = name.lower()
        kind = self._kinds.get(lowered)
        if kind is None and self._kinds.get(lowered.replace(b"_", b"-")) is not None:
            # Servers that hand headers on as variables read `content_length` as `content-length`.
            kind = _Kind.DROP
        if len(name) <= _MAX_REMEMBERED and len(self._lines) + len(self._kinds) < _MAX_NAMES:
            if kind is None:
                self._lines[name] = lowered + b": "
            else:
                self._kinds[name] = kind
        return kind

    def _target(self, url: bytes) -> tuple[bytes, str]:
        target = _target(url)
        if len(url) <= _MAX_REMEMBERED and len(self._targets) < _MAX_TARGETS and b"?" not in url:
            self._targets[url] = target
        return target


def _seconds(value: bytes) -> float | None:
    """A time as an SDK writes it; `None` for anything else, which goes on all the same."""
    text = value.strip()
    if len(text) > MAX_DIGITS or _SECONDS.fullmatch(text) is None:
        return None
    return float(text) or None


def _spellings(name: bytes) -> list[bytes]:
    """A header name with every choice of `-` and `_`."""
    first, *rest = name.replace(b"_", b"-").split(b"-")
    spelled = [first]
    for part in rest:
        spelled = [before + joint + part for before in spelled for joint in (b"-", b"_")]
    return spelled


def listed_in(connection: bytes) -> frozenset[bytes]:
    """Header names that a Connection header declares hop-by-hop, beyond the usual."""
    lowered = connection.lower()
    if lowered in (b"keep-alive", b"close"):
        return frozenset()
    return frozenset(token.strip() for token in lowered.split(b",")) - {b"keep-alive", b"close", b""}


def _check_version(version: str, hosts: int) -> None:
    """Refuse versions other than 1.0 and 1.1, and a number of Host headers that it forbids."""
    if version not in ("1.0", "1.1"):
        raise HttpRefused(505, "this is served over HTTP/1.1 and HTTP/1.0", code="http_version")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise Refused(ErrorKind.BAD_REQUEST, f"a request must have exactly one Host header; this has {hosts}")


def _target(url: bytes) -> tuple[bytes, str]:
    """Origin-form target and decoded path. Raises `Refused` for what has no one meaning."""
    if len(url) > MAX_TARGET:
        raise target_too_long()
    if not url.startswith(b"/"):
        url = _origin_form(url)
    raw = url.partition(b"?")[0]
    if raw.startswith(_MODEL):
        # Answered here, never sent on: a model's name may hold a slash, which clients escape.
        raw = unquote_to_bytes(raw)
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


def _origin_form(url: bytes) -> bytes:
    """Path and query of an absolute URL. Raises `Refused` for other schemes and for none."""
    scheme, found, rest = url.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        raise Refused(ErrorKind.BAD_REQUEST, "the request target must be a path or an http(s) URL")
    end = min(at for at in (rest.find(b"/"), rest.find(b"?"), len(rest)) if at >= 0)
    if end == 0 or b"@" in rest[:end]:
        raise Refused(ErrorKind.BAD_REQUEST, "the request target must name a host, and no user")
    return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]


def target_too_long() -> HttpRefused:
    """The refusal of a request whose target is over the limit."""
    return HttpRefused(414, f"the request target is over {MAX_TARGET} bytes", code="target_too_long")
