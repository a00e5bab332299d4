"""The data plane: listens, and holds what all connections share."""

import asyncio
import logging
import secrets
import socket
import ssl
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from router.base.clock import Clock
from router.base.errors import ErrorKind, HomingError, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, TenantId
from router.base.system import system_words
from router.base.tasks import TaskOwner
from router.base.trace import Trace
from router.core.chain_watch import ChainWatch, told
from router.core.decide import Decision
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Role
from router.core.observe import Outcome
from router.core.outline import Describe
from router.core.queue import Held
from router.core.request import Turn
from router.core.ticket import Ticket
from router.dataplane.client import ClientConnection
from router.dataplane.exchange import Exchange
from router.dataplane.head import Head
from router.dataplane.head_reader import HeadReader
from router.dataplane.hints import HintWriter, p2p_source
from router.dataplane.limits import Limits
from router.dataplane.local import LocalEndpoints
from router.dataplane.outbox import Outbox
from router.dataplane.pairs import Pairs
from router.dataplane.pool import Pool
from router.dataplane.problems import status_of
from router.dataplane.routing import Routing
from router.settings.access import AccessKeys

_log = logging.getLogger(__name__)

# One pass over all connections serves every time limit, so that no request pays for a timer of its own.
_SWEEP_S: Final = 0.25

_BACKLOG: Final = 4096

# TLS: from the connection to the end of the handshake, and from our farewell to the client's.
_HANDSHAKE_S: Final = 10.0
_FAREWELL_S: Final = 2.0

# While stopping: how often to look whether all clients are gone, and what the last words to them may take.
_LOOK_S: Final = 0.02
_LAST_WORDS_S: Final = 0.5


class Tracer(Protocol):
    """Who records turns as traces. Must be quick and must not raise; one that raises is detached."""

    def begin(self, traceparent: bytes | None, tracestate: bytes) -> Trace:
        """The place of a turn whose request has just come, and what its headers say of its trace."""
        ...

    def over(
        self,
        turn: Turn,
        *,
        method: bytes,
        status: int,
        refused: ErrorKind | None,
        decision: Decision | None,
        outcome: Outcome | None,
    ) -> None:
        """The client has its answer, or is gone: the status that it was told (0 = nothing), the router's own
        error, the last attempt's decision, and its outcome where it was the turn's end."""
        ...


class Spread(Protocol):
    """Who counts durations."""

    def add(self, value: float) -> None: ...


