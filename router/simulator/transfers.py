"""Transfers between KV agents on an event loop: how long blocks would travel, where none do.

`Network` says how fast they are together; this waits until they have come. Replicas of one process may share
one, and then share their paths.
"""

import asyncio
import itertools

from router.base.ids import ReplicaId
from router.simulator.replay.network import Network


class Transfers:
    """All transfers of those who share it. Made and used on the loop's thread."""

    def __init__(self, gbps: float) -> None:
        """`gbps`: gigabits a second that each end sends, and receives."""
        self._network = Network(gbps)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._names = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, source: str, target: str, size: float, within_s: float) -> float:
        """Wait until so many bytes have come; how many have, which are fewer after `within_s` seconds, or
        where an end was lost meanwhile."""
        if size <= 0.0 or within_s <= 0.0:
            return 0.0
        name, now = f"{next(self._names)}", self._loop.time()
        came: asyncio.Future[float] = self._loop.create_future()
        self._waiting[name] = came
        self._network.start(name, ReplicaId(source), ReplicaId(target), size, now, now + within_s)
        self._set_timer()
        try:
            return await came
        finally:
            # One that nobody waits for any more runs out by itself, and takes its share until then.
            self._waiting.pop(name, None)

    def cut(self, end: str, target: str | None = None) -> None:
        """It is lost: what it sends and receives ends with what has come; with `target`, only what goes there
        from it."""
        to = None if target is None else ReplicaId(target)
        self._network.cut(ReplicaId(end), self._loop.time(), target=to)
        self._take()

    def _take(self) -> None:
        for arrival in self._network.advance(self._loop.time()):
            came = self._waiting.get(arrival.name)
            if came is not None and not came.done():
                came.set_result(arrival.size)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._network.next_time()
        self._timer = None if at is None else self._loop.call_at(at, self._take)
