"""Whatever replicas, clients and connections do, in whatever order: each request that somebody waits for gets
one answer, and nothing is left of it."""

import asyncio
import errno
import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.base.build import kind_of_build
from router.base.clock import ManualClock
from router.base.ids import ReplicaId
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.plan import Plan
from router.core.strategies.priced import Priced
from router.dataplane.client import ClientConnection
from router.dataplane.limits import Limits
from router.dataplane.pool import Pool
from router.dataplane.routing import Routing
from router.dataplane.server import DataPlane
from router.dataplane.upstream import UpstreamConnection
from router.settings.routes import RouteTable

if kind_of_build() == "compiled":
    pytest.skip("inherits from what is compiled", allow_module_level=True)

NAMES = [ReplicaId(name) for name in ("a", "b", "c")]
LIMITS = Limits(body=4000, held_bytes=9000, first_byte_s=20.0, idle_s=30.0, total_s=100.0)

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
PIECES = (EVENT, EVENT, EVENT[:20], b'data: {"error":{"code":500}}\n\n', b"data: [DONE]\n\n", b"")
JSON = b'{"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1},"pad":"%b"}'
# Head, and what there is of a body; `None` where the body is a stream of chunks.
ANSWERS: dict[str, tuple[bytes, bytes | None]] = {
    "stream": (b"200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked", None),
    "whole": (b"200 OK\r\ncontent-type: application/json", JSON % (b"x" * 300)),
    "large": (b"200 OK\r\ncontent-type: application/json", JSON % (b"x" * 2500)),
    "sound": (b"200 OK\r\ncontent-type: audio/wav", b"RIFF" * 9),
    "client error": (b"400 Bad Request\r\ncontent-type: application/json", b'{"error":{}}'),
    "server error": (b"500 Internal\r\ncontent-type: application/json", b'{"error":{}}'),
    "busy": (b"503 Unavailable\r\ncontent-type: application/json", b'{"error":{}}'),
    "empty": (b"204 No Content", b""),
    "garbage": (b"999 ?", b""),
}
CONNECTED: dict[str, OSError | None] = {
    "made": None,
    "refused": ConnectionRefusedError(errno.ECONNREFUSED, "x"),
    "in vain": TimeoutError(),
    "short of files": OSError(errno.EMFILE, "x"),
    "without a name": socket.gaierror(socket.EAI_AGAIN, "x"),
}


SELDOM = ("leave", "close_one_side", "read_slowly", "end_an_idle_connection", "give_up_on", "heal", "heal")
Draw = Callable[..., Any]


class Wire(asyncio.Transport):
    """One end of a connection, as a transport. Its other end is the test."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = bytearray()
        self.closed = False
        self.eof = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.eof
        if not self.closed:
            self.sent += data

    def writelines(self, parts: object) -> None:
        for part in parts:  # type: ignore[attr-defined]
            self.write(part)

    def close(self) -> None:
        self.end(None)

    def abort(self) -> None:
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """The connection is gone, for whichever end's reason. The protocol hears of it in a moment."""
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True


class InOrder(dict[Any, None]):
    """A set that is walked in the order in which it was filled."""

    def add(self, one: object) -> None:
        self[one] = None

    def discard(self, one: object) -> None:
        self.pop(one, None)


class Client:
    """A client, and what it has asked for."""

    def __init__(self, plane: DataPlane) -> None:
        self.connection = ClientConnection(plane)
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)
        self.asked = 0
        self.left = False
        self.done_asking = False

    def check(self, *, over: bool) -> None:
        """No more answers than requests; once all is over, as many, unless the connection ended."""
        whole, half = answers(bytes(self.wire.sent))
        assert whole + half <= max(self.asked, 1)
        # One that takes nothing of what it was sent may be cut off.
        heard = not self.left and not (self.connection.write_paused and self.wire.closed)
        if over and heard and self.asked:
            if self.wire.closed or self.wire.eof:
                assert whole + half >= 1
            else:
                assert (whole, half) == (self.asked, 0)


