"""The machine: what it is, how its cores are shared out, and how busy it is with other work. Linux only."""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from loadtest.bench.errors import BenchError

_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")

# Fields of the `cpu` line of /proc/stat, in order. `guest` and `guest_nice` follow, and are part of `user`.
_FIELDS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Cores(NamedTuple):
    """Which cores do what."""

    proxy: frozenset[int]
    """One core, for the proxy that is measured and the idle ones."""
    rest: frozenset[int]
    """All others, for the load and the replicas."""


def share_out(available: frozenset[int]) -> Cores:
    """The first core for the proxies, the others for the rest. Raises `BenchError` with fewer than two."""
    if len(available) < 2:
        raise BenchError("two cores are needed: one for the proxy, one for the load and the replicas")
    first = min(available)
    return Cores(frozenset({first}), available - {first})


class Used(NamedTuple):
    """Processor time of the whole machine since it started, in seconds."""

    at: float
    """Monotonic seconds at which it was read."""
    busy_s: float
    stolen_s: float
    """Time that the host gave to other guests; part of `busy_s`."""


def used() -> Used:
    return parse_used(Path("/proc/stat").read_text(), time.monotonic())


def parse_used(stat: str, at: float) -> Used:
    ticks = dict(zip(_FIELDS, map(int, stat.partition("\n")[0].split()[1:]), strict=False))
    busy = sum(ticks.values()) - ticks["idle"] - ticks["iowait"]
    return Used(at, busy / _TICKS_A_S, ticks.get("steal", 0) / _TICKS_A_S)


def others_share(before: Used, after: Used, own_s: float, cores: int) -> float:
    """Share of the machine, 0 … 1, that other work took: what was busy and not ours, steal included."""
    capacity_s = (after.at - before.at) * cores
    return max(0.0, after.busy_s - before.busy_s - own_s) / capacity_s


def gauge_ms() -> float:
    """Processor time that a fixed piece of work takes, in ms: how fast the cores are at this moment.

    A host that gives a core to other guests does not always say so as steal: then processor time itself
    grows, and this with it.
    """
    started = time.process_time()
    total = 0
    for number in range(200_000):
        total += number
    return (time.process_time() - started) * 1e3


def describe() -> Mapping[str, str | int]:
    """For the results: what was measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "system": _system(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
