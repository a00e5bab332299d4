"""Owns background tasks, so that none is lost, none outlives its owner and no failure is silent.

`asyncio.TaskGroup` brings every sibling down when one task raises. That is right for a batch and wrong
for a server, where one failed connection attempt must not close the others: this owner reports instead.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


class TaskOwner:
    """A set of tasks with one ending. Tasks that raise are logged with their name and traceback, and so are
    those that end as cancelled although nobody cancelled them: whoever looks at a cancelled future's result
    raises that by mistake."""

    __slots__ = ("_closed", "_tasks")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, object], *, name: str) -> asyncio.Task[object]:
        """Run `work` until it ends or the owner closes. Raises `RuntimeError` once closed."""
        if self._closed:
            work.close()
            raise RuntimeError(f"cannot start {name!r}: its owner is closed")
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait until it has ended. May be called again."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                _log.error("task %r failed", task.get_name(), exc_info=error)
        elif not task.cancelling():
            _log.error("task %r ended by a cancellation that nobody asked for", task.get_name())


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait for the one that ends first, and end the others. Raises what one of them raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
