"""What a request costs the router itself: `python tests/bench/request_path.py`. Prints, asserts nothing.

The real client connection, exchange, upstream connection, engine and observers, between transports that
only count. So it measures neither sockets nor the event loop, and a run is a second: the tool for work on
the hot path, where `make bench` is the judge. Bodies and answers are those of `make bench`.

    python tests/bench/request_path.py [--only 2k] [--rounds N] [--traced SHARE] [--profile [SORT]]

`--traced` records that share of turns as spans, up to their bytes for a collector.
`--profile` prints cProfile's table instead, with calls a request. Compiled functions show in it only as
far as they are called from Python.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
from collections.abc import Callable
from random import Random
from time import perf_counter_ns

import router
from loadtest.bench import answers
from loadtest.bench.loads import CHUNKS, LOADS, Load, requests
from router.base.clock import SystemClock
from router.base.heap import settle_heap
from router.base.ids import ReplicaId
from router.core.chain_watch import ChainWatch
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.holdings import Holdings
from router.core.pullbook import PullBook
from router.dataplane.client import ClientConnection
from router.dataplane.limits import Limits
from router.dataplane.routing import Routing
from router.dataplane.server import DataPlane
from router.dataplane.upstream import UpstreamConnection
from router.settings.build import build_plan
from router.settings.config import Limits as ConfiguredLimits
from router.settings.load import load_policy
from router.settings.routes import RouteTable
from router.telemetry.counters import Counters
from router.telemetry.fanout import Fanout
from router.telemetry.health_log import HealthLog
from router.telemetry.history import History
from router.telemetry.moves import Moves
from router.telemetry.recent import RecentDecisions
from router.telemetry.timelines import Timelines
from router.telemetry.tracing import Tracing

# What one read of a busy socket brings at most, as uvloop reads.
READ_BYTES = 256 * 1024

KEEP_BYTES = ConfiguredLimits().kept_bodies


class Wire(asyncio.Transport):
    """A transport that takes everything and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0
        self.writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.taken += len(data)
        self.writes += 1

    def writelines(self, parts: object) -> None:
        self.writes += 1

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Path:
    """A plane with one idle connection to each replica, and clients of it."""

    def __init__(self, load: Load, traced: float | None) -> None:
        clock = SystemClock()
        plans = [build_plan(load_policy("home").value)]
        counters = Counters()
        observers = Fanout(
            (
                counters,
                RecentDecisions(clock),
                History(clock),
                Timelines(clock),
                Moves(clock),
                HealthLog(),
            )
        )
        tracing = _tracing(traced, clock) if traced is not None else None
        if tracing is not None:
            observers.trace_by(tracing)
        pulls = PullBook(plans[0].pull)
        self.engine = Engine(plans, rng=Random(1), observer=observers, pullbook=pulls, holdings=Holdings())
        specs = [ReplicaSpec(ReplicaId(f"r{n}"), f"http://r{n}:8000") for n in range(load.upstreams)]
        self.engine.set_replicas(specs, clock.now())
        for spec in specs:
            self.engine.probe_passed(spec.id, clock.now())
            self.engine.report(spec.id, Report(1.0, 3.0, 0.0, 0.4, 4_194_304), clock.now())
            self.engine.models(spec.id, (ModelCard("bench", b"{}"),), clock.now())
        # The connections are never idle for long here, whatever the speed of the machine.
        limits = Limits(upstream_idle_s=float("inf"))
        self.plane = DataPlane(
            self.engine,
            Routing(plans, RouteTable(()), secret=b"s", keep_bytes=KEEP_BYTES),
            clock=clock,
            limits=limits,
            chains=ChainWatch(),
            traces=tracing,
            overhead=counters.overhead,
        )
        self.plane.set_replicas(specs, {}, {})
        self.plane.outbox.gather(lambda _flush: None)
        self.upstreams: list[UpstreamConnection] = []
        for spec in specs:
            pool = self.plane.pools[spec.id]
            connection = UpstreamConnection(pool, limits.head)
            connection.connection_made(Wire())
            pool.put(connection)
            self.upstreams.append(connection)
        self.client = ClientConnection(self.plane)
        self.wire = Wire()
        self.client.connection_made(self.wire)

    def busy(self) -> UpstreamConnection:
        """The connection that has the request."""
        return next(one for one in self.upstreams if not one.usable)


