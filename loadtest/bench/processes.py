"""Other programs: started on the cores they are given, their processor time read, ended without a trace.

Linux only.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from loadtest.bench.errors import BenchError

_PROC: Final = Path("/proc")
_LEASH: Final = Path(__file__).with_name("leash.py")
_STOP_S: Final = 5.0

# What a proxy sees of our environment. Without the rest, a proxy setting for the way out cannot come
# between a contender and its replicas.
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR")


class Program:
    """A running program with all that it starts. A context manager: leaving it ends them all."""

    def __init__(
        self,
        arguments: Sequence[str],
        cores: Collection[int],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        stdout: int = subprocess.DEVNULL,
    ) -> None:
        """`log` takes what it writes to stderr. A program that cannot be started shows in `check`."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._name = Path(arguments[0]).name
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-S", str(_LEASH), ",".join(map(str, cores)), *arguments],
                env=kept | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # A group of its own: a Ctrl-C at the terminal reaches the bench, which ends the rest.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_line(self) -> bytes:
        """The first line of its output, waited for. Only with `stdout=PIPE`."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def check(self) -> None:
        """Raise `BenchError`, with the end of its log, where it has ended."""
        status = self._process.poll()
        if status is not None:
            raise BenchError(f"{self._name} ended with status {status}. {self.last_words()}")

    def last_words(self) -> str:
        return " | ".join(self._log.read_text("utf-8", "replace").splitlines()[-5:])

    def cpu_s(self) -> Mapping[int, float]:
        """Processor seconds so far of each process of the tree, to the nanosecond."""
        return {pid: _cpu_s(pid) for pid in family(self.pid, _parents())}

    def close(self) -> None:
        """Ask the whole group to end, and end what does not."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        # Whether the leader went or not: none of its group may stay.
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Processor seconds between two readings of a tree; a process that came in between counts whole.

    Raises `BenchError` where one of the processes is gone, and with it what it spent.
    """
    if gone := before.keys() - after.keys():
        raise BenchError(f"process {min(gone)} ended while it was measured")
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def rss(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    status = (_PROC / str(pid) / "status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise BenchError(f"process {pid} is gone")
    return int(found[1]) * 1024


def resident_bytes(root: int) -> int:
    """The same of all its tree together; what they share counts for each."""
    return sum(rss(pid) for pid in family(root, _parents()))


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def family(root: int, parents: Mapping[int, int]) -> set[int]:
    """`root` and all that descend from it, given each process's parent."""
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _parents() -> Mapping[int, int]:
    parents = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name is in parentheses and may hold any character; the parent is the second field after it.
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _cpu_s(pid: int) -> float:
    # A process's processor-time clock, as clock_getcpuclockid(3) makes its id: all threads, those that have
    # ended included. /proc/PID/stat has the same in ticks of 10 ms.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError as error:
        raise BenchError(f"process {pid} is gone: {error}") from error
