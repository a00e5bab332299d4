"""A bounded queue of blocks to push: in order within a priority, and the least important dropped when full.

Knows nothing of what it queues.
"""

from collections import deque
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Priority(IntEnum):
    """More important is greater."""

    ONE_OFF = 0
    """Of a session's first turn, which may be its last."""
    SESSION = 1
    SYSTEM = 2


class PushQueue(Generic[T]):
    """At most `limit` items. The newest of the lowest priority is dropped: what came before it may be its
    parents."""

    __slots__ = ("_limit", "_queues", "dropped")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[Priority, deque[T]] = {
            priority: deque() for priority in sorted(Priority, reverse=True)
        }
        self.dropped: dict[Priority, int] = dict.fromkeys(Priority, 0)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, item: T, priority: Priority) -> T | None:
        """Queue it; the item that had to go for it, perhaps itself."""
        self._queues[priority].append(item)
        if len(self) <= self._limit:
            return None
        lowest = min(found for found, queue in self._queues.items() if queue)
        self.dropped[lowest] += 1
        return self._queues[lowest].pop()

    def pop(self) -> T | None:
        """The first of the highest priority."""
        for queue in self._queues.values():
            if queue:
                return queue.popleft()
        return None

    def peek(self) -> T | None:
        """What `pop` would return."""
        return next((queue[0] for queue in self._queues.values() if queue), None)

    def clear(self) -> list[T]:
        """Empty it; what was in it."""
        items = [item for queue in self._queues.values() for item in queue]
        for queue in self._queues.values():
            queue.clear()
        return items