class Nowhere:
    """Takes spans, and has none of them."""

    def add(self, span: bytes) -> None: ...


def _tracing(share: float, clock: SystemClock) -> Tracing:
    return Tracing(
        Nowhere(),
        sample=share,
        follow=True,
        secret=b"s",
        url_of=lambda replica: f"http://{replica}:8000",
        now=clock.now,
        rng=Random(2),
    )


class Work:
    """The requests of a load, session by session, each session's turns in their order."""

    def __init__(self, load: Load) -> None:
        self._sessions = requests(load)
        self._sent = 0

    def next(self) -> bytes:
        """The next request, whole."""
        turn, session = divmod(self._sent, len(self._sessions))
        self._sent += 1
        turns = self._sessions[session]
        return b"".join(turns[turn % len(turns)])


def run_requests(path: Path, load: Load, work: Work, count: int) -> float:
    """Microseconds a request: the client's reads, the sending, the answer in one read."""
    answer = answers.plain(b"200 OK", b"application/json", answers.chat_body(0))
    receive, flush = path.client.data_received, path.plane.outbox.flush
    before = path.wire.taken
    spent = 0
    for _ in range(count):
        whole = work.next()
        reads = [whole[at : at + READ_BYTES] for at in range(0, len(whole), READ_BYTES)]
        begun = perf_counter_ns()
        for read in reads:
            receive(read)
        flush()
        spent += perf_counter_ns() - begun
        upstream = path.busy()
        begun = perf_counter_ns()
        upstream.data_received(answer)
        flush()
        spent += perf_counter_ns() - begun
    if path.wire.taken < before + count * len(answers.chat_body(0)):
        raise SystemExit(f"{load.name}: requests were not answered")
    return spent / count / 1000


def run_chunks(path: Path, load: Load, work: Work, count: int) -> float:
    """Microseconds a chunk of a stream, each in a read of its own. The request is not timed."""
    tokens = [answers.chunked(answers.token_event(0, last=False)) % stamp for stamp in range(CHUNKS)]
    end = b"".join(
        (
            answers.chunked(answers.token_event(0, last=True)) % 0,
            answers.chunked(answers.usage_event(0)),
            answers.chunked(answers.DONE_EVENT),
            answers.LAST_CHUNK,
        )
    )
    spent = 0
    for _ in range(count // CHUNKS):
        path.client.data_received(work.next())
        upstream = path.busy()
        upstream.data_received(answers.STREAM_HEAD)
        receive, flush = upstream.data_received, path.plane.outbox.flush
        begun = perf_counter_ns()
        for token in tokens:
            receive(token)
            flush()
        spent += perf_counter_ns() - begun
        upstream.data_received(end)
    return spent / (count // CHUNKS * CHUNKS) / 1000


def measure(load: Load, rounds: int, traced: float | None) -> tuple[str, float]:
    path = Path(load, traced)
    wanted = Work(load)
    run: Callable[[Path, Load, Work, int], float] = run_chunks if load.streams else run_requests
    count = max(200, load.requests // 5) if not load.streams else 200 * CHUNKS
    run(path, load, wanted, count)
    return load.unit, min(run(path, load, wanted, count) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], choices=[load.name for load in LOADS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--traced", type=float, metavar="SHARE")
    parser.add_argument("--profile", nargs="?", const="tottime", metavar="SORT")
    arguments = parser.parse_args()
    settle_heap()
    print(f"homing {router.__version__}, {router.__file__}")
    for load in LOADS:
        if arguments.only and load.name not in arguments.only:
            continue
        gc.collect()
        if not arguments.profile:
            unit, took = measure(load, arguments.rounds, arguments.traced)
            print(f"{load.title:20} {took:8.2f} µs a {unit}")
            continue
        path, wanted = Path(load, arguments.traced), Work(load)
        run = run_chunks if load.streams else run_requests
        run(path, load, wanted, 200)
        profile = cProfile.Profile()
        profile.runcall(run, path, load, wanted, 2000)
        table = pstats.Stats(profile).sort_stats(arguments.profile)
        print(f"{load.title}: {table.total_calls / 2000:.0f} calls a {load.unit}")  # type: ignore[attr-defined]
        table.print_stats(40)


if __name__ == "__main__":
    main()
