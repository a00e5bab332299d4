"""A request head: checked, split into what the router needs and what goes on to a replica.

llhttp has already refused what is malformed on the wire (both lengths, folded or bare lines, control
characters, spaces before a colon). This module refuses what is well-formed and still must not pass.
"""

import re
from collections.abc import Iterable
from typing import Final
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

_ALLOW: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"

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

# What a header is to the router. Plain numbers: one is compared for every header.
_FORWARD: Final = 0
"""It goes on as it is."""
_DROP: Final = 1
_HOST: Final = 2
_LENGTH: Final = 3
_TYPE: Final = 4
_AUTHORIZATION: Final = 5
_KEY: Final = 6
_REQUEST_ID: Final = 7
_ENCODING: Final = 8
_EXPECT: Final = 9
_UPGRADE: Final = 10
_CONNECTION: Final = 11
_SESSION: Final = 12
_TENANT: Final = 13
_PRIORITY: Final = 14
_PATIENCE: Final = 15
_IGNORED: Final = 16
"""Looks like a header that names a session, and is none of any policy's."""
_TRACEPARENT: Final = 17
_TRACESTATE: Final = 18

_CHANGING: Final = (_LENGTH, _SESSION, _REQUEST_ID, _TRACEPARENT, _TRACESTATE)
"""Headers that are another each time on one connection, and do not go on as they are."""

_UNKEPT: Final = (
    _SESSION,
    _AUTHORIZATION,
    _KEY,
    _TENANT,
    _REQUEST_ID,
    _IGNORED,
    _TRACEPARENT,
    _TRACESTATE,
)

# What is remembered of names and targets is bounded in number and in length, whatever clients send. A table
# that is full begins anew: what clients send from then on is worth more than what one of them once sent.
_MAX_TARGETS: Final = 1024
_MAX_NAMES: Final = 4096
_MAX_REMEMBERED: Final = 128
_MAX_LINES: Final = 4096

# Digits of a length that is read without asking how many there may be: a petabyte.
_FEW_DIGITS: Final = 15

_END: Final = b"\r\n\r\n"

_MODEL: Final = b"/v1/models/"
_SPACE: Final = ord(" ")


class Head:
    """What a request head says. `forward` holds `name: value\\r\\n` lines, ready to be sent on."""

    __slots__ = (
        "content_type",
        "expects_continue",
        "forward",
        "has_body",
        "key",
        "length",
        "method",
        "path",
        "patience_s",
        "priority",
        "request_id",
        "sessions",
        "size",
        "target",
        "tenant",
        "traceparent",
        "tracestate",
        "version",
    )

    def __init__(self, method: bytes, target: bytes, path: str, version: str) -> None:
        self.method = method
        self.target = target
        """Origin form: path and query, as sent."""
        self.path = path
        self.version = version
        self.size = 0
        """Its bytes, the empty line at its end included, where it was recognised."""
        self.forward: list[bytes] = []
        self.sessions: tuple[tuple[bytes, bytes], ...] = ()
        """Headers that name a session, in the order sent; which one counts is for the policy to say."""
        self.key: bytes | None = None
        """The API key: a bearer token, or `x-api-key`."""
        self.tenant: bytes | None = None
        """The value of the tenant header where one is trusted."""
        self.request_id: bytes | None = None
        self.content_type = b""
        self.has_body = False
        self.length = 0
        """Content-Length; 0 where there is none."""
        self.expects_continue = False
        self.priority: bytes | None = None
        """What the client asks for in `X-Homing-Priority`."""
        self.patience_s: float | None = None
        """For how long the client waits for an answer, as its SDK says; `None` = it does not."""
        self.traceparent: bytes | None = None
        """Where turns are traced: what the client says of its trace. More than one are no good one."""
        self.tracestate = b""


class _Line:
    """A header line whose meaning does not depend on any other."""

    __slots__ = ("forward", "kind", "name", "value")

    def __init__(self, kind: int, name: bytes, value: bytes, forward: bytes) -> None:
        self.kind = kind
        self.name = name
        """Of a session header: how the policies write it."""
        self.value = value
        self.forward = forward
        """The line to send on; empty where it does not go on."""


