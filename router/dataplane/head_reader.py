"""Request heads, checked and sorted: what the router needs of them, and what goes on to a replica.

llhttp has already refused what is malformed on the wire (both lengths, folded or bare lines, control
characters, spaces before a colon). This module refuses what is well-formed and still must not pass.
"""

from collections.abc import Iterable
from typing import Final

from router.base.errors import ErrorKind, Refused
from router.dataplane import header
from router.dataplane.head import (
    FEW_DIGITS,
    MAX_DIGITS,
    MAX_TENANT,
    Head,
    add_traceparent,
    add_tracestate,
    is_plain_id,
    is_plain_value,
    listed_in,
    seconds,
)
from router.dataplane.header import Line
from router.dataplane.last_head import LastHead
from router.dataplane.problems import HttpRefused
from router.dataplane.target import plain_target

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

_MAX_HEADERS: Final = 256

_UNKEPT: Final = (
    header.SESSION,
    header.AUTHORIZATION,
    header.KEY,
    header.TENANT,
    header.REQUEST_ID,
    header.IGNORED,
    header.TRACEPARENT,
    header.TRACESTATE,
)

# What is remembered of names and targets is bounded in number and in length, whatever clients send. A table
# that is full begins anew: what clients send from then on is worth more than what one of them once sent.
_MAX_TARGETS: Final = 1024
_MAX_NAMES: Final = 4096
_MAX_REMEMBERED: Final = 128
_MAX_LINES: Final = 4096

