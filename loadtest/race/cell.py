"""One run: a fresh fleet, a router before it, the sessions, and the figures of what came of them."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import orjson

from loadtest.agents.profile import Profile
from loadtest.bench.contenders import Setting
from loadtest.bench.debian import Found
from loadtest.bench.errors import BenchError
from loadtest.bench.figures import percentile
from loadtest.bench.machine import others_share, used
from loadtest.bench.processes import Program, free_ports, resident_bytes
from loadtest.race import fleet
from loadtest.race.clients import Crowd, Played, Turn, request, was_cut
from loadtest.race.routers import Router
from loadtest.race.scenarios import MEASURED_S, WARM_S, Scenario
from router.simulator.settings import ReplicaSettings

MOST_BUSY: Final = 0.80
"""A run during which the machine was busier is void."""

MOST_OTHERS: Final = 0.15
"""So is one during which other work took more of it, unless the race goes first."""

MOST_LATE_S: Final = 0.1
"""So is one in which more than one in a hundred of the fleet's timers were later, in simulated seconds: its
times are wrong."""

_READY_S: Final = 60.0
_SETTLE_S: Final = 1.5
_LOOK_S: Final = 0.5
_TREE: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The figures of one run. Times are simulated seconds, but for the router's processor time."""

    router: str
    scenario: str
    seed: int
    scale: float
    turns: int
    failed: int
    """Turns without an answer, or with a part of one; `cut` is the latter."""
    cut: int
    failures: Mapping[str, int]
    """What was said, and how often."""
    hit_rate: float
    """Share of the prompt tokens that replicas had cached, as they count."""
    ttft_s: Mapping[str, float]
    """mean, p50, p90, p99."""
    by_place: Mapping[str, Mapping[str, float]]
    """The same by place of the turn in its session, with how many there were."""
    session_s: Mapping[str, float]
    """p50 and p90 of sessions that began and ended while measured."""
    turns_per_s: float
    imbalance: float
    """Prompt tokens computed by the replica that computed most ÷ the mean."""
    cpu_ms_a_turn: float
    core: float
    """Share of a core that the router took, in real time."""
    memory_mib: float
    """The most that its processes held."""
    busy: float
    others: float
    """Share of the machine that was busy, and that other work took."""
    first: bool
    """Whether the race took precedence over other work."""
    late_ms: float
    """How late, real time, 99 of 100 of the fleet's timers were at most."""

    @property
    def void(self) -> bool:
        if self.late_ms * self.scale > MOST_LATE_S * 1e3:
            return True
        if self.first:
            return self.busy - self.others > MOST_BUSY
        return self.busy > MOST_BUSY or self.others > MOST_OTHERS


class _Reading(NamedTuple):
    at_s: float
    totals: Sequence[Mapping[str, int]]


class Running(NamedTuple):
    """A fleet with a router before it."""

    setting: Setting
    """What the router was given: its ports, and the replicas that it knows."""
    program: Program
    """The router."""
    replicas: Program
    ports: Sequence[int]
    """Of all replicas, those that are to be added included."""
    control: int
    """The fleet's port for what is to happen to it."""


@asynccontextmanager
async def running(
    router: Router,
    found: Found,
    known: int,
    replica: ReplicaSettings,
    *,
    spare: int = 0,
    scale: float,
    folder: Path,
    cores: frozenset[int],
) -> AsyncIterator[Running]:
    """Start both, and end both. The router is told of the first `known` replicas; `spare` others run as well.

    Raises `BenchError` where the router does not start.
    """
    events = fleet.event_ports(known + spare) if router.kv_events else []
    with Program(
        fleet.arguments(known + spare, replace(replica, time_scale=scale), events),
        cores,
        log=folder / "fleet.log",
        environment={"PYTHONPATH": str(_TREE)},
        stdout=subprocess.PIPE,
    ) as replicas:
        line = await asyncio.to_thread(replicas.first_line)
        if not line:
            raise BenchError(f"the replicas do not start. {replicas.last_words()}")
        started = orjson.loads(line)
        port, spare_port = free_ports(2)
        told_at = dict(zip((f"http://127.0.0.1:{each}" for each in started["ports"]), events, strict=False))
        setting = Setting(found.path, port, spare_port, started["ports"][:known], folder, told_at)
        with Program(
            router.arguments(setting), cores, log=folder / "router.log", environment=found.environment
        ) as program:
            if goes_first():
                # Behind the replicas and the clients, which elsewhere have machines of their own; and not in
                # real time: the kernel stops all that is where a router takes a whole core.
                os.sched_setscheduler(program.pid, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, program.pid, -20)
            await _wait_until_ready(program, port, router.name)
            yield Running(setting, program, replicas, started["ports"], started["control"])


