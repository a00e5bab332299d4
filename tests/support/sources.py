"""What a source of replicas tells, kept for a test."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from router.controlplane.discovery import Source
from router.controlplane.roster import Listed


class Told:
    """A `Report` that keeps everything."""

    def __init__(self) -> None:
        self.replicas: dict[str, str] | None = None
        """URL by name, as found last."""
        self.keys: dict[str, str | None] = {}
        """API key by name."""
        self.but = ""
        self.faults: list[str] = []
        self.times = 0

    def found(self, listed: Sequence[Listed], but: str = "") -> None:
        self.times += 1
        self.replicas = {one.spec.id: one.spec.url for one in listed}
        self.keys = {one.spec.id: one.api_key for one in listed}
        self.but = but

    def failed(self, fault: str) -> None:
        self.faults.append(fault)


@asynccontextmanager
async def watched(source: Source) -> AsyncIterator[Told]:
    """Run a source for as long as the block lasts."""
    told = Told()
    task = asyncio.ensure_future(source.run(told))
    try:
        yield told
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
