"""Watches files: tells when others lie in their place and stay so. Knows nothing of what they say."""

import asyncio
from collections.abc import Awaitable, Callable

from router.base.stamps import Stamps
from router.base.tasks import TaskOwner


class FileWatch:
    """Looks at files every `every_s` seconds once it is started.

    `look` is called in a thread, since a file system may hang. `changed` is awaited when two looks in a row
    find the same new files: whoever replaces several does so one after the other.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], Stamps],
        changed: Callable[[], Awaitable[object]],
        *,
        known: Stamps,
        every_s: float = 2.0,
    ) -> None:
        """`known` are the files as they were read; `name` is for the log."""
        self._name = name
        self._look = look
        self._changed = changed
        self._every_s = every_s
        self._judged = known
        """Of the files that were taken or refused last."""
        self._seen = known
        self._tasks = TaskOwner()

    def start(self) -> None:
        """Needs a running event loop."""
        self._tasks.spawn(self.run(), name=f"watch {self._name}")

    async def close(self) -> None:
        """May be called again."""
        await self._tasks.close()

    def know(self, stamps: Stamps) -> None:
        """The files were read as they stand, or others are watched from now on: they are no news."""
        self._judged = self._seen = stamps

    async def saw(self, stamps: Stamps) -> None:
        """Take in one look at the files."""
        settled = stamps == self._seen
        self._seen = stamps
        if settled and stamps != self._judged:
            self._judged = stamps
            await self._changed()

    async def run(self) -> None:
        """Watch until cancelled; what `start` does in a task of its own."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.saw(await asyncio.to_thread(self._look))
