"""From a request to a turn: which policy, which session, which bytes go to the replica.

Knows nothing of connections; the same request gives the same answer.
"""

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, SessionKey, TenantId
from router.base.trace import Trace
from router.base.values import Value
from router.core.plan import Plan, QueueRules
from router.core.request import EMPTY_CHAIN, Turn
from router.core.session import session_key
from router.dataplane.dialects import Dialect, dialect_of
from router.dataplane.head import Head
from router.dataplane.outline import BodyOutline
from router.dataplane.reader import MAX_RESPONSE_ID, RequestReader
from router.dataplane.splice import EXTRA, RESERVED, inserted, rewrite
from router.settings.routes import RouteTable

_RESPONSES: Final = "/v1/responses/"
_COUNT_TOKENS: Final = "/v1/messages/count_tokens"

# Keys are remembered, not secret: an id is hashed once a session rather than once a turn.
_REMEMBERED_KEYS: Final = 65_536
_REMEMBERED_ID: Final = 256
"""A session id of more bytes is hashed at every turn, so that what is remembered stays small."""
_REMEMBERED_SALTS: Final = 4096

_CLAUDE: Final = "x-claude-code-session-id"
_AGENT: Final = b"x-claude-code-agent-id"
_PARENT_AGENT: Final = b"x-claude-code-parent-agent-id"
"""All agents of one Claude Code session send its id. The first names the sub-agent that speaks, the second
the one that started it, where that is a sub-agent too."""
_LAST: Final = b"x-homing-session-end"

# Whose requests vLLM reads a priority from.
_PRIORITISED: Final = frozenset({Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES})
_YES: Final = frozenset({b"true", b"1", b"yes"})


class Wait(Value):
    """What a client says of how its turn may wait in the router."""

    __match_args__ = (
        "priority",
        "patience_s",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        priority: str | None,
        patience_s: float | None,
    ) -> None:
        self.priority: Final = priority
        """One of the policy's."""
        self.patience_s: Final = patience_s
        """For how long the client waits itself; `None` = it does not say."""


class Routed:
    """A request, ready for any replica: between `head_start` and `head_end` goes what names the replica, and
    behind them what `closing` says of the body."""

    __slots__ = (
        "body",
        "dialect",
        "head_end",
        "head_start",
        "hide_usage",
        "length",
        "outline",
        "plan",
        "stores",
        "turn",
        "wait",
    )

    def __init__(
        self,
        turn: Turn,
        plan: int,
        dialect: Dialect | None,
        *,
        hide_usage: bool,
        stores: bool,
        head_start: bytes,
        head_end: bytes,
        body: tuple[bytes | memoryview, ...],
        length: int | None,
        outline: BodyOutline | None,
        wait: Wait | None,
    ) -> None:
        self.turn = turn
        self.plan = plan
        self.dialect = dialect
        self.hide_usage = hide_usage
        """The router asked for the usage of this stream, and the client did not."""
        self.stores = stores
        """The replica may keep its answer under the id in it."""
        self.head_start = head_start
        self.head_end = head_end
        self.body = body
        self.length = length
        """Bytes of the body; `None` where the request has none, and none is said."""
        self.outline = outline
        """What can be told of the prompt's segments while the body is held."""
        self.wait = wait
        """`None` where the policy does not let turns wait in the router."""


def closing(length: int | None, request_id: bytes) -> bytes:
    """The last lines of a request head."""
    if length is None:
        return b"x-request-id: %b\r\n\r\n" % request_id
    return b"content-length: %d\r\nx-request-id: %b\r\n\r\n" % (length, request_id)


def in_session(lines: bytes, routed: SessionKey | None, session: SessionKey | None) -> bytes:
    """The lines of a head, with the session that the turn turned out to be of: it goes on from a stored
    response, and the request does not say whose that is."""
    if routed is not None:
        lines = lines.replace(_session_line(routed), b"")
    return lines + _session_line(session) if session is not None else lines


def _session_line(session: SessionKey) -> bytes:
    return b"x-session-id: %b\r\n" % session.encode("ascii")


