"""The run: every proxy started once a fleet, then measured in interleaved rounds, in rotated order."""

import asyncio
import gc
import http.client
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import uvloop

from loadtest.bench import loads as work
from loadtest.bench.client import Answers, Clients, Homes
from loadtest.bench.contenders import Contender, Setting
from loadtest.bench.debian import Found
from loadtest.bench.errors import BenchError
from loadtest.bench.figures import Sample, percentile, turn_order
from loadtest.bench.loads import CHUNKS, SESSIONS, Load
from loadtest.bench.machine import Cores, gauge_ms, others_share, used
from loadtest.bench.processes import Program, free_ports, spent_s

BUSY_SHARE: Final = 0.05
"""Other work may take this share of the machine; beyond it a measurement is made again."""

SLOWED: Final = 1.25
"""Beyond this multiple of the run's fastest gauge too."""

TRIES: Final = 3
"""How often at most. Of disturbed ones the least disturbed counts, and is marked."""

_READY_S: Final = 60.0

# A router may take its replicas in one after the other once it has answered.
_SETTLE_S: Final = 2.0


class Entrant(NamedTuple):
    """A contender that was found."""

    contender: Contender
    found: Found


@dataclass(slots=True)
class _Running:
    """A proxy that runs before one fleet."""

    contender: Contender
    program: Program
    port: int
    homes: dict[str, Homes] = field(default_factory=dict)
    """By load."""


class _Measured(NamedTuple):
    """One measurement, before it is put in figures."""

    answers: Answers
    cpu_s: float
    others: float
    gauge_ms: float


