"""One request, from the moment it is whole to the last byte of its answer.

An exchange is *waiting* while nothing has gone to the client, so that a failed replica can be replaced;
*answering* once bytes have gone out, so that a failure can only be told; then *over*. It holds the ticket
of the running attempt and ends it exactly once, on every path.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId, TenantId
from router.base.system import is_own_shortage, system_words
from router.core.decide import Kind
from router.core.observe import Outcome, Usage
from router.core.queue import Held
from router.core.request import Turn
from router.core.ticket import Ticket
from router.dataplane.answer import StreamReader, read_body
from router.dataplane.answer_head import ResponseHead
from router.dataplane.answering import LAST_CHUNK, Answer
from router.dataplane.departure import INTERIM, LEADING_ZERO
from router.dataplane.dialects import dialect_of, generates
from router.dataplane.head import Head
from router.dataplane.pairs import Handoff, PrefillError
from router.dataplane.problems import body_of, event_of, headers_of, status_line, status_of
from router.dataplane.routing import Routed, closing, in_session
from router.dataplane.splice import inserted
from router.dataplane.upstream import Receiver, UpstreamConnection

if TYPE_CHECKING:
    from router.dataplane.client import ClientConnection
    from router.dataplane.pool import Pool
    from router.dataplane.server import DataPlane

_log = logging.getLogger(__name__)

# Statuses that say that the replica cannot serve now, not that the request is wrong.
_MOVES_ON: Final = frozenset({500, 502, 503, 504})

# What a whole answer says of itself, and the stream that is made of it.
_JSON: Final = b"content-type: application/json"
_EVENTS: Final = b"content-type: text/event-stream; charset=utf-8"

_KIND_LINES: Final = {
    kind: f"x-homing-decision: {kind.value}\r\nx-request-id: ".encode("ascii") for kind in Kind
}

# A server that closed an idle connection answers a request on it with a reset, within a round trip. One
# that breaks later than this had the request in hand.
_STALE_S: Final = 0.1

# Servers close connections that have been idle for seconds, 5 s with uvicorn. One that breaks on a connection
# that it used so lately did not close it for that.
_JUST_USED_S: Final = 1.0


class Phase(Enum):
    """How far an exchange is."""

    WAITING = 1
    ANSWERING = 2
    OVER = 3


class Exchange(Receiver):
    """Relays one request to a replica and the answer to its client."""

    __slots__ = (
        "_answer",
        "_began",
        "_client",
        "_content",
        "_failed",
        "_handoff",
        "_head",
        "_held",
        "_in_hand",
        "_keep",
        "_last_used",
        "_opening",
        "_outcomes",
        "_plane",
        "_pool",
        "_prepared",
        "_refusal",
        "_request_id",
        "_resent",
        "_routed",
        "_sent_at",
        "_tenant",
        "_ticket",
        "_upstream",
        "held",
        "phase",
    )

    def __init__(
        self,
        plane: "DataPlane",
        client: "ClientConnection",
        head: Head,
        tenant: TenantId | None,
        content: bytes,
    ) -> None:
        """`tenant` is `None` where it was not asked for at the head."""
        self._plane = plane
        self._client = client
        self._head = head
        self._tenant = tenant
        self._content: bytes | None = content
        self.held = len(content)
        """Bytes of the request, and of an answer that is gathered whole, that count against the budget until
        the answer begins."""
        self.phase = Phase.WAITING
        self._keep = True
        self._request_id = b""
        self._routed: Routed | None = None
        self._handoff: Handoff | None = None
        """What a prefill replica hands to the one that answers; `None` where one does all."""
        self._held: Held | None = None
        """While the turn waits in the router for a replica."""
        self._ticket: Ticket | None = None
        self._pool: Pool | None = None
        self._upstream: UpstreamConnection | None = None
        self._opening: asyncio.Task[object] | None = None
        self._began = 0.0
        """When the request was whole; 0 once it has gone to a replica."""
        self._sent_at = 0.0
        self._last_used: float | None = None
        self._resent = False
        self._in_hand = False
        self._failed: tuple[ReplicaId, ...] = ()
        self._outcomes: tuple[Outcome, ...] = ()
        self._refusal: Refused | None = None
        """What the client was told instead of an answer, or of its end."""
        self._answer: Answer | None = None
        """Of the running attempt, once its head is here."""
        self._prepared: bytes | None = None
        """A head that has yet to go to the client."""

    # --- towards the replica ------------------------------------------------------------------------

    def start(self) -> None:
        """Answer the request here, or route it and send it on."""
        plane, head = self._plane, self._head
        self._began = plane.now()
        self._request_id = plane.request_id(head.request_id)
        assert self._content is not None
        try:
            tenant = self._tenant if self._tenant is not None else plane.tenant_of(head)
            if dialect_of(head.path) is None:
                local = plane.local.answer(head)
                if local is not None:
                    self._respond(*local)
                    return
            trace = plane.trace_of(head) if plane.traces is not None else None
            self._routed = plane.routing.route(head, self._content, tenant, trace)
            self._content = None
            if plane.pairs is not None:
                self._handoff = plane.pairs.prepare(self._routed)
            self._attempt()
        except Refused as refusal:
            self._refuse(refusal)

    def _attempt(self, ticket: Ticket | None = None) -> None:
        """Choose a replica and send the turn there, or let it wait for one. Raises `Refused`.

        `ticket`: of the replica that it has waited for.
        """
        routed, plane = self._routed, self._plane
        assert routed is not None
        if ticket is None:
            wait = routed.wait
            if wait is None:
                ticket = plane.engine.admit(routed.turn, plane.now(), plan=routed.plan)
            else:
                wait_s = plane.limits.wait_s(wait.patience_s)
                entered = plane.engine.enter(
                    routed.turn,
                    plane.now(),
                    plan=routed.plan,
                    priority=wait.priority,
                    wait_s=wait_s,
                    size=self.held,
                )
                if isinstance(entered, Held):
                    self._held = entered
                    plane.waits(entered, self)
                    if self._handoff is not None and plane.pairs is not None:
                        plane.pairs.render_ahead(self._handoff, routed, entered.chosen[0])
                    return
                ticket = entered
                # Others may have been pushed out for it, and must hear of that.
                plane.dispatch_soon()
        self._ticket = ticket
        self._go()
        if routed.outline is not None:
            plane.watch_chain(ticket, routed.outline)

    def dispatched(self, ticket: Ticket) -> None:
        """The turn has waited, and a replica has room for it."""
        self._held = None
        self._attempt(ticket)

    def waited_in_vain(self, refusal: Refused) -> None:
        """The turn waits no longer, and no replica gets it."""
        self._held = None
        self._refuse(refusal)

    def _go(self) -> None:
        """To the ticket's replica, once its prompt is computed where another one does that."""
        if self._handoff is None or self._ticket is None or self._ticket.decision.pair is None:
            self._dispatch(reuse=True)
            return
        self._client.await_answer()
        self._opening = self._plane.tasks.spawn(self._prefill(self._handoff), name="prefill")

    async def _prefill(self, handoff: Handoff) -> None:
        """Have the prompt computed, then go on; or end the turn where nobody may compute it."""
        pairs, routed, ticket = self._plane.pairs, self._routed, self._ticket
        assert pairs is not None
        assert routed is not None
        assert ticket is not None
        try:
            try:
                await pairs.prefill(handoff, routed, ticket, self._request_id)
            except PrefillError as error:
                self._opening = None
                # The replica that was to answer never had the turn.
                self._give_up(Outcome.CANCELLED, Refused(ErrorKind.UPSTREAM_FAILED, str(error)))
                return
            self._opening = None
            self._dispatch(reuse=True)
        except Exception:  # noqa: BLE001 - nobody waits for this task, and the client must have an answer
            _log.exception("a request failed in the router itself")
            self.fault()

    def _dispatch(self, *, reuse: bool) -> None:
        assert self._ticket is not None
        self._pool = pool = self._plane.pools[self._ticket.decision.replica]
        connection = pool.take() if reuse else None
        if connection is not None:
            self._last_used = connection.idle_since
            self._send(connection)
        else:
            self._last_used = None
            self._opening = self._plane.tasks.spawn(
                self._connect(self._opened), name=f"connect {pool.replica}"
            )

    async def _connect(self, then: Callable[[UpstreamConnection | OSError], None]) -> None:
        """Make a new connection to the replica, or find that there is none to be had, and go on with it."""
        assert self._pool is not None
        try:
            try:
                made: UpstreamConnection | OSError = await self._pool.connect()
            except OSError as error:
                made = error
            self._opening = None
            then(made)
        except Exception:  # noqa: BLE001 - nobody waits for this task, and the client must have an answer
            _log.exception("a request failed in the router itself")
            self.fault()

    def _opened(self, made: UpstreamConnection | OSError) -> None:
        """Send, or count the replica as failed."""
        if isinstance(made, socket.gaierror):
            # Another replica may have an address that needs no name, or one that is known already.
            self._attempt_failed(Outcome.SHORTAGE, f"cannot be reached: {system_words(made)}")
        elif isinstance(made, OSError) and is_own_shortage(made):
            message = f"the router cannot connect to a replica: {system_words(made)}; try again shortly"
            self._give_up(Outcome.SHORTAGE, Refused(ErrorKind.SHORTAGE, message, retry_after_s=1.0))
        elif isinstance(made, OSError):
            outcome = Outcome.DIED if self._resent and self._in_hand else Outcome.CONNECT_FAILED
            self._attempt_failed(outcome, f"cannot be reached: {system_words(made)}")
        else:
            self._send(made)

    def _send(self, connection: UpstreamConnection) -> None:
        routed, pool = self._routed, self._pool
        assert routed is not None
        assert pool is not None
        self._upstream = connection
        self._sent_at = self._plane.now()
        self._client.await_answer()
        body, length = routed.body, routed.length
        ticket = self._ticket
        assert ticket is not None
        handoff, pairs = self._handoff, self._plane.pairs
        if handoff is not None and handoff.params is not None and pairs is not None:
            body = pairs.decode_parts(handoff, body, ticket)
            length = sum(map(len, body))
        elif pool.has_agent and length and generates(routed.dialect) and ticket.turn.computes:
            member = self._plane.hint(ticket, self._request_id)
            if member is not None:
                body = inserted(body, member)
                length = sum(map(len, body))
        lines = routed.head_end
        if ticket.turn.session is not routed.turn.session:
            lines = in_session(lines, routed.turn.session, ticket.turn.session)
        if self._began and self._plane.overhead is not None:
            self._plane.overhead.add(self._sent_at - self._began - ticket.decision.waited_s)
        self._began = 0.0  # a further attempt is the failed replica's doing
        trace = routed.turn.trace
        head = b"".join(
            (
                routed.head_start,
                pool.head_suffix,
                lines,
                b"" if trace is None else trace.lines(ticket.decision.attempt),
                closing(length, self._request_id),
            )
        )
        connection.send(self, (head, *body), head_only=self._head.method == b"HEAD")
        if self._client.write_paused:
            connection.pause()

    # --- from the replica ---------------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        """The response head is here. It goes to the client with the first piece of the body, so that a
        replica that dies between the two can still be replaced."""
        ticket, routed = self._ticket, self._routed
        assert ticket is not None
        assert routed is not None
        assert self._pool is not None
        status = head.status
        if status in _MOVES_ON and self._move_on(Outcome.SERVER_ERROR):
            return
        answer = Answer(
            head,
            routed.dialect,
            bodiless=self._head.method == b"HEAD",
            chunks=self._head.version == "1.1",
            hide_usage=routed.hide_usage,
        )
        if answer.is_strange and self._move_on(Outcome.SERVER_ERROR):
            return
        self._answer = answer
        if answer.ends_with_connection:
            self._keep = False
        decision = ticket.decision
        self._prepared = b"".join(
            (
                status_line(status),
                *head.forward,
                self._pool.answer_line,
                _KIND_LINES[decision.kind],
                self._request_id,
                _waited_line(decision.waited_s) if decision.waited_s else b"\r\n",
                self._handoff.line if self._handoff is not None else b"",
                answer.framing,
            )
        )

    def on_piece(self, piece: bytes) -> None:
        """Some of the response body is here."""
        answer = self._answer
        assert answer is not None
        reader = answer.reader
        if reader is not None:
            piece = reader.feed(piece)
            if not answer.accepted:
                if reader.response_id is not None:
                    self._stored(reader.response_id)
                if reader.saw_content:
                    self._accept(answer)
                elif reader.error is not None and self._prepared is not None:
                    # The status said yes, the stream says no, and nothing has gone out: as with a 5xx.
                    outcome = _outcome_of(reader.error)
                    if outcome is Outcome.SERVER_ERROR and self._move_on(outcome):
                        return
        elif answer.pieces is not None:
            self._client.progress += 1
            self._gather(answer, piece)
            return
        elif not answer.accepted:
            self._accept(answer)
        self._client.progress += 1
        if not piece:
            return
        if self._prepared is not None:
            self._begin()
        self._client.write(answer.framed(piece))

    def _gather(self, answer: Answer, piece: bytes) -> None:
        """Keep a piece of a body that goes on once it is whole, as far as the router may hold it."""
        plane, size, limit = self._plane, len(piece), self._plane.limits.body
        # What one read brings every connection may hold; more of it is counted.
        counts = answer.gathered_bytes > 0
        if counts:
            try:
                plane.hold(size)
            except Refused as refusal:
                self._give_up(Outcome.OVER_LIMIT, refusal)
                return
            self.held += size
        answer.gather(piece, held=counts)
        if answer.gathered_bytes > limit:
            message = f"the replica's answer is over {limit} bytes, the router's limit"
            self._give_up(Outcome.OVER_LIMIT, Refused(ErrorKind.UPSTREAM_FAILED, message))

    def on_chunk(self, data: bytes, begin: int, start: int, end: int) -> None:
        """Some of the response body, framed as the client is to have it: most events of a stream."""
        answer = self._answer
        reader = answer.reader if answer is not None else None
        if (
            reader is None
            or answer is None
            or not answer.accepted
            or not answer.chunked
            or self._prepared is not None
            or not reader.passes(data, start, end)
        ):
            self.on_piece(data[start:end])
            return
        client = self._client
        client.progress += 1
        end += 2
        client.write(data if not begin and end == len(data) else data[begin:end])

    def on_end(self) -> None:
        """The response is complete."""
        self._upstream = None
        answer = self._answer
        assert answer is not None
        usage: Usage | None = None
        response_id: str | None = None
        if answer.reader is not None:
            reader = answer.reader
            rest = reader.end()
            usage, response_id = reader.usage, reader.response_id
            if not reader.finished and reader.error is None:
                self._broken("ended its stream before the end of the answer", Outcome.CUT)
                return
            if rest:
                self._write_rest(answer, rest)
            if self._handoff is not None:
                usage = self._learn_pair(self._handoff, reader)
        elif answer.pieces is not None:
            assert self._routed is not None
            raw = answer.gathered()
            assert self._prepared is not None
            if self._handoff is not None and self._handoff.params is not None:
                whole, usage, response_id = self._take_whole(self._handoff, raw)
            else:
                whole, usage, response_id = read_body(self._routed.dialect, raw)
            self._prepared += b"content-length: %d\r\n" % len(whole)
            self._begin(whole)
        if self._prepared is not None:
            self._begin()
        if answer.chunked:
            self._client.write(LAST_CHUNK)
        status = answer.status
        if status < 300:
            if not answer.accepted:
                self._accept(answer)
            if response_id is not None:
                self._stored(response_id)
        self._over(Outcome.SERVER_ERROR if answer.is_strange else _outcome_of(status), usage)

    def _take_whole(self, handoff: Handoff, raw: bytes) -> tuple[bytes, Usage | None, str | None]:
        """The whole answer `raw` of a replica that had its prompt from another: what of it goes to the
        client, the usage of both replicas, and the id of the stored response."""
        pairs, routed, ticket = self._plane.pairs, self._routed, self._ticket
        assert pairs is not None
        assert routed is not None
        assert ticket is not None
        assert self._prepared is not None
        if handoff.whole:
            self._prepared = self._prepared.replace(_JSON, _EVENTS, 1)
        return pairs.answered(handoff, routed, ticket, raw)

    def _learn_pair(self, handoff: Handoff, reader: StreamReader) -> Usage | None:
        """Take note of the end of a stream whose prompt another replica may have computed; the usage of
        both."""
        pairs, routed, ticket = self._plane.pairs, self._routed, self._ticket
        if pairs is None or routed is None or ticket is None or handoff.params is None:
            return reader.usage
        pairs.streamed(handoff, routed, ticket, reader.offer)
        return pairs.usage(handoff, reader.usage)

    def _write_rest(self, answer: Answer, rest: bytes) -> None:
        """What the reader still held, at the end of the stream."""
        if self._prepared is not None:
            self._begin()
        self._client.write(answer.framed(rest))

    def on_broken(self, why: str, *, answered: bool, taken: bool) -> None:
        """The connection to the replica is gone before the end of the answer."""
        self._upstream = None
        last_used = self._last_used
        if last_used is not None and not answered and not self._resent and self.phase is Phase.WAITING:
            # The replica closed an idle connection as the request was on its way: it goes again. If nobody
            # is there by then, the replica may as well have died of it. A request that was not even taken is
            # no cause of death; for the others the times tell.
            self._resent = True
            sent_at, now = self._sent_at, self._plane.now()
            self._in_hand = taken and (now - sent_at > _STALE_S or sent_at - last_used < _JUST_USED_S)
            self._dispatch(reuse=False)
            return
        # Whether the replica died decides whether the turn may go to another one.
        self._opening = self._plane.tasks.spawn(
            self._connect(lambda made: self._looked_after(made, why)), name="look after a broken replica"
        )

    def _looked_after(self, made: UpstreamConnection | OSError, why: str) -> None:
        """The replica that broke off takes a new connection, or does not; or the router cannot tell."""
        if isinstance(made, UpstreamConnection):
            assert self._pool is not None
            self._pool.put(made)
            self._broken(why, Outcome.CUT)
        else:
            unknown = is_own_shortage(made)
            self._broken(why, Outcome.CUT if unknown else Outcome.DIED)

    def _broken(self, why: str, outcome: Outcome) -> None:
        if self.phase is Phase.WAITING:
            self._attempt_failed(outcome, why)
            return
        assert self._ticket is not None
        refusal = Refused(ErrorKind.UPSTREAM_FAILED, f"replica {self._ticket.decision.replica} {why}")
        self._give_up(outcome, refusal)

    # --- failing ------------------------------------------------------------------------------------

    def _move_on(self, outcome: Outcome) -> bool:
        """End this attempt and begin the next; false if there is none, and the attempt is ended all the
        same."""
        plane, ticket, routed = self._plane, self._ticket, self._routed
        assert ticket is not None
        assert routed is not None
        now = plane.now()
        ticket.end(outcome, now)
        if plane.waiting:
            plane.dispatch_soon()
        self._outcomes += (outcome,)
        self._failed += (ticket.decision.replica,)
        if not plane.engine.may_retry(self._outcomes, now, plan=routed.plan):
            return False
        try:
            following = plane.engine.admit(routed.turn, now, plan=routed.plan, failed=self._failed)
        except Refused:
            return False
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        self._forget_answer()
        following.began = ticket.began
        self._ticket = following
        self._resent = False
        self._go()
        return True

    def _attempt_failed(self, outcome: Outcome, why: str) -> None:
        """Nothing has gone to the client and this replica will not answer: try another, or say so."""
        assert self._ticket is not None
        replica = self._ticket.decision.replica
        if self._move_on(outcome):
            return
        tried = "" if len(self._failed) < 2 else f" (tried: {', '.join(self._failed)})"
        hint = ""
        kind = ErrorKind.UPSTREAM_FAILED
        if outcome is Outcome.DIED:
            kind = ErrorKind.UPSTREAM_DIED
            hint = (
                "; the turn was not tried further, since a prompt that fells engines must not fell them all:"
                " send it again if it is not to blame"
            )
        self._forget_answer()
        message = f"replica {replica} {why}{tried}{hint}"
        if outcome is Outcome.SHORTAGE:
            self._refuse(Refused(ErrorKind.SHORTAGE, message, retry_after_s=1.0))
        else:
            self._refuse(Refused(kind, message))

    def given_up_on(self, replica: ReplicaId, why: str) -> None:
        """The replica answers nobody any more. A turn of which nothing has come may move on: what ails a
        replica that is asked about its health and is silent need not be this turn."""
        ticket, handoff = self._ticket, self._handoff
        if handoff is not None and handoff.leg is not None:
            if handoff.leg.member.id == replica and handoff.call is not None:
                handoff.call.fail(Outcome.CUT, f"does not answer its probes either: {why}")
            return
        if self.phase is Phase.WAITING and ticket is not None and ticket.decision.replica == replica:
            self._leave_replica()
            self._attempt_failed(Outcome.CUT, f"does not answer its probes either: {why}")

    def _forget_answer(self) -> None:
        answer = self._answer
        if answer is not None and answer.held:
            self._plane.give_back(answer.held)
            self.held -= answer.held
        self._answer = None
        self._prepared = None
        self._keep = True

    def timed_out(self, why: str, outcome: Outcome = Outcome.TIMEOUT) -> None:
        """The answer took too long; `why` in words."""
        handoff = self._handoff
        if self._ticket is None:
            where = "the turn still waited for a replica"
        elif handoff is not None and handoff.leg is not None:
            where = f"prefill replica {handoff.leg.member.id}"
            handoff.leg.end(outcome, self._plane.now())
            outcome = Outcome.CANCELLED
        else:
            where = f"replica {self._ticket.decision.replica}"
        self._give_up(outcome, Refused(ErrorKind.UPSTREAM_TIMEOUT, f"{where}: {why}"))

    def _give_up(self, outcome: Outcome, refusal: Refused) -> None:
        """Leave the replica and tell the client: in a response of its own, or in the one that has begun."""
        self._leave_replica()
        if self.phase is Phase.WAITING:
            if self._ticket is not None:
                self._ticket.end(outcome, self._plane.now())
                if self._plane.waiting:
                    self._plane.dispatch_soon()
            self._forget_answer()
            self._refuse(refusal)
            return
        self._plane.count_error(refusal)
        self._refusal = refusal
        client, answer = self._client, self._answer
        reader = answer.reader if answer is not None else None
        if answer is None or reader is None:
            # A body of another kind: only its broken framing can say that it is not whole.
            self._keep = False
            self._over(outcome, None)
            return
        event = reader.break_off() + event_of(refusal, anthropic=self._anthropic())
        client.write(answer.framed(event))
        if answer.chunked:
            client.write(LAST_CHUNK)
        self._over(outcome, reader.usage)

    def fault(self) -> None:
        """The router itself failed on this request. Speaks against no replica."""
        if self.phase is not Phase.OVER:
            self._give_up(
                Outcome.CANCELLED,
                Refused(ErrorKind.INTERNAL, "the router failed on this request; see its log"),
            )

    def cut_short(self) -> None:
        """The router stops and waits no longer. Speaks against no replica."""
        if self.phase is not Phase.OVER:
            message = "the router is stopping and cannot wait for the answer; send the request again"
            self._give_up(Outcome.CANCELLED, Refused(ErrorKind.STOPPING, message, retry_after_s=1.0))

    def client_left(self) -> None:
        """Nobody waits for the answer: the replica may stop at once."""
        if self.phase is Phase.OVER:
            return
        self._leave_replica()
        self._keep = False
        reader = self._answer.reader if self._answer is not None else None
        self._over(Outcome.CANCELLED, reader.usage if reader is not None else None)

    def _leave_replica(self) -> None:
        if self._held is not None:
            self._plane.waits_no_longer(self._held)
            self._held = None
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None

    # --- towards the client -------------------------------------------------------------------------

    def pause(self) -> None:
        """The client reads slower than the replica writes."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._upstream.resume()

    @property
    def probe(self) -> bytes:
        """A byte or more that can go to the client now without meaning; empty if there is none."""
        if self.phase is Phase.WAITING:
            # Clients of HTTP/1.0 know no interim responses.
            return INTERIM if self._head.version == "1.1" else b""
        return LEADING_ZERO if self._answer is not None and self._answer.chunked else b""

    def _accept(self, answer: Answer) -> None:
        answer.accepted = True
        assert self._ticket is not None
        if answer.head.status < 300 and not answer.is_strange:
            self._ticket.first_byte(self._plane.now())
            if self._plane.waiting:
                self._plane.dispatch_soon()

    def _stored(self, response_id: str) -> None:
        """The replica keeps its answer, unless it was told not to. The client may refer to it as soon as it
        has its id, from another connection too."""
        assert self._ticket is not None
        assert self._routed is not None
        if self._routed.stores:
            self._plane.engine.stored(self._ticket.turn.tenant, response_id, self._ticket)

    def _begin(self, body: bytes = b"") -> None:
        """Send the head. From here on the turn cannot move."""
        assert self._prepared is not None
        prepared, self._prepared = self._prepared, None
        self.phase = Phase.ANSWERING
        self._plane.release(self)
        if self._routed is not None:
            self._routed.body = ()
            self._routed.outline = None
        self._client.write(prepared + self._connection_line() + body)

    def _connection_line(self) -> bytes:
        client = self._client
        if not (self._keep and client.keep_alive):
            self._keep = False
            return b"connection: close\r\n\r\n"
        return b"connection: keep-alive\r\n\r\n" if self._head.version == "1.0" else b"\r\n"

    def _refuse(self, refusal: Refused) -> None:
        """Answer with a problem."""
        self._plane.count_error(refusal)
        self._refusal = refusal
        self._respond(status_of(refusal), body_of(refusal, anthropic=self._anthropic()), headers_of(refusal))

    def _respond(self, status: int, body: bytes, extra: bytes = b"") -> None:
        """Answer without a replica."""
        self._prepared = (
            b"%bcontent-type: application/json\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n"
            % (
                status_line(status),
                extra,
                self._request_id,
                len(body),
            )
        )
        self._begin(body if self._head.method != b"HEAD" else b"")
        self._over(None, None)

    def _anthropic(self) -> bool:
        return self._head.path.startswith("/v1/messages")

    def _over(self, outcome: Outcome | None, usage: Usage | None) -> None:
        """The one ending."""
        self.phase = Phase.OVER
        if self._ticket is not None and outcome is not None:
            self._ticket.end(outcome, self._plane.now(), usage)
            if self._plane.waiting:
                self._plane.dispatch_soon()
        if self.held:
            self._plane.release(self)
        if self._handoff is not None:
            self._handoff.close()
        if self._head.request_id is not None:
            self._plane.release_request_id(self._request_id)
        if self._routed is not None and self._routed.turn.is_recorded:
            self._tell_trace(self._routed.turn, outcome)
        self._client.finished(keep=self._keep)

    def _tell_trace(self, turn: Turn, outcome: Outcome | None) -> None:
        """How the client's request ended."""
        status = 0
        if self._answer is not None and self._prepared is None:
            status = self._answer.head.status
        elif self._refusal is not None:
            status = status_of(self._refusal)
        self._plane.trace_over(
            turn,
            method=self._head.method,
            status=status,
            refused=self._refusal.kind if self._refusal is not None else None,
            decision=self._ticket.decision if self._ticket is not None else None,
            outcome=outcome,
        )


def _waited_line(seconds: float) -> bytes:
    """Ends one header line and makes another, which says how long the router held the turn."""
    return b"\r\nx-homing-waited-ms: %d\r\n" % round(seconds * 1000.0)


def _outcome_of(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETED
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.SERVER_ERROR