class Routing:
    """Makes turns under the policies in force. `secret` keys session ids and cache salts; `keep_bytes` of the
    latest bodies of sessions are kept (`stems`)."""

    def __init__(
        self, plans: Sequence[Plan], routes: RouteTable, *, secret: bytes, keep_bytes: int = 0
    ) -> None:
        self._plans = tuple(plans)
        self._routes = routes
        # One policy needs no routes, and most routers have one.
        self._routed = len(self._plans) > 1
        self._secret = secret
        self._headers = tuple(
            tuple((name.encode("latin-1"), name) for name in plan.session.headers) for plan in plans
        )
        self._parents = tuple(
            tuple(name.encode("latin-1") for name in plan.session.parents) for plan in plans
        )
        self.session_headers = frozenset(
            (
                *(name for headers in self._headers for name, _ in headers),
                *(name for names in self._parents for name in names),
                *(_AGENT, _PARENT_AGENT, _LAST),
            )
        )
        """All header names that say something of a session under any policy."""
        self.default_session_header = plans[0].session.headers[0] if plans[0].session.headers else None
        """The header that the default policy looks at first; `None` if it looks at none."""
        self._readers = tuple(
            RequestReader(
                body_fields=plan.session.body,
                derive=plan.session.derive,
                # The first one reads them all.
                keep_bytes=0 if at else keep_bytes,
            )
            for at, plan in enumerate(plans)
        )
        self._salt = lru_cache(maxsize=_REMEMBERED_SALTS)(lambda tenant: cache_salt(secret, tenant))
        self._key = lru_cache(maxsize=_REMEMBERED_KEYS)(
            lambda tenant, text: session_key(secret, tenant, text)
        )

    def route(self, head: Head, content: bytes, tenant: TenantId, trace: Trace | None = None) -> Routed:
        """Make the turn and the bytes to send. Raises `Refused` for a body that cannot be understood."""
        path = head.path
        method = head.method
        dialect = dialect_of(path) if method == b"POST" else None
        index = 0
        read = None
        session: SessionKey | None = None
        parent: SessionKey | None = None
        source, last = "", False
        if head.sessions:
            session, source, parent, last = self._named(head.sessions, tenant, 0)
        if dialect is not None or (content and _is_json(head)):
            read = self._readers[0].read(path, content, tenant, session)
            if self._routed:
                index = self._routes.match(path, read.model, tenant)
            if index and self._plans[index].session != self._plans[0].session:
                read = self._readers[index].read(path, content, tenant)
        else:
            index = self._routes.match(path, "", tenant)
        plan = self._plans[index]
        if index and head.sessions:
            session, source, parent, last = self._named(head.sessions, tenant, index)
        wait = None if plan.queue is None else _wait(head, plan.queue)
        body: tuple[bytes | memoryview, ...] = (content,) if content else ()
        hide_usage = stores = False
        if read is None:
            turn = Turn(
                path, "", tenant, session, source, EMPTY_CHAIN, _response_in(path), last=last, trace=trace
            )
        else:
            if session is None:
                if read.session_value is not None:
                    source, text = read.session_value
                    session = self._remembered(tenant, text.encode())
                elif read.opening:
                    # Not an id that a client could send: ids are hashed as they are, and this has a prefix
                    # of bytes that no header or JSON string can carry.
                    session, source = self._key(tenant, b"\xff\x00opening:%x" % read.opening), "derived"
            if read.reserved and plan.refuse_reserved:
                raise Refused(
                    ErrorKind.BAD_REQUEST,
                    f"{', '.join(RESERVED)} are set by the router; leave them out of the body, and of its"
                    f" {EXTRA}",
                )
            streams = read.stream and dialect in (Dialect.CHAT, Dialect.COMPLETIONS)
            hide_usage = streams and not read.asks_usage
            stores = read.stores
            turn = Turn(
                path,
                read.model,
                tenant,
                session,
                source,
                read.chain,
                # What a path names is what the replica acts on, whatever the body says.
                read.previous_response_id if dialect is not None else _response_in(path),
                read.stream,
                dialect is not Dialect.TOKENIZE and path != _COUNT_TOKENS,
                parent if parent != session else None,
                last,
                False,
                False,
                trace,
                False,
            )
            body = rewrite(
                content,
                read,
                salt=self.label_of(tenant) or None,
                include_usage=hide_usage,
            )
            if wait is not None and wait.priority is not None and dialect in _PRIORITISED:
                rules = plan.queue
                lead_s = (
                    rules.leads_s[wait.priority] if rules is not None and rules.engine_priorities else 0.0
                )
                if lead_s:
                    # Engines serve the least first, and 0 is what all others have.
                    body = inserted(body, b'"priority":%d' % -round(lead_s))
        lines = head.forward
        if session is not None:
            lines.append(_session_line(session))
        length: int | None = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if not length and not head.has_body and method not in (b"POST", b"PUT", b"PATCH"):
            length = None
        return Routed(
            turn,
            index,
            dialect,
            hide_usage=hide_usage,
            stores=stores,
            head_start=method + b" " + head.target,
            head_end=b"".join(lines),
            body=body,
            length=length,
            outline=read.outline if read is not None else None,
            wait=wait,
        )

    def _named(
        self, sent: tuple[tuple[bytes, bytes], ...], tenant: TenantId, index: int
    ) -> tuple[SessionKey | None, str, SessionKey | None, bool]:
        """From headers: the session, or a sub-agent's own part of it, and the header that names it; the
        session that started it; and whether this is its last turn."""
        session: SessionKey | None = None
        parent: SessionKey | None = None
        source = ""
        for name, shown in self._headers[index]:
            for known, named in sent:
                if known == name:
                    session, source = self._remembered(tenant, named), shown
                    break
            if session is not None:
                break
        if session is not None and len(sent) == 1:
            return session, source, None, False
        values = dict(reversed(sent))
        if source == _CLAUDE and (agent := values.get(_AGENT)):
            whole = values[_CLAUDE.encode()]
            above = values.get(_PARENT_AGENT)
            parent = self._remembered(tenant, _part(whole, above)) if above else session
            session = self._remembered(tenant, _part(whole, agent))
        for name in self._parents[index]:
            if value := values.get(name):
                parent = self._remembered(tenant, value)
                break
        return session, source, parent, values.get(_LAST, b"").lower() in _YES

    def _remembered(self, tenant: TenantId, session_id: bytes) -> SessionKey:
        """`key_of`, quicker the second time."""
        return (self._key if len(session_id) <= _REMEMBERED_ID else self.key_of)(tenant, session_id)

    def label_of(self, tenant: TenantId) -> str:
        """What the replicas, and the KV agents beside them, know a tenant by: its `cache_salt`; "" for the
        open tenant, whose requests carry none."""
        return self._salt(tenant) if tenant != OPEN_TENANT else ""

    def key_of(self, tenant: TenantId, session_id: str | bytes) -> SessionKey:
        """The key under which a client's session id is known here and upstream."""
        return session_key(self._secret, tenant, session_id)