def go_first() -> None:
    """Take precedence over all other work on the machine, with what is started from here on. Raises
    `BenchError` where that is not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError as error:
        raise BenchError("--first needs the right to set real-time priorities: run it as root") from error


def goes_first() -> bool:
    return os.sched_getscheduler(0) == os.SCHED_RR


class FleetControl:
    """Asks the fleet's process."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def do(self, what: str, replica: int) -> None:
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{self._url}/do", json={"what": what, "replica": replica}, timeout=30)
            answer.raise_for_status()

    async def totals(self) -> Any:
        """As `Fleet.totals` has them."""
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{self._url}/totals", timeout=30)).json()


async def run(
    router: Router,
    found: Found,
    scenario: Scenario,
    seed: int,
    *,
    profile: Profile,
    scale: float,
    folder: Path,
    cores: frozenset[int],
) -> Cell:
    """Play it. Raises `BenchError` where the router does not start, or ends."""
    async with running(
        router,
        found,
        scenario.replicas,
        scenario.replica,
        spare=sum(event.what == "add" for event in scenario.events),
        scale=scale,
        folder=folder,
        cores=cores,
    ) as one:
        crowd = Crowd(
            profile,
            seed,
            port=one.setting.port,
            count=scenario.sessions,
            scale=scale,
            come_within_s=WARM_S * 0.6,
        )
        return await _Course(router, one, scenario, scale).play(crowd, seed, len(cores))


