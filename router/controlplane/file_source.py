"""Finds replicas in a file that somebody else writes, and reads it anew when it is replaced."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from router.base.errors import SettingsError
from router.base.stamps import Stamps, stamps_of
from router.controlplane.discovery import Report
from router.controlplane.roster import Listed
from router.controlplane.watch import FileWatch


class FileSource:
    """A `Source`. `read` is called in a thread; it raises `SettingsError` with every fault of the file."""

    def __init__(self, path: Path, read: Callable[[Path], Sequence[Listed]], *, every_s: float = 2.0) -> None:
        self._path = path
        self._read = read
        self._every_s = every_s

    async def run(self, report: Report) -> None:
        async def take() -> None:
            try:
                listed = await asyncio.to_thread(self._read, self._path)
            except SettingsError as error:
                report.failed("; ".join(error.faults))
            else:
                report.found(listed)

        def look() -> Stamps:
            return stamps_of([self._path])

        # Before it is read: a file that changes meanwhile must look changed afterwards.
        known = await asyncio.to_thread(look)
        await take()
        await FileWatch(str(self._path), look, take, known=known, every_s=self._every_s).run()