def _part(session_id: bytes, agent: bytes) -> bytes:
    """The id of a sub-agent's part of a session. No client could send it: no header holds such bytes."""
    return b"%b\xff\x00agent:%b" % (session_id, agent)


def cache_salt(secret: bytes, tenant: TenantId) -> str:
    """The tenant's `cache_salt`, so that the engine's own prefix cache keeps tenants apart too."""
    return hmac.new(secret, b"cache_salt\0" + tenant.encode(), hashlib.sha256).hexdigest()[:32]


def _wait(head: Head, rules: QueueRules) -> Wait:
    """How the turn may wait. Raises `Refused` for a priority that the policy does not know."""
    priority = None
    if head.priority is not None:
        priority = head.priority.decode("latin-1")
        if priority not in rules.leads_s:
            raise Refused(
                ErrorKind.BAD_REQUEST,
                f"X-Homing-Priority is {priority[:64]!r}; this policy's priorities are:"
                f" {', '.join(rules.leads_s) or 'none'}",
            )
    return Wait(priority, head.patience_s)


def _is_json(head: Head) -> bool:
    """Whether a server may take a body for JSON: the case of the type does not count, `+json` does, and so
    does none at all, where a body has a meaning."""
    kind = head.content_type.partition(b";")[0].strip().lower()
    if not kind:
        return head.method not in (b"GET", b"HEAD")
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def _response_in(path: str) -> str | None:
    """The stored response that a path names, `/v1/responses/{id}` and what lies below it."""
    if not path.startswith(_RESPONSES):
        return None
    response_id = path[len(_RESPONSES) :].partition("/")[0]
    if len(response_id) > MAX_RESPONSE_ID:
        raise Refused(ErrorKind.NOT_FOUND, f"no response has an id of more than {MAX_RESPONSE_ID} bytes")
    return response_id or None