class _Course:
    """A run under way."""

    def __init__(self, router: Router, one: Running, scenario: Scenario, scale: float) -> None:
        self._router = router
        self._one = one
        self._control = FleetControl(one.control)
        self._scenario = scenario
        self._scale = scale
        self._cpu_s: dict[int, float] = {}
        """Of each process that the router had, the last that was read."""
        self._resident = 0

    async def play(self, crowd: Crowd, seed: int, cores: int) -> Cell:
        crowd.begin()
        try:
            await crowd.sleep_until(WARM_S)
            self._look()
            cpu_s = sum(self._cpu_s.values())
            machine, own = used(), self._own_s()
            before = await self._totals(crowd)
            events = list(self._scenario.events)
            while crowd.now() < WARM_S + MEASURED_S:
                following = WARM_S + (events[0].at_s if events else MEASURED_S)
                await crowd.sleep_until(min(following, crowd.now() + _LOOK_S * self._scale))
                self._look()
                if events and crowd.now() >= WARM_S + events[0].at_s:
                    event = events.pop(0)
                    await self._happen(event.what, event.replica)
            after = await self._totals(crowd)
            self._look()
            late_ms = (await self._control.totals())["late_ms"]
            share = others_share(machine, ended := used(), self._own_s() - own, cores)
            busy = (ended.busy_s - machine.busy_s) / ((ended.at - machine.at) * cores)
            spent = sum(self._cpu_s.values()) - cpu_s
            real_s = ended.at - machine.at
        finally:
            await crowd.close()
        return self._figures(
            crowd.played,
            before,
            after,
            seed,
            cpu_s=spent,
            real_s=real_s,
            busy=busy,
            others=share,
            late_ms=late_ms,
        )

    async def _happen(self, what: str, replica: int) -> None:
        if what != "add":
            await self._control.do(what, replica)
            return
        setting = self._one.setting._replace(upstreams=self._one.ports[: replica + 1])
        await asyncio.to_thread(self._router.add, setting, self._one.program.pid)

    async def _totals(self, crowd: Crowd) -> _Reading:
        return _Reading(crowd.now(), (await self._control.totals())["replicas"])

    def _look(self) -> None:
        """A router that reloads ends processes and starts others; what those spent counts, too."""
        program = self._one.program
        program.check()
        with suppress(BenchError):  # one that ended between two lines
            self._cpu_s.update(program.cpu_s())
            self._resident = max(self._resident, resident_bytes(program.pid))

    def _own_s(self) -> float:
        replicas = self._one.replicas.cpu_s()
        return time.process_time() + sum(replicas.values()) + sum(self._cpu_s.values())

    def _figures(
        self,
        played: Played,
        before: _Reading,
        after: _Reading,
        seed: int,
        *,
        cpu_s: float,
        real_s: float,
        busy: float,
        others: float,
        late_ms: float,
    ) -> Cell:
        turns = [turn for turn in played.turns if before.at_s <= turn.ended_s <= after.at_s]
        sessions = sorted(
            session.ended_s - session.began_s
            for session in played.sessions
            if before.at_s <= session.began_s and session.ended_s <= after.at_s
        )
        failed = [turn for turn in turns if turn.failure is not None]
        failures: dict[str, int] = {}
        for turn in failed:
            said = (turn.failure or "")[:160]
            failures[said] = failures.get(said, 0) + 1
        done = [
            {what: end[what] - start[what] for what in ("prompt", "computed")}
            for start, end in zip(before.totals, after.totals, strict=True)
        ]
        computed = [one["computed"] for one in done]
        prompt = sum(one["prompt"] for one in done)
        places = sorted(
            {turn.place for turn in turns}, key=lambda name: int(name.split()[1].split("-")[0].rstrip("+"))
        )
        seconds = after.at_s - before.at_s
        return Cell(
            router=self._router.name,
            scenario=self._scenario.name,
            seed=seed,
            scale=self._scale,
            turns=len(turns),
            failed=len(failed),
            cut=sum(map(was_cut, failed)),
            failures=failures,
            hit_rate=1 - sum(computed) / prompt if prompt else 0.0,
            ttft_s=_spread(turns),
            by_place={name: _spread([turn for turn in turns if turn.place == name]) for name in places},
            session_s={
                "count": float(len(sessions)),
                "p50": percentile(sessions, 0.5) if sessions else 0.0,
                "p90": percentile(sessions, 0.9) if sessions else 0.0,
            },
            turns_per_s=(len(turns) - len(failed)) / seconds,
            imbalance=max(computed) * len(computed) / max(1, sum(computed)),
            cpu_ms_a_turn=cpu_s / max(1, len(turns)) * 1e3,
            core=cpu_s / real_s,
            memory_mib=self._resident / 2**20,
            busy=busy,
            others=others,
            first=goes_first(),
            late_ms=late_ms,
        )


def document(cell: Cell) -> dict[str, Any]:
    """For a results file; `Cell(**…)` is the reverse."""
    return asdict(cell)


def _spread(turns: Sequence[Turn]) -> dict[str, float]:
    """Of the turns that came through."""
    values = sorted(turn.ttft_s for turn in turns if turn.failure is None and turn.ttft_s is not None)
    if not values:
        return {"count": 0.0}
    return {
        "count": float(len(values)),
        "mean": sum(values) / len(values),
        **{f"p{share}": percentile(values, share / 100) for share in (50, 90, 99)},
    }


async def _wait_until_ready(program: Program, port: int, name: str) -> None:
    """Until turns come back right, and replicas had time to be taken in."""
    body = b'{"model":"sim-model","max_tokens":1,"messages":[{"role":"user","content":"are you there"}]}'
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        program.check()
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request(port, "X-Session-ID: ready\r\nConnection: close\r\n", body))
                if (await asyncio.wait_for(reader.readline(), 5.0)).split()[1:2] == [b"200"]:
                    await asyncio.sleep(_SETTLE_S)
                    return
            except TimeoutError:
                pass
            finally:
                writer.close()
        await asyncio.sleep(0.1)
    raise BenchError(f"{name} is not ready after {_READY_S:g} s. {program.last_words()}")