class Answering:
    """A replica's side of one connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.kind = ""
        self.rest: bytes | None = None

    @property
    def asked(self) -> bool:
        """Whether a request waits for its answer, or for the rest of it."""
        return not self.wire.closed and self.wire.protocol._receiver is not None  # type: ignore[attr-defined]

    def say(self, data: bytes) -> None:
        if not self.wire.closed:
            self.wire.protocol.data_received(data)

    def begin(self, kind: str) -> None:
        line, self.rest = ANSWERS[kind]
        self.kind = kind
        length = b"" if self.rest is None else b"\r\ncontent-length: %d" % len(self.rest)
        if kind == "empty":
            length, self.kind = b"", ""
        self.say(b"HTTP/1.1 " + line + length + b"\r\n\r\n")
        if self.rest == b"":
            self.kind = ""

    def go_on(self, piece: bytes) -> None:
        if self.rest is None:
            if piece:
                self.say(b"%x\r\n%b\r\n" % (len(piece), piece))
            return
        some, self.rest = self.rest[: len(self.rest) // 2], self.rest[len(self.rest) // 2 :]
        self.say(some)

    def finish(self) -> None:
        self.kind = ""
        self.say(b"0\r\n\r\n" if self.rest is None else self.rest)


class TestPool(Pool):
    """A pool whose connections are made when the test says so."""

    __test__ = False
    __slots__ = ("connecting", "replicas")

    connecting: list[asyncio.Future[None]]
    replicas: list[Answering]

    async def connect(self) -> UpstreamConnection:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connecting.append(asked)
        try:
            await asked
        finally:
            self.connecting.remove(asked)
        connection = UpstreamConnection(self, LIMITS.head)
        wire = Wire(connection)
        connection.connection_made(wire)
        self._open.add(connection)
        self.replicas.append(Answering(wire))
        return connection


class Exchanges(RuleBasedStateMachine):
    """Three replicas, a few clients, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock(1000.0)
        plans = [Plan(name="p", strategy=Priced())]
        self.engine = Engine(plans, rng=Random(7))
        specs = [ReplicaSpec(name, f"http://{name}:1") for name in NAMES]
        self.engine.set_replicas(specs, self.clock.now())
        routing = Routing(plans, RouteTable(()), secret=b"s")
        self.plane = DataPlane(self.engine, routing, clock=self.clock, limits=LIMITS)
        self.plane.connections = InOrder()  # type: ignore[assignment] # what a set is asked for, and repeatable
        self.late = False
        """Whether what is written waits, while more happens."""
        self.plane.outbox.gather(lambda _flush: None)
        self.lives = 0
        self.clients: list[Client] = []
        self.connecting: list[asyncio.Future[None]] = []
        self.replicas: list[Answering] = []
        for name in NAMES:
            pool = TestPool(
                name, f"http://{name}:1", LIMITS, now=self.clock.now, api_key=None, outbox=self.plane.outbox
            )
            pool.connecting = self.connecting
            pool.replicas = self.replicas
            self.plane.pools[name] = pool
        self.heal()

    def run(self, act: Callable[[], object]) -> None:
        """Do it on the loop, and let everything that follows from it happen."""

        async def acted() -> None:
            act()
            for _ in range(6):
                if not self.late:
                    self.plane.outbox.flush()
                await asyncio.sleep(0)

        self.loop.run_until_complete(acted())

    @rule(what=st.sampled_from(["ask"] * 5 + ["answer"] * 12 + ["wait"] * 2 + list(SELDOM)), data=st.data())
    def step(self, what: str, data: st.DataObject) -> None:
        """One rule for all that may happen: of several, Hypothesis leaves some out of each run."""
        self.late = data.draw(st.integers(0, 3)) == 3
        getattr(self, what)(data.draw)
        self.late = False

    # --- clients ------------------------------------------------------------------------------------

    def here(self, *, asking: bool = False) -> list[Client]:
        return [each for each in self.clients if not (each.wire.closed or (asking and each.done_asking))]

    def ask(self, draw: Draw) -> None:
        clients = self.here(asking=True)
        if not clients or (len(self.here()) < 4 and draw(st.booleans())):
            self.run(lambda: self.clients.append(Client(self.plane)))
            clients = self.clients[-1:]
        client = draw(st.sampled_from(clients))
        times, size = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([10, 10, 900]))
        cut, last = draw(st.sampled_from([0, 0, 0, 5])), draw(st.sampled_from([False, False, True]))
        stream = b"true" if draw(st.booleans()) else b"false"
        body = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"stream":%b}' % (
            b"x" * size,
            stream,
        )
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n%b%b"
            b"Content-Length: %d\r\n\r\n"
            % (b"X-Request-Id: same\r\n" * draw(st.booleans()), b"Connection: close\r\n" * last, len(body))
        )
        request = (head + body) * times
        client.done_asking = last or cut > 0
        client.asked += times
        self.run(lambda: client.connection.data_received(request[: len(request) - cut]))

    def leave(self, draw: Draw) -> None:
        if clients := self.here():
            client = draw(st.sampled_from(clients))
            client.left = True
            self.run(lambda: client.wire.end(None))

    def close_one_side(self, draw: Draw) -> None:
        if clients := self.here(asking=True):
            client = draw(st.sampled_from(clients))
            client.done_asking = True

            def end() -> None:
                if not client.connection.eof_received():
                    client.left = client.asked == 0
                    client.wire.end(None)

            self.run(end)

    def read_slowly(self, draw: Draw) -> None:
        if clients := self.here():
            connection = draw(st.sampled_from(clients)).connection
            self.run(connection.resume_writing if connection.write_paused else connection.pause_writing)

    # --- replicas -----------------------------------------------------------------------------------

    def asked(self) -> list[Answering]:
        return [each for each in self.replicas if each.asked]

    def answer(self, draw: Draw) -> None:
        """The next thing that happens on one of the connections to replicas."""
        waiting = [*self.connecting, *self.asked()]
        if not waiting:
            return
        one = waiting[draw(st.integers(0, len(waiting) - 1))]
        if isinstance(one, asyncio.Future):
            error = CONNECTED[draw(st.sampled_from(["made"] * 12 + list(CONNECTED)))]
            self.run(lambda: one.set_result(None) if error is None else one.set_exception(error))
        elif draw(st.integers(0, 7)) == 7:
            self.run(lambda: one.wire.end(ConnectionResetError()))
        elif not one.kind:
            kind = draw(st.sampled_from(["stream", "stream", "stream", "large", "large", *ANSWERS]))
            self.run(lambda: one.begin(kind))
        elif draw(st.integers(0, 2)):
            piece = draw(st.sampled_from(PIECES))
            self.run(lambda: one.go_on(piece))
        else:
            self.run(one.finish)

    def end_an_idle_connection(self, draw: Draw) -> None:
        idle = [each for each in self.replicas if not each.wire.closed and not each.asked]
        if idle:
            replica, garbage = idle[draw(st.integers(0, len(idle) - 1))], draw(st.booleans())
            self.run(lambda: replica.say(b"HTTP/1.1 200 OK\r\n") if garbage else replica.wire.end(None))

    def give_up_on(self, draw: Draw) -> None:
        name = draw(st.sampled_from(NAMES))
        self.run(lambda: self.plane.give_up_on(name, "x"))

    def heal(self, _draw: Draw | None = None) -> None:
        """Each replica is a new process, so none waits for the end of an outage."""
        self.lives += 1
        for name in NAMES:
            self.engine.report(name, Report(start_time=1000.0 * self.lives), self.clock.now())
            self.engine.probe_passed(name, self.clock.now())

    # --- time ---------------------------------------------------------------------------------------

    def wait(self, draw: Draw) -> None:
        self.clock.advance(draw(st.sampled_from([0.05, 0.2, 0.5, 0.8, 1.5, 3.0, 12.0, 40.0])))
        now = self.clock.now()

        def sweep() -> None:
            for connection in tuple(self.plane.connections):
                connection.on_sweep(now)
            for pool in self.plane.pools.values():
                pool.sweep(now)

        self.run(sweep)

    # --- what must hold -----------------------------------------------------------------------------

    @invariant()
    def all_is_counted_once(self) -> None:
        connections = self.plane.connections
        running = [each._exchange for each in connections if each._exchange is not None]
        held = sum(each.held for each in running)
        held += sum(
            each._body_bytes + sum(len(body) for _, _, body, _ in each._queue) for each in connections
        )
        assert self.plane.held_bytes == held
        tickets = [each._ticket for each in running if each._ticket is not None and each._ticket._open]
        for status in self.engine.replicas(self.clock.now()):
            # A turn that a restart ended is in no book, whatever is still to come of its answer.
            here = [
                ticket
                for ticket in tickets
                if ticket.decision.replica == status.id and ticket.epoch == ticket.member.epoch
            ]
            assert status.in_flight == len(here)
            assert status.pending_tokens == sum(ticket.missing for ticket in here)
        named = [each._request_id for each in running if each._head.request_id is not None]
        assert sorted(self.plane._live_ids) == sorted(named)
        used = [each._upstream for each in running if each._upstream is not None]
        idle = [connection for pool in self.plane.pools.values() for connection in pool._idle]
        alive = [connection for pool in self.plane.pools.values() for connection in pool._open]
        assert {id(each) for each in (*used, *idle)} == {id(each) for each in alive}
        assert len(used) + len(idle) == len(alive)
        assert len(self.plane.tasks) == sum(each._opening is not None for each in running)
        assert len(self.connecting) == len(self.plane.tasks)

    @invariant()
    def no_client_got_more_than_it_asked_for(self) -> None:
        for client in self.clients:
            client.check(over=False)

    def teardown(self) -> None:
        def stop() -> None:
            for connection in tuple(self.plane.connections):
                connection.stop()
            for connection in tuple(self.plane.connections):
                connection.cut_short()

        def end() -> None:
            for client in self.clients:
                client.wire.end(None)
            for pool in self.plane.pools.values():
                pool.close()

        try:
            self.run(stop)
            for client in self.clients:
                client.check(over=True)
            self.all_is_counted_once()
            assert self.engine.in_flight() == 0
            self.run(end)
            assert not self.plane.connections
            assert self.plane.held_bytes == 0
            assert not self.plane._live_ids
            assert len(self.plane.tasks) == 0
            assert not self.connecting
            assert all(replica.wire.closed for replica in self.replicas)
            self.plane.outbox.flush()
            assert not self.plane.outbox._dropped
        finally:
            self.loop.close()


def answers(sent: bytes) -> tuple[int, int]:
    """Whole responses in what a client got, and whether there is half a one after them. Strict."""
    whole = 0
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            sent = rest
            continue
        assert head.startswith(b"HTTP/1.1 "), sent[:200]
        lowered = head.lower()
        if b" 204 " in head.split(b"\r\n")[0]:
            sent = rest
        elif b"transfer-encoding: chunked" in lowered:
            while True:
                line, found, rest = rest.partition(b"\r\n")
                if not found:
                    return whole, 1
                size = int(line, 16)
                if len(rest) < size + 2:
                    return whole, 1
                assert rest[size : size + 2] == b"\r\n"
                rest = rest[size + 2 :]
                if size == 0:
                    break
            sent = rest
        else:
            length = int(lowered.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) < length:
                return whole, 1
            sent = rest[length:]
        whole += 1
    return whole, 0


TestExchanges = Exchanges.TestCase
TestExchanges.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