class LastHead:
    """What a connection's heads have in common, as far as its last ones tell: a client writes the same lines
    in the same order, and only the values of some are others each time."""

    __slots__ = ("changing", "common", "fixed", "forward", "reader")

    def __init__(self) -> None:
        self.reader: HeadReader | None = None
        """Whose reading it is; of another's it says nothing."""
        self.fixed: list[bytes] = []
        """The bytes before, between and behind the values that change; none where there is no pattern yet."""
        self.changing: list[_Line] = []
        """The lines that these values are of."""
        self.common: Head | None = None
        """What all the other lines say."""
        self.forward = b""
        """Those that go on."""


class HeadReader:
    """Checks heads and sorts them, with one look-up for each header.

    `read` is for heads that a parser has taken apart, whatever they hold. `recognise` takes the bytes of a
    head and reads it where each of its lines can mean one thing only: those of the agents, who send the same
    lines again and again. It knows the names and targets that `read` has seen pass, and no others.

    `session_headers` are the names that any policy takes a session id from, in lower case; `-` and `_` are
    the same in them. They do not go on as they are: the replica gets the keyed hash instead.
    `tenant_header` names the tenant where it is trusted, and is dropped like a key. With `traces` the
    headers of a client's trace do not go on as they are: the replica is told of the router's part in it.
    """

    __slots__ = ("_given", "_kinds", "_lines", "_names", "_seen", "_session_names", "_starts", "_targets")

    def __init__(
        self, session_headers: Iterable[bytes], tenant_header: bytes | None, *, traces: bool = False
    ) -> None:
        self._kinds: dict[bytes, int] = {
            **dict.fromkeys(_DROPPED, _DROP),
            b"host": _HOST,
            b"content-length": _LENGTH,
            b"content-type": _TYPE,
            b"authorization": _AUTHORIZATION,
            b"x-api-key": _KEY,
            b"x-request-id": _REQUEST_ID,
            b"transfer-encoding": _ENCODING,
            b"expect": _EXPECT,
            b"upgrade": _UPGRADE,
            b"connection": _CONNECTION,
            b"x-homing-priority": _PRIORITY,
            # The OpenAI and Anthropic SDKs say how long they wait, in seconds.
            b"x-stainless-timeout": _PATIENCE,
            b"x-stainless-read-timeout": _PATIENCE,
        }
        self._session_names = {b"x-session-id": b""}
        for name in session_headers:
            self._session_names.update(dict.fromkeys(_spellings(name), name))
        self._kinds.update(dict.fromkeys(self._session_names, _SESSION))
        if tenant_header is not None:
            self._kinds[tenant_header] = _TENANT
        if traces:
            self._kinds[b"traceparent"] = _TRACEPARENT
            self._kinds[b"tracestate"] = _TRACESTATE
        self._given = dict(self._kinds)
        # Clients spell few names and name few targets: each is looked at once. By name as sent, how the
        # line of a header begins that goes on.
        self._lines: dict[bytes, bytes] = {}
        # The same and the kinds of all others, for whoever has a name's bytes only.
        self._names: dict[bytes, _Line] = {}
        self._targets: dict[bytes, tuple[bytes, str]] = {}
        # Whole lines as sent: the first ones, and those of headers that are likely to come again.
        self._starts: dict[bytes, tuple[bytes, bytes, str]] = {}
        self._seen: dict[bytes, _Line] = {}

    def read(self, method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> Head:
        """Check a head and sort it. Raises `Refused`."""
        if method not in _METHODS:
            known = method not in (b"CONNECT", b"TRACE")
            raise HttpRefused(
                405 if known else 501,
                f"method {method.decode('latin-1')} is not supported",
                code="method_not_allowed",
                allow=_ALLOW if known else "",
            )
        target, path = self._targets.get(url) or self._target(url)
        if len(headers) > _MAX_HEADERS:
            raise HttpRefused(
                431, f"the request has more than {_MAX_HEADERS} headers", code="too_many_headers"
            )
        kinds, lines = self._kinds, self._lines
        head = Head(method, target, path, version)
        forward = head.forward
        listed: bytes | None = None
        hosts = 0
        for name, value in headers:
            line = lines.get(name)
            if line is not None:
                forward.append(line + value + b"\r\n")
                continue
            kind = kinds.get(name)
            if kind is None:
                kind = self._kind(name)
            if kind == _FORWARD:
                forward.append(name.lower() + b": " + value + b"\r\n")
            elif kind == _TYPE:
                if head.content_type:
                    # Servers take the first or the last, and whether a body is read as JSON hangs on it.
                    raise Refused(ErrorKind.BAD_REQUEST, "the request has more than one Content-Type")
                head.content_type = value
                forward.append(b"content-type: " + value + b"\r\n")
            elif kind == _HOST:
                hosts += 1
            elif kind == _LENGTH:
                if len(value) > MAX_DIGITS:
                    raise Refused(ErrorKind.BAD_REQUEST, "the Content-Length has too many digits")
                head.length = int(value)
                head.has_body = head.has_body or head.length > 0
            elif kind == _SESSION:
                # llhttp leaves the spaces after a value in it.
                if (value := value.strip()) and (canonical := self._session_names[name.lower()]):
                    head.sessions += ((canonical, value),)
            elif kind == _AUTHORIZATION:
                if value[:7].lower() == b"bearer ":
                    head.key = value[7:].strip()
            elif kind == _CONNECTION:
                listed = value if listed is None else listed + b"," + value
            elif kind == _KEY:
                head.key = head.key or value.strip()
            elif kind == _REQUEST_ID:
                head.request_id = value.strip()
            elif kind == _TENANT:
                if head.tenant is not None:
                    raise Refused(ErrorKind.BAD_REQUEST, "the header that names the tenant is repeated")
                head.tenant = value.strip()
                if len(head.tenant) > MAX_TENANT:
                    raise Refused(ErrorKind.BAD_REQUEST, f"the tenant's name is over {MAX_TENANT} bytes")
            elif kind == _PATIENCE:
                head.patience_s = _seconds(value) or head.patience_s
                forward.append(name.lower() + b": " + value + b"\r\n")
            elif kind == _PRIORITY:
                head.priority = value.strip()
            elif kind == _TRACEPARENT:
                _add_traceparent(head, value.strip())
            elif kind == _TRACESTATE:
                _add_tracestate(head, value.strip())
            elif kind == _ENCODING:
                if version != "1.1":
                    raise Refused(ErrorKind.BAD_REQUEST, f"HTTP/{version} knows no Transfer-Encoding")
                if value.strip().lower() != b"chunked":
                    raise HttpRefused(
                        501,
                        "the only transfer encoding that is understood is 'chunked'",
                        code="unsupported_transfer_encoding",
                    )
                head.has_body = True
            elif kind == _EXPECT:
                if value.strip().lower() != b"100-continue":
                    raise HttpRefused(
                        417, "the only expectation that is met is '100-continue'", code="expectation"
                    )
                head.expects_continue = version == "1.1"
            elif kind == _UPGRADE and value.strip().lower() != b"h2c":
                # HTTP/2 is offered by clients that speak HTTP/1.1 as well, and need not be taken up. Who asks
                # for another protocol would not know what to do with an answer in this one.
                raise HttpRefused(
                    501, "protocol upgrades (WebSocket, /v1/realtime) are not supported", code="upgrade"
                )
        if hosts != 1 or version != "1.1":
            _check_version(version, hosts)
        if listed is not None and (extra := listed_in(listed)):
            head.forward = [line for line in forward if line[: line.index(b":")] not in extra]
        if head.request_id is not None and not is_plain_id(head.request_id):
            # It becomes part of the engine's own ids and of log lines, so only a plain one is kept.
            head.request_id = None
        if head.has_body and version == "1.1" and url in self._targets:
            # Without a body it is for the parser anyway.
            if len(self._starts) >= _MAX_TARGETS:
                self._starts.clear()
            self._starts[b"%b %b HTTP/1.1" % (method, url)] = (method, target, path)
        return head

    def recognise(self, data: bytes, limit: int, last: LastHead) -> Head | None:
        """The head that `data` begins with, in `limit` bytes; `None` where that is for a parser to say.
        `last` is what is known of the connection's heads so far, and is told of this one.

        What is answered is what `read` would answer, and never what it would refuse, whichever parser were
        asked: a first line and header names that have passed before, values of printable ASCII after one
        space, a length of digits, one Host, no other encoding, nothing hop-by-hop but `keep-alive`.
        """
        followed = last.reader is self
        if followed and last.fixed:
            again = _again(data, last)
            if again is not None and again.size <= limit:
                return again
        end = data.find(_END, 0, limit)
        if end < 0:
            return None
        lines = data[:end].split(b"\r\n")
        start = self._starts.get(lines[0])
        if start is None or len(lines) > _MAX_HEADERS:
            return None
        head = Head(start[0], start[1], start[2], "1.1")
        head.size = end + len(_END)
        forward, seen = head.forward, self._seen
        meant: list[_Line] = []
        hosts = lengths = 0
        for at in range(1, len(lines)):
            sent = lines[at]
            line = seen.get(sent)
            if line is None:
                line = self._look_at(sent)
                if line is None:
                    return None
            meant.append(line)
            kind = line.kind
            if kind == _FORWARD:
                forward.append(line.forward)
            elif kind == _HOST:
                hosts += 1
            elif kind == _TYPE:
                if head.content_type:
                    return None
                head.content_type = line.value
                forward.append(line.forward)
            elif kind == _LENGTH:
                lengths += 1
                head.length = int(line.value)
                head.has_body = head.length > 0
            elif kind == _SESSION:
                head.sessions += ((line.name, line.value),)
            elif kind == _AUTHORIZATION:
                if line.value[:7].lower() == b"bearer ":
                    head.key = line.value[7:].strip()
            elif kind == _KEY:
                head.key = head.key or line.value
            elif kind == _REQUEST_ID:
                head.request_id = line.value
            elif kind == _TENANT:
                if head.tenant is not None or len(line.value) > MAX_TENANT:
                    return None
                head.tenant = line.value
            elif kind == _PATIENCE:
                head.patience_s = _seconds(line.value) or head.patience_s
                forward.append(line.forward)
            elif kind == _PRIORITY:
                head.priority = line.value
            elif kind == _TRACEPARENT:
                _add_traceparent(head, line.value)
            elif kind == _TRACESTATE:
                _add_tracestate(head, line.value)
            elif kind != _DROP and kind != _IGNORED:
                return None
        if hosts != 1 or lengths > 1:
            return None
        if followed:
            _learn(last, head, lines, meant)
        else:
            # A connection's first head may be its only one, and what another reader made of them is void.
            last.reader, last.fixed = self, []
        if head.request_id is not None and not is_plain_id(head.request_id):
            head.request_id = None
        return head

    def _look_at(self, sent: bytes) -> _Line | None:
        """What a line says that was not seen before, or that is not kept; `None` where a parser is to say."""
        name, colon, value = sent.partition(b": ")
        if not colon or not is_plain_value(value):
            return None
        known = self._names.get(name)
        if known is None:
            known = self._name(name)
        kind, forward = known.kind, b""
        if kind == _FORWARD:
            forward = known.forward + value + b"\r\n"
        elif kind == _LENGTH:
            # Each request has its own.
            return _Line(kind, b"", value, b"") if value.isdigit() and len(value) <= _FEW_DIGITS else None
        elif kind in _UNKEPT:
            # Secrets are not kept, nor is what hardly ever comes again.
            return _Line(kind, known.name, value, b"")
        elif kind in (_TYPE, _PATIENCE):
            forward = name.lower() + b": " + value + b"\r\n"
        elif kind == _CONNECTION or name.lower() == b"proxy-connection":
            if value.lower() != b"keep-alive":
                return None
            kind = _DROP
        elif kind not in (_DROP, _HOST, _PRIORITY):
            return None
        line = _Line(kind, b"", value, forward)
        if len(sent) <= _MAX_REMEMBERED:
            if len(self._seen) >= _MAX_LINES:
                self._seen.clear()
            self._seen[sent] = line
        return line

    def _name(self, name: bytes) -> _Line:
        """What the name of a header says, as sent: its kind, how the policies write that of a session, how a
        line begins that goes on. A name that no parser has passed is for one."""
        prefix = self._lines.get(name)
        kind = _FORWARD if prefix is not None else self._kinds.get(name, _ENCODING)
        canonical = b""
        if kind == _SESSION:
            canonical = self._session_names[name.lower()]
            kind = kind if canonical else _IGNORED
        line = _Line(kind, canonical, b"", prefix or b"")
        if kind != _ENCODING:
            self._names[name] = line
        return line

    def _kind(self, name: bytes) -> int:
        """The kind of a header, however it is spelled."""
        lowered = name.lower()
        kind = self._kinds.get(lowered)
        if kind is None:
            # Servers that hand headers on as variables read `content_length` as `content-length`.
            known = self._kinds.get(lowered.replace(b"_", b"-")) is not None
            kind = _DROP if known else _FORWARD
        if len(name) <= _MAX_REMEMBERED:
            if len(self._lines) + len(self._kinds) >= _MAX_NAMES:
                self._lines.clear()
                self._names.clear()
                self._kinds.clear()
                self._kinds.update(self._given)
            if kind == _FORWARD:
                self._lines[name] = lowered + b": "
            else:
                self._kinds[name] = kind
        return kind

    def _target(self, url: bytes) -> tuple[bytes, str]:
        target = _target(url)
        if len(url) <= _MAX_REMEMBERED and b"?" not in url:
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
                self._starts.clear()
            self._targets[url] = target
        return target


def _learn(last: LastHead, head: Head, lines: list[bytes], meant: list[_Line]) -> None:
    """Make a head that was recognised the pattern for those that follow."""
    fixed: list[bytes] = []
    changing: list[_Line] = []
    same = [lines[0]]
    for sent, line in zip(lines[1:], meant, strict=True):
        if line.kind in _CHANGING:
            fixed.append(b"\r\n".join(same) + b"\r\n" + sent[: len(sent) - len(line.value)])
            changing.append(line)
            same = [b""]
        else:
            same.append(sent)
    fixed.append(b"\r\n".join(same) + _END)
    last.fixed, last.changing, last.common = fixed, changing, head
    last.forward = b"".join(head.forward)


def _again(data: bytes, last: LastHead) -> Head | None:
    """The head that `data` begins with, where it differs from the connection's last ones in nothing but the
    values that change, and these are as plain as they have to be."""
    common, fixed, changing = last.common, last.fixed, last.changing
    before = fixed[0]
    if common is None or not data.startswith(before):
        return None
    head = Head(common.method, common.target, common.path, common.version)
    at = len(before)
    for number in range(len(changing)):
        end = data.find(b"\r\n", at, at + _MAX_REMEMBERED)
        if end < 0:
            return None
        value, line, behind = data[at:end], changing[number], fixed[number + 1]
        kind = line.kind
        at = end + len(behind)
        if data[end:at] != behind:
            return None
        if kind == _LENGTH:
            if not value.isdigit() or len(value) > _FEW_DIGITS:
                return None
            head.length = int(value)
            head.has_body = head.length > 0
        elif not is_plain_value(value):
            return None
        elif kind == _SESSION:
            head.sessions += ((line.name, value),)
        elif kind == _REQUEST_ID:
            head.request_id = value if is_plain_id(value) else None
        elif kind == _TRACEPARENT:
            _add_traceparent(head, value)
        else:
            _add_tracestate(head, value)
    head.size = at
    head.content_type = common.content_type
    head.key = common.key
    head.tenant = common.tenant
    head.patience_s = common.patience_s
    head.priority = common.priority
    if last.forward:
        head.forward = [last.forward]
    return head


def _add_traceparent(head: Head, value: bytes) -> None:
    head.traceparent = value if head.traceparent is None else head.traceparent + b"," + value


def _add_tracestate(head: Head, value: bytes) -> None:
    """Several are one list."""
    head.tracestate = head.tracestate + b"," + value if head.tracestate else value


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


def is_plain_value(value: bytes) -> bool:
    """Whether every parser takes a header's value for the same: printable ASCII, with nothing to strip."""
    if not value or value[0] == _SPACE or value[-1] == _SPACE or not value.isascii():
        return False
    return value.decode("ascii").isprintable()


def is_plain_id(request_id: bytes) -> bool:
    """Whether a request id can be kept: short, and of letters, digits and a few marks."""
    if not 0 < len(request_id) <= _MAX_REQUEST_ID:
        return False
    # Most are UUIDs or the like, and the first is the quicker look.
    return request_id.replace(b"-", b"").isalnum() or _REQUEST_ID_BYTES.issuperset(request_id)


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
