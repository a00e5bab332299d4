"""`python -m loadtest.soak`: an hour of turns in simulated time, with faults; then all must be as it was.

A replica is killed and comes back, one is slow for a while, clients leave. Printed on the way: the router's
memory, open files and tasks. Exit status 0 where memory was flat, no turn failed but those that were cut off
with a killed replica, and at rest every count is back where it began; 1 where not. Linux only.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import uvloop

from loadtest.agents.profile import load_profile
from loadtest.bench.command import Command
from loadtest.bench.contenders import Places
from loadtest.bench.errors import BenchError
from loadtest.bench.processes import rss
from loadtest.race.cell import FleetControl, Running, running
from loadtest.race.clients import Crowd, was_cut
from loadtest.race.routers import ours_with
from loadtest.race.scenarios import REPLICA, REPLICAS

SESSIONS: Final = 32
LOOK_S: Final = 120.0
"""Simulated seconds between two looks."""

ROUND_S: Final = 600.0
"""A round of faults: a replica slow for a fifth of it, another killed, and back after a tenth."""

MEMORY_SHARE: Final = 0.05
MEMORY_MIB: Final = 4.0
"""So much more the router may hold in the last fifth than in the second: what it keeps is bounded, but not
filled after so short a time."""

KEPT_BODIES: Final = "2MiB"
"""The store of sessions' latest bodies is full before memory is looked at. At its usual 32 MiB it fills for
most of the hour, and nothing that grows beside it would show."""

_REST_S: Final = 60.0

_LOOKS_AT_REST: Final = 12
_BETWEEN_LOOKS_S: Final = 0.17
"""Not a share of the second between two looks at the replicas, so that they do not fall into step."""

_COUNTS: Final = (
    "homing_replica_in_flight",
    "homing_replica_pending_tokens",
    "homing_replica_held",
    "homing_held_bytes",
    "homing_client_connections",
    "homing_replica_connections",
)
"""Gauges that must be 0 where nothing is asked."""


class Look(NamedTuple):
    """The router at one instant."""

    at_s: float
    """Simulated seconds."""
    memory: int
    """Bytes."""
    files: int
    """Open files, sockets among them."""
    tasks: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    looks: Sequence[Look]
    rested_before: Look
    rested_after: Look
    left_over: dict[str, float]
    """Counts that are not 0 at rest."""
    turns: int
    cut: int
    failures: Sequence[str]
    """What was said to turns that failed and were not cut."""

    def faults(self) -> list[str]:
        """What is not as it must be."""
        found = []
        before, after = memory(self.looks)
        if after > before * (1 + MEMORY_SHARE) + MEMORY_MIB * 2**20:
            found.append(f"memory grows: {before / 2**20:.1f} MiB early, {after / 2**20:.1f} MiB late")
        if self.rested_after.files > self.rested_before.files:
            found.append(f"open files: {self.rested_before.files} before, {self.rested_after.files} after")
        if self.rested_after.tasks > self.rested_before.tasks:
            found.append(f"tasks: {self.rested_before.tasks} before, {self.rested_after.tasks} after")
        found += [f"{name} is {value:g} at rest" for name, value in self.left_over.items()]
        if self.failures:
            found.append(f"{len(self.failures)} turns failed: {self.failures[0]}")
        if not self.turns:
            found.append("no turn was answered")
        return found


def memory(looks: Sequence[Look]) -> tuple[float, float]:
    """The mean of the second fifth of the looks, and of the last."""
    fifth = max(1, len(looks) // 5)
    early, late = looks[fifth : 2 * fifth] or looks[:1], looks[-fifth:]
    return sum(look.memory for look in early) / len(early), sum(look.memory for look in late) / len(late)


def faults_of(round_: int) -> list[tuple[float, str, int]]:
    """What happens in one round of faults: after how long, what, to which replica."""
    slow, dead = round_ % REPLICAS, (round_ + 1) % REPLICAS
    return [
        (0.2 * ROUND_S, "slow", slow),
        (0.4 * ROUND_S, "restore", slow),
        (0.6 * ROUND_S, "kill", dead),
        (0.7 * ROUND_S, "start", dead),
    ]


async def soak(seconds: float, scale: float, seed: int, folder: Path) -> Outcome:
    """`seconds` simulated ones. Raises `BenchError` where the router does not start, or ends."""
    router = ours_with(limits={"kept_bodies": KEPT_BODIES})
    found = router.contender.find(Places(folder, folder))
    if found is None:
        raise BenchError(f"no router here: {router.contender.missing}")
    cores = frozenset(os.sched_getaffinity(0))
    async with running(router, found, REPLICAS, REPLICA, scale=scale, folder=folder, cores=cores) as one:
        await _until_at_rest(one)
        before = await _look_at_rest(one, 0.0)
        crowd = Crowd(
            load_profile("soak"),
            seed,
            port=one.setting.port,
            count=SESSIONS,
            scale=scale,
            come_within_s=LOOK_S,
        )
        crowd.begin()
        try:
            looks = await _watch(one, crowd, seconds)
        finally:
            await crowd.close()
        left_over = await _until_at_rest(one)
        after = await _look_at_rest(one, crowd.now())
    failed = [turn for turn in crowd.played.turns if turn.failure is not None]
    return Outcome(
        looks,
        before,
        after,
        left_over,
        len(crowd.played.turns) - len(failed),
        sum(map(was_cut, failed)),
        [turn.failure or "" for turn in failed if not was_cut(turn)],
    )


async def _watch(one: Running, crowd: Crowd, seconds: float) -> list[Look]:
    control = FleetControl(one.control)
    happens = [
        (number * ROUND_S + at, what, replica)
        for number in range(int(seconds // ROUND_S))
        for at, what, replica in faults_of(number)
    ]
    looks = []
    at = 0.0
    while at < seconds:
        at += LOOK_S
        while happens and happens[0][0] < at:
            due, what, replica = happens.pop(0)
            await crowd.sleep_until(due)
            await control.do(what, replica)
        await crowd.sleep_until(at)
        looks.append(await _look(one, at))
        _print(looks[-1], f"{len(crowd.played.turns)} turns")
    return looks


async def _look(one: Running, at_s: float) -> Look:
    one.program.check()
    pid = one.program.pid
    gauges = await _gauges(one.setting.spare_port)
    if missing := {*_COUNTS, "homing_tasks"} - {name for name, _ in gauges}:
        raise BenchError(f"this router does not tell {', '.join(sorted(missing))}: is it of this tree?")
    tasks = sum(value for name, value in gauges if name == "homing_tasks")
    return Look(at_s, rss(pid), len(os.listdir(f"/proc/{pid}/fd")), int(tasks))  # noqa: PTH208 - a count


async def _look_at_rest(one: Running, at_s: float) -> Look:
    """The least of several looks. At rest the router still looks at its replicas each second, with a file and
    a task for as long as that takes; what has leaked is there each time."""
    looks = []
    for _ in range(_LOOKS_AT_REST):
        looks.append(await _look(one, at_s))
        await asyncio.sleep(_BETWEEN_LOOKS_S)
    return Look(
        at_s,
        min(look.memory for look in looks),
        min(look.files for look in looks),
        min(look.tasks for look in looks),
    )


async def _until_at_rest(one: Running) -> dict[str, float]:
    """Wait until all counts are 0; those that are not when the time is up."""
    until = time.monotonic() + _REST_S
    while True:
        left: dict[str, float] = {}
        for name, value in await _gauges(one.setting.spare_port):
            if name in _COUNTS and value:
                left[name] = left.get(name, 0.0) + value
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(0.25)


async def _gauges(port: int) -> list[tuple[str, float]]:
    """Every series of the router's metrics, by name without labels."""
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics", timeout=30)).text
    rows = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(name.partition("{")[0], float(value)) for name, _, value in rows]


def _print(look: Look, said: str) -> None:
    print(
        f"{look.at_s:7.0f} s  {look.memory / 2**20:7.1f} MiB  {look.files:4d} files  {look.tasks:3d} tasks"
        f"  {said}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="simulated seconds (default 3600)")
    parser.add_argument("--scale", type=float, default=30.0, help="simulated seconds a real one (default 30)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    return Command("soak").run(lambda: _soaked(arguments), stopped="stopped, with all that it had started")


def _soaked(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="homing-soak-") as folder:
        outcome = uvloop.run(soak(arguments.seconds, arguments.scale, arguments.seed, Path(folder)))
    _print(outcome.rested_before, "at rest before")
    _print(outcome.rested_after, "at rest after")
    early, late = memory(outcome.looks)
    print(
        f"{outcome.turns} turns answered, {outcome.cut} cut off with a killed replica,"
        f" {len(outcome.failures)} failed; memory {early / 2**20:.1f} MiB early, {late / 2**20:.1f} MiB late"
    )
    faults = outcome.faults()
    for fault in faults:
        print(f"NOT FLAT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