_END: Final = b"\r\n\r\n"


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
            **dict.fromkeys(_DROPPED, header.DROP),
            b"host": header.HOST,
            b"content-length": header.LENGTH,
            b"content-type": header.TYPE,
            b"authorization": header.AUTHORIZATION,
            b"x-api-key": header.KEY,
            b"x-request-id": header.REQUEST_ID,
            b"transfer-encoding": header.ENCODING,
            b"expect": header.EXPECT,
            b"upgrade": header.UPGRADE,
            b"connection": header.CONNECTION,
            b"x-homing-priority": header.PRIORITY,
            # The OpenAI and Anthropic SDKs say how long they wait, in seconds.
            b"x-stainless-timeout": header.PATIENCE,
            b"x-stainless-read-timeout": header.PATIENCE,
        }
        self._session_names = {b"x-session-id": b""}
        for name in session_headers:
            self._session_names.update(dict.fromkeys(_spellings(name), name))
        self._kinds.update(dict.fromkeys(self._session_names, header.SESSION))
        if tenant_header is not None:
            self._kinds[tenant_header] = header.TENANT
        if traces:
            self._kinds[b"traceparent"] = header.TRACEPARENT
            self._kinds[b"tracestate"] = header.TRACESTATE
        self._given = dict(self._kinds)
        # Clients spell few names and name few targets: each is looked at once. By name as sent, how the
        # line of a header begins that goes on.
        self._lines: dict[bytes, bytes] = {}
        # The same and the kinds of all others, for whoever has a name's bytes only.
        self._names: dict[bytes, Line] = {}
        self._targets: dict[bytes, tuple[bytes, str]] = {}
        # Whole lines as sent: the first ones, and those of headers that are likely to come again.
        self._starts: dict[bytes, tuple[bytes, bytes, str]] = {}
        self._seen: dict[bytes, Line] = {}

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
            if kind == header.FORWARD:
                forward.append(name.lower() + b": " + value + b"\r\n")
            elif kind == header.TYPE:
                if head.content_type:
                    # Servers take the first or the last, and whether a body is read as JSON hangs on it.
                    raise Refused(ErrorKind.BAD_REQUEST, "the request has more than one Content-Type")
                head.content_type = value
                forward.append(b"content-type: " + value + b"\r\n")
            elif kind == header.HOST:
                hosts += 1
            elif kind == header.LENGTH:
                if len(value) > MAX_DIGITS:
                    raise Refused(ErrorKind.BAD_REQUEST, "the Content-Length has too many digits")
                head.length = int(value)
                head.has_body = head.has_body or head.length > 0
            elif kind == header.SESSION:
                # llhttp leaves the spaces after a value in it.
                if (value := value.strip()) and (canonical := self._session_names[name.lower()]):
                    head.sessions += ((canonical, value),)
            elif kind == header.AUTHORIZATION:
                if value[:7].lower() == b"bearer ":
                    head.key = value[7:].strip()
            elif kind == header.CONNECTION:
                listed = value if listed is None else listed + b"," + value
            elif kind == header.KEY:
                head.key = head.key or value.strip()
            elif kind == header.REQUEST_ID:
                head.request_id = value.strip()
            elif kind == header.TENANT:
                if head.tenant is not None:
                    raise Refused(ErrorKind.BAD_REQUEST, "the header that names the tenant is repeated")
                head.tenant = value.strip()
                if len(head.tenant) > MAX_TENANT:
                    raise Refused(ErrorKind.BAD_REQUEST, f"the tenant's name is over {MAX_TENANT} bytes")
            elif kind == header.PATIENCE:
                head.patience_s = seconds(value) or head.patience_s
                forward.append(name.lower() + b": " + value + b"\r\n")
            elif kind == header.PRIORITY:
                head.priority = value.strip()
            elif kind == header.TRACEPARENT:
                add_traceparent(head, value.strip())
            elif kind == header.TRACESTATE:
                add_tracestate(head, value.strip())
            elif kind == header.ENCODING:
                if version != "1.1":
                    raise Refused(ErrorKind.BAD_REQUEST, f"HTTP/{version} knows no Transfer-Encoding")
                if value.strip().lower() != b"chunked":
                    raise HttpRefused(
                        501,
                        "the only transfer encoding that is understood is 'chunked'",
                        code="unsupported_transfer_encoding",
                    )
                head.has_body = True
            elif kind == header.EXPECT:
                if value.strip().lower() != b"100-continue":
                    raise HttpRefused(
                        417, "the only expectation that is met is '100-continue'", code="expectation"
                    )
                head.expects_continue = version == "1.1"
            elif kind == header.UPGRADE and value.strip().lower() != b"h2c":
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
            again = last.again(data)
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
        meant: list[Line] = []
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
            if kind == header.FORWARD:
                forward.append(line.forward)
            elif kind == header.HOST:
                hosts += 1
            elif kind == header.TYPE:
                if head.content_type:
                    return None
                head.content_type = line.value
                forward.append(line.forward)
            elif kind == header.LENGTH:
                lengths += 1
                head.length = int(line.value)
                head.has_body = head.length > 0
            elif kind == header.SESSION:
                head.sessions += ((line.name, line.value),)
            elif kind == header.AUTHORIZATION:
                if line.value[:7].lower() == b"bearer ":
                    head.key = line.value[7:].strip()
            elif kind == header.KEY:
                head.key = head.key or line.value
            elif kind == header.REQUEST_ID:
                head.request_id = line.value
            elif kind == header.TENANT:
                if head.tenant is not None or len(line.value) > MAX_TENANT:
                    return None
                head.tenant = line.value
            elif kind == header.PATIENCE:
                head.patience_s = seconds(line.value) or head.patience_s
                forward.append(line.forward)
            elif kind == header.PRIORITY:
                head.priority = line.value
            elif kind == header.TRACEPARENT:
                add_traceparent(head, line.value)
            elif kind == header.TRACESTATE:
                add_tracestate(head, line.value)
            elif kind != header.DROP and kind != header.IGNORED:
                return None
        if hosts != 1 or lengths > 1:
            return None
        if followed:
            last.learn(head, lines, meant)
        else:
            # A connection's first head may be its only one, and what another reader made of them is void.
            last.reader, last.fixed = self, []
        if head.request_id is not None and not is_plain_id(head.request_id):
            head.request_id = None
        return head

    def _look_at(self, sent: bytes) -> Line | None:
        """What a line says that was not seen before, or that is not kept; `None` where a parser is to say."""
        name, colon, value = sent.partition(b": ")
        if not colon or not is_plain_value(value):
            return None
        known = self._names.get(name)
        if known is None:
            known = self._name(name)
        kind, forward = known.kind, b""
        if kind == header.FORWARD:
            forward = known.forward + value + b"\r\n"
        elif kind == header.LENGTH:
            # Each request has its own.
            return Line(kind, b"", value, b"") if value.isdigit() and len(value) <= FEW_DIGITS else None
        elif kind in _UNKEPT:
            # Secrets are not kept, nor is what hardly ever comes again.
            return Line(kind, known.name, value, b"")
        elif kind in (header.TYPE, header.PATIENCE):
            forward = name.lower() + b": " + value + b"\r\n"
        elif kind == header.CONNECTION or name.lower() == b"proxy-connection":
            if value.lower() != b"keep-alive":
                return None
            kind = header.DROP
        elif kind not in (header.DROP, header.HOST, header.PRIORITY):
            return None
        line = Line(kind, b"", value, forward)
        if len(sent) <= _MAX_REMEMBERED:
            if len(self._seen) >= _MAX_LINES:
                self._seen.clear()
            self._seen[sent] = line
        return line

    def _name(self, name: bytes) -> Line:
        """What the name of a header says, as sent: its kind, how the policies write that of a session, how a
        line begins that goes on. A name that no parser has passed is for one."""
        prefix = self._lines.get(name)
        kind = header.FORWARD if prefix is not None else self._kinds.get(name, header.ENCODING)
        canonical = b""
        if kind == header.SESSION:
            canonical = self._session_names[name.lower()]
            kind = kind if canonical else header.IGNORED
        line = Line(kind, canonical, b"", prefix or b"")
        if kind != header.ENCODING:
            self._names[name] = line
        return line

    def _kind(self, name: bytes) -> int:
        """The kind of a header, however it is spelled."""
        lowered = name.lower()
        kind = self._kinds.get(lowered)
        if kind is None:
            # Servers that hand headers on as variables read `content_length` as `content-length`.
            known = self._kinds.get(lowered.replace(b"_", b"-")) is not None
            kind = header.DROP if known else header.FORWARD
        if len(name) <= _MAX_REMEMBERED:
            if len(self._lines) + len(self._kinds) >= _MAX_NAMES:
                self._lines.clear()
                self._names.clear()
                self._kinds.clear()
                self._kinds.update(self._given)
            if kind == header.FORWARD:
                self._lines[name] = lowered + b": "
            else:
                self._kinds[name] = kind
        return kind

    def _target(self, url: bytes) -> tuple[bytes, str]:
        target = plain_target(url)
        if len(url) <= _MAX_REMEMBERED and b"?" not in url:
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
                self._starts.clear()
            self._targets[url] = target
        return target


def _spellings(name: bytes) -> list[bytes]:
    """A header name with every choice of `-` and `_`."""
    first, *rest = name.replace(b"_", b"-").split(b"-")
    spelled = [first]
    for part in rest:
        spelled = [before + joint + part for before in spelled for joint in (b"-", b"_")]
    return spelled


def _check_version(version: str, hosts: int) -> None:
    """Refuse versions other than 1.0 and 1.1, and a number of Host headers that it forbids."""
    if version not in ("1.0", "1.1"):
        raise HttpRefused(505, "this is served over HTTP/1.1 and HTTP/1.0", code="http_version")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise Refused(ErrorKind.BAD_REQUEST, f"a request must have exactly one Host header; this has {hosts}")