class DataPlane:
    """Relays what clients send to the replicas that the engine chooses.

    `access` is `None` where no API keys are configured: then every request belongs to the open tenant, or
    to the one that `tenant_header` must name, which only a trusted gateway in front may set.
    """

    def __init__(
        self,
        engine: Engine,
        routing: Routing,
        *,
        clock: Clock,
        limits: Limits,
        access: AccessKeys | None = None,
        tenant_header: str | None = None,
        tls: ssl.SSLContext | None = None,
        chains: ChainWatch | None = None,
        hints: HintWriter | None = None,
        traces: Tracer | None = None,
        overhead: Spread | None = None,
    ) -> None:
        """`tls` = what clients are spoken to with; `None` = plain HTTP. `chains` is told of every turn.
        `hints` go to the replicas that have a KV agent. `overhead` gets the seconds from a whole request to
        its sending on, less those that the turn was held."""
        self.engine = engine
        self.routing = routing
        self.now = clock.now
        """Monotonic seconds. Not the loop's time: to ask for the running loop costs a system call."""
        self.limits = limits
        self.local = LocalEndpoints(engine)
        self.traces = traces
        self.overhead = overhead
        self.heads = _head_reader(routing, tenant_header, traces)
        self.tasks = TaskOwner()
        self.outbox = Outbox()
        """What all connections write by."""
        self.pools: dict[ReplicaId, Pool] = {}
        self.connections: set[ClientConnection] = set()
        self.held_bytes = 0
        self.errors: defaultdict[tuple[ErrorKind, int], int] = defaultdict(int)
        """Requests that got an error of the router's own, and streams that ended in one, by kind and by the
        status that says it."""
        self.stopping = False
        """Whether no connection is to outlive the request that is arriving or in progress on it."""
        self.waiting: dict[Held, Exchange] = {}
        """Turns that the engine holds, and whose they are."""
        self._dispatching: asyncio.Handle | None = None
        """The next look at them, where that is not to be left to the sweep."""
        self._dispatch_at = 0.0
        self._access = access
        self._tenant_header = tenant_header
        self._tls = tls
        self.pairs: Pairs | None = None
        """`None` where no replica prefills for others, and none ever did."""
        self._chains = chains
        self._hints = hints
        self._p2p: dict[ReplicaId, str] = {}
        """Where vLLM's own P2P tier listens, of replicas that have one."""
        self._urls: dict[ReplicaId, tuple[str, str | None, ssl.SSLContext | None]] = {}
        self._retired: list[Pool] = []
        self._live_ids: set[bytes] = set()
        self._id_prefix = secrets.token_hex(6).encode()
        self._serial = 0
        self._servers: list[asyncio.Server] = []

    # --- life ---------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on `sockets` where there are any: they listen already. Raises `HomingError` if the address
        cannot be had."""
        loop = asyncio.get_running_loop()
        listen = partial(
            loop.create_server,
            lambda: cast(asyncio.Protocol, ClientConnection(self)),
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_S,
            ssl_shutdown_timeout=None if self._tls is None else _FAREWELL_S,
        )
        try:
            if sockets:
                self._servers = [await listen(sock=each) for each in sockets]
            else:
                self._servers = [await listen(host=host, port=port, reuse_address=True)]
        except (OSError, OverflowError) as error:
            raise HomingError(
                f"cannot listen on {host}:{port}: {system_words(error)};"
                " choose another with --listen or 'listen:'"
            ) from error
        self.outbox.gather(loop.call_soon)
        self.tasks.spawn(self._sweep(), name="sweep")

    @property
    def port(self) -> int:
        """The port that is listened on; of use where 0 was asked for."""
        # A tuple or a list, by the event loop; a compiled module would insist on what asyncio's types say.
        server: Any = self._servers[0]
        port: int = server.sockets[0].getsockname()[1]
        return port

    @property
    def listening(self) -> bool:
        """Whether clients can connect."""
        return bool(self._servers) and not self.stopping

    def listeners(self) -> list[int]:
        """The file numbers of the sockets that are listened on."""
        servers: list[Any] = list(self._servers)
        return [each.fileno() for server in servers for each in server.sockets]

    async def close(self, grace_s: float = 0.0, *, succeeded: bool = False) -> None:
        """Stop listening, let requests that are arriving or running end for `grace_s` seconds, then close
        everything.

        Where another router has `succeeded` this one at the same address, idle connections stay for that
        long: each is closed after its next request, so that none is lost to a close that crosses it.
        """
        self.stopping = True
        for server in self._servers:
            server.close()
        if not succeeded:
            for connection in tuple(self.connections):
                connection.stop()
        await self._gone(grace_s)
        for connection in tuple(self.connections):
            connection.cut_short()
        await self._gone(_LAST_WORDS_S)
        self.outbox.gather(None)
        for connection in tuple(self.connections):
            connection.abort()
        for pool in (*self.pools.values(), *self._retired):
            pool.close()
        await self.tasks.close()
        # Transports tell of their end on the next turn of the loop.
        await asyncio.sleep(0)
        for server in self._servers:
            await server.wait_closed()

    async def _gone(self, within_s: float) -> None:
        """Wait until no client is connected, or the time is up."""
        deadline = self.now() + within_s
        while self.connections and self.now() < deadline:  # noqa: ASYNC110
            # Seldom and short, so looking is cheaper than an event that each connection would have to set.
            await asyncio.sleep(_LOOK_S)

    def set_replicas(
        self,
        specs: Iterable[ReplicaSpec],
        api_keys: Mapping[ReplicaId, str],
        tls: Mapping[ReplicaId, ssl.SSLContext],
    ) -> None:
        """Make the pools match the fleet. Exchanges on a removed replica end as they would have."""
        specs = tuple(specs)
        if self.pairs is None and any(spec.role is Role.PREFILL for spec in specs):
            self.pairs = Pairs(self)
        self._p2p = {spec.id: spec.kv_p2p for spec in specs if spec.kv_p2p is not None}
        agents = {spec.id for spec in specs if spec.kv_agent is not None or spec.kv_p2p is not None}
        wanted = {spec.id: (spec.url, api_keys.get(spec.id), tls.get(spec.id)) for spec in specs}
        for replica, address in tuple(self._urls.items()):
            if wanted.get(replica) != address:
                pool = self.pools.pop(replica)
                pool.retire()
                self._retired.append(pool)
                del self._urls[replica]
        for replica, address in wanted.items():
            if replica not in self._urls:
                url, api_key, context = address
                self.pools[replica] = Pool(
                    replica,
                    url,
                    self.limits,
                    now=self.now,
                    api_key=api_key,
                    tls=context,
                    outbox=self.outbox,
                )
                self._urls[replica] = address
            self.pools[replica].has_agent = replica in agents

    def configure(
        self,
        routing: Routing,
        limits: Limits,
        access: AccessKeys | None,
        tenant_header: str | None,
        hints: HintWriter | None = None,
    ) -> None:
        """Go by these for all requests whose head has not come yet, but for `limits` on time and size and for
        `hints`, which count at once. Requests under way end as they would have. Arguments as at the start."""
        self.routing = routing
        self.heads = _head_reader(routing, tenant_header, self.traces)
        self.limits = limits
        self._access = access
        self._tenant_header = tenant_header
        self._hints = hints
        for pool in self.pools.values():
            pool.set_limits(limits)

    def give_up_on(self, replica: ReplicaId, why: str) -> None:
        """Wait no longer for the replica, which answers nobody: turns of which nothing has come move on."""
        for connection in tuple(self.connections):
            try:
                connection.given_up_on(replica, why)
            except Exception:  # noqa: BLE001 - one connection's fault must not keep the others waiting
                _log.exception("giving up on replica %s failed", replica)
                connection.abort()

    # --- turns that wait ----------------------------------------------------------------------------

    def waits(self, held: Held, exchange: Exchange) -> None:
        """A turn is held."""
        self.waiting[held] = exchange
        self.dispatch_soon()

    def waits_no_longer(self, held: Held) -> None:
        """Its client has gone, or the router stops."""
        if self.waiting.pop(held, None) is not None:
            self.engine.leave(held, self.now())
            self.dispatch_soon()

    def dispatch_soon(self) -> None:
        """Something may have made room for a turn that waits: look, once all that is due now is done."""
        if self.waiting:
            self._dispatch_in(0.0)

    def _dispatch_in(self, seconds: float) -> None:
        at = self.now() + seconds
        if self._dispatching is not None:
            if self._dispatch_at <= at:
                return
            self._dispatching.cancel()
        self._dispatch_at = at
        self._dispatching = asyncio.get_running_loop().call_later(seconds, self._dispatch)

    def _dispatch(self) -> None:
        """Send on the turns that a replica has room for, and refuse those whose time is up."""
        self._dispatching = None
        now = self.now()
        went, refused = self.engine.dispatch(now)
        answers: list[tuple[Held, Ticket | Refused]] = [*went, *refused]
        for held, answer in answers:
            exchange = self.waiting.pop(held, None)
            if exchange is None:
                # Its client left after it was pushed out: nobody waits for the answer.
                if isinstance(answer, Ticket):
                    answer.end(Outcome.CANCELLED, now)
                continue
            try:
                if isinstance(answer, Refused):
                    exchange.waited_in_vain(answer)
                else:
                    exchange.dispatched(answer)
            except Exception:  # noqa: BLE001 - one turn's fault must not cost the others theirs
                _log.exception("a request failed in the router itself")
                exchange.fault()
        if self.waiting:
            at = self.engine.wake_at()
            if at is not None and at < now + _SWEEP_S:
                self._dispatch_in(max(0.0, at - now))

    # --- for connections and exchanges --------------------------------------------------------------

    def tenant_of(self, head: Head) -> TenantId:
        """Whose request this is. Raises `Refused` if the keys do not say."""
        if self._access is None and self._tenant_header is None:
            return OPEN_TENANT
        if head.path == "/health" and not head.has_body and head.method in (b"GET", b"HEAD"):
            return OPEN_TENANT
        if self._access is None:
            if not head.tenant:
                raise Refused(
                    ErrorKind.UNAUTHORIZED,
                    f"the header {self._tenant_header} must name the tenant; the gateway in front sets it",
                )
            return TenantId(head.tenant.decode("latin-1"))
        if head.key is None:
            raise Refused(
                ErrorKind.UNAUTHORIZED,
                "an API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
        tenant = self._access.tenant_of(head.key)
        if tenant is None:
            raise Refused(ErrorKind.UNAUTHORIZED, "this API key is not known here")
        return tenant

    def hint(self, ticket: Ticket, request_id: bytes) -> bytes | None:
        """What to add to a request for a replica that can pull; `None` where there is nothing to say, or
        agents have no secret to hold it against."""
        if ticket.decision.replica in self._p2p:
            pull = ticket.decision.pull
            where = self._p2p.get(pull.source) if pull is not None else None
            # Not the request's id: clients choose that, and a further attempt has it again.
            return p2p_source(where, self.request_id(None)) if where is not None else None
        if self._hints is None:
            return None
        label = self.routing.label_of(ticket.turn.tenant)
        return self._hints.member(ticket.turn, ticket.decision, ticket.epoch, label, request_id)

    def hold(self, size: int) -> None:
        """Count bytes held, of requests and of answers that are gathered whole. Raises `Refused` where the
        budget does not allow them."""
        if self.held_bytes + size > self.limits.held_bytes:
            raise Refused(
                ErrorKind.HELD_BYTES_FULL,
                f"the router holds {self.held_bytes} bytes of bodies, its limit is"
                f" {self.limits.held_bytes} (limits.held_bytes); try again shortly",
                retry_after_s=1.0,
            )
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        """Uncount bytes held."""
        self.held_bytes -= size

    def watch_chain(self, ticket: Ticket, describe: Describe) -> None:
        """A turn was given to a replica: does its prompt go on from its session's last one?"""
        if self._chains is None:
            return
        try:
            turn = told(ticket.turn, ticket.decision, ticket.model)
            if turn is not None:
                self._chains.turn(turn, describe)
        except Exception:  # noqa: BLE001
            # As with an observer that raises: whatever its fault is, it must not cost a turn.
            self._chains = None
            _log.exception("watching prompts failed and has ended; routing goes on")

    def trace_of(self, head: Head) -> Trace | None:
        """The place in a trace of a turn whose request has just come."""
        if self.traces is None:
            return None
        try:
            return self.traces.begin(head.traceparent, head.tracestate)
        except Exception:  # noqa: BLE001 - as with an observer
            self._detach_traces()
            return None

    def trace_over(
        self,
        turn: Turn,
        *,
        method: bytes,
        status: int,
        refused: ErrorKind | None,
        decision: Decision | None,
        outcome: Outcome | None,
    ) -> None:
        """A traced turn's client has its answer, or is gone. As `Tracer.over`."""
        if self.traces is None:
            return
        try:
            self.traces.over(
                turn, method=method, status=status, refused=refused, decision=decision, outcome=outcome
            )
        except Exception:  # noqa: BLE001 - as with an observer
            self._detach_traces()

    def _detach_traces(self) -> None:
        self.traces = None
        # Clients' traces go on as they are from here on.
        self.heads = _head_reader(self.routing, self._tenant_header, None)
        _log.exception("recording traces failed and has ended; routing goes on")

    def count_error(self, refusal: Refused) -> None:
        """A client was told of this."""
        self.errors[refusal.kind, status_of(refusal)] += 1

    def release(self, exchange: Exchange) -> None:
        """Uncount what an exchange held. May be called again."""
        self.held_bytes -= exchange.held
        exchange.held = 0

    def request_id(self, asked: bytes | None) -> bytes:
        """A new id, or the one that the client asked for.

        That is made unique among the live ones (an engine refuses a repeated one), and must be released. One
        that looks like ours is not taken: every client sees ours and could ask for somebody's next one.
        """
        if asked is None or asked.startswith(self._id_prefix):
            self._serial += 1
            return self._id_prefix + b"-" + str(self._serial).encode()
        if asked in self._live_ids:
            repeated = asked
            while asked in self._live_ids:
                self._serial += 1
                asked = b"%b-%d" % (repeated, self._serial)
        self._live_ids.add(asked)
        return asked

    def release_request_id(self, request_id: bytes) -> None:
        """The request with this asked-for id is over."""
        self._live_ids.discard(request_id)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self.now()
            for connection in tuple(self.connections):
                try:
                    connection.on_sweep(now)
                except Exception:  # noqa: BLE001 - one connection's fault must not end everybody's time limits
                    _log.exception("sweeping a connection failed")
                    connection.abort()
            # Replicas may have been drained or removed, and the time of turns that wait may be up.
            self.dispatch_soon()
            if self.pairs is not None:
                self.pairs.sweep(now)
            for pool in self.pools.values():
                pool.sweep(now)
            if self._retired:
                self._retired = [pool for pool in self._retired if len(pool)]


def _head_reader(routing: Routing, tenant_header: str | None, traces: Tracer | None) -> HeadReader:
    return HeadReader(
        routing.session_headers,
        tenant_header.lower().encode("latin-1") if tenant_header else None,
        traces=traces is not None,
    )