class Bench:
    """Holds all that runs. A context manager: leaving it, also by an error or Ctrl-C, ends it all."""

    def __init__(
        self,
        entrants: Sequence[Entrant],
        loads: Sequence[Load],
        cores: Cores,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        """`folder` takes configurations and logs. `say` is told of progress, a line at a time."""
        self._entrants = entrants
        self._loads = loads
        self._cores = cores
        self._folder = folder
        self._say = say
        self._stack = ExitStack()
        self._programs: list[Program] = []
        self._fleets: dict[int, list[_Running]] = {}
        """By number of upstreams."""
        self._requests: Mapping[str, tuple[tuple[work.Parts, ...], ...]] = {}
        self._fastest_ms = math.inf
        self._runner: asyncio.Runner

    def __enter__(self) -> "Bench":
        try:
            self._runner = self._stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            self._requests = {load.name: work.requests(load) for load in self._loads}
            for upstreams in sorted({load.upstreams for load in self._loads}):
                self._start_fleet(upstreams)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rounds(self, count: int) -> Iterator[Sample]:
        """Warm up, then measure every proxy under every load, `count` times over."""
        for load in self._loads:
            for running in self._fleets[load.upstreams]:
                self._say(f"warm-up: {load.name} {running.contender.name}")
                self._measure(load.shortened(4), running)
        for round in range(count):
            for load in self._loads:
                for running in turn_order(self._fleets[load.upstreams], round):
                    sample = self._sample(round, load, running)
                    self._say(
                        f"round {round + 1} of {count}: {load.name} {sample.proxy} {sample.cpu_us:.1f} µs"
                        f" a {load.unit}, p99 {sample.p99_ms:.2f} ms"
                        + (f", {sample.failed} FAILED" if sample.failed else "")
                        + (
                            f", disturbed: others took {sample.others:.0%}, gauge {sample.gauge_ms:.0f} ms"
                            if sample.disturbed
                            else ""
                        )
                    )
                    yield sample

    # --- measuring ----------------------------------------------------------------------------------

    def _sample(self, round: int, load: Load, running: _Running) -> Sample:
        best: _Measured | None = None
        failed = 0
        for _ in range(TRIES):
            measured = self._measure(load, running)
            # A failure counts, also one of a measurement that is not used.
            failed += measured.answers.failed
            if best is None or self._disturbance(measured) < self._disturbance(best):
                best = measured
            if self._disturbance(best) <= 1.0:
                break
        assert best is not None
        answers = best.answers
        latencies = sorted(answers.delays_s if load.streams else answers.latencies_s)
        homes = running.homes[load.name]
        done = len(answers.latencies_s) * (CHUNKS if load.streams else 1)
        return Sample(
            round=round,
            load=load.name,
            proxy=running.contender.name,
            cpu_us=best.cpu_s / load.units * 1e6,
            p50_ms=percentile(latencies, 0.50) * 1e3,
            p99_ms=percentile(latencies, 0.99) * 1e3,
            per_s=done / answers.elapsed_s,
            core=best.cpu_s / answers.elapsed_s,
            others=best.others,
            gauge_ms=best.gauge_ms,
            disturbed=self._disturbance(best) > 1.0,
            failed=failed,
            moved=len(homes.moved),
            misnamed=homes.misnamed,
        )

    def _disturbance(self, measured: _Measured) -> float:
        """How far the machine was from quiet and fast; up to 1 is good enough."""
        return max(measured.others / BUSY_SHARE, measured.gauge_ms / self._fastest_ms / SLOWED)

    def _measure(self, load: Load, running: _Running) -> _Measured:
        running.program.check()
        homes = running.homes.setdefault(load.name, Homes())
        clients = Clients(running.port, load, self._requests[load.name], homes, named=running.contender.ours)
        try:
            # Connections are opened and each session's first turn is over before the count begins.
            self._runner.run(clients.run(max(SESSIONS, load.connections)))
            gauged_ms = gauge_ms()
            machine = used()
            own = self._own_s()
            proxy = running.program.cpu_s()
            with _no_collection():
                answers = self._runner.run(clients.run(load.requests))
            cpu_s = spent_s(proxy, running.program.cpu_s())
            others = others_share(
                machine, used(), self._own_s() - own, len(self._cores.proxy | self._cores.rest)
            )
        finally:
            clients.close()
        after_ms = gauge_ms()
        self._fastest_ms = min(self._fastest_ms, gauged_ms, after_ms)
        return _Measured(answers, cpu_s, others, max(gauged_ms, after_ms))

    def _own_s(self) -> float:
        """Processor seconds of the bench and of all that it started."""
        return time.process_time() + sum(sum(program.cpu_s().values()) for program in self._programs)

    # --- starting -----------------------------------------------------------------------------------

    def _start_fleet(self, upstreams: int) -> None:
        replicas = self._start(
            [sys.executable, "-m", "loadtest.bench.replica", str(upstreams)],
            self._cores.rest,
            f"replicas-{upstreams}",
            environment={"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
        )
        line = replicas.first_line()
        if not line:
            raise BenchError(f"the replicas do not start. {replicas.last_words()}")
        ports = orjson.loads(line)
        self._fleets[upstreams] = [self._start_proxy(entrant, ports) for entrant in self._entrants]
        time.sleep(_SETTLE_S)

    def _start_proxy(self, entrant: Entrant, upstreams: Sequence[int]) -> _Running:
        contender, found = entrant
        self._say(f"starting {contender.name} before {len(upstreams)} replicas")
        name = f"{contender.name}-{len(upstreams)}"
        folder = self._folder / name
        folder.mkdir()
        port, spare_port = free_ports(2)
        arguments = contender.arguments(Setting(found.path, port, spare_port, upstreams, folder))
        program = self._start(arguments, self._cores.proxy, name, environment=found.environment)
        _wait_until_ready(program, port, contender.name)
        return _Running(contender, program, port)

    def _start(
        self,
        arguments: Sequence[str],
        cores: frozenset[int],
        name: str,
        *,
        environment: Mapping[str, str],
        stdout: int = subprocess.DEVNULL,
    ) -> Program:
        log = self._folder / f"{name}.log"
        program = Program(arguments, cores, log=log, environment=environment, stdout=stdout)
        self._programs.append(self._stack.enter_context(program))
        return program


@contextmanager
def _no_collection() -> Iterator[None]:
    """A collection in mid-run would show as the proxy's latency."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _wait_until_ready(program: Program, port: int, name: str) -> None:
    """Until a turn comes back right. Raises `BenchError` where the program ends or takes too long."""
    body = work.chat_body(work.LOADS[0], 0)
    headers = {"Content-Type": "application/json", "X-Session-ID": "ready"}
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        program.check()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise BenchError(f"{name} is not ready after {_READY_S:g} s. {program.last_words()}")
