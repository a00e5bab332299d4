"""Finds replicas in a file that somebody else writes, and reads it anew when it, or a file that it names, is
replaced."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from router.base.stamps import Stamps, stamps_of
from router.controlplane.discovery import Report
from router.controlplane.roster import Listed
from router.controlplane.watch import FileWatch


class FileReading(NamedTuple):
    """A file of replicas, as it was read."""

    listed: Sequence[Listed] = ()
    faults: Sequence[str] = ()
    """All of them; where there are any, nothing is listed."""
    named: Sequence[Path] = ()
    """Where the files would lie that it names: keys, certificates."""


class FileSource:
    """A `Source`. `read` is called in a thread, and raises nothing for what the file says."""

    def __init__(self, path: Path, read: Callable[[Path], FileReading], *, every_s: float = 2.0) -> None:
        self._path = path
        self._read = read
        self._every_s = every_s
        self._named: tuple[Path, ...] = ()

    async def run(self, report: Report) -> None:
        async def take() -> None:
            reading = await asyncio.to_thread(self._read, self._path)
            # Those that are watched from here on look changed at once, and are read once more: they may
            # have been replaced since they were.
            self._named = tuple(reading.named)
            if reading.faults:
                report.failed("; ".join(reading.faults))
            else:
                report.found(reading.listed)

        def look() -> Stamps:
            return stamps_of([self._path, *self._named])

        # Before it is read: a file that changes meanwhile must look changed afterwards.
        known = await asyncio.to_thread(look)
        await take()
        await FileWatch(str(self._path), look, take, known=known, every_s=self._every_s).run()
