"""Which blocks to give up first: a heap by worth that tolerates change.

Worth only ever grows (a use adds to it), and old uses fade alike for all, so that the order of two blocks
does not change with time by itself. A block is looked at anew when it comes to the top. Knows nothing of
zones, leases or room: the caller passes over what it wants to keep.
"""

import heapq
from collections.abc import Callable, Iterator
from math import log2
from typing import Final, Generic, Protocol, TypeVar


class Ranked(Protocol):
    """What can be ranked."""

    def worth(self) -> float:
        """In powers of two; more is dearer."""
        ...

    def is_leaf(self) -> bool:
        """Whether it may go before others do."""
        ...


K = TypeVar("K")
V = TypeVar("V", bound=Ranked)

_SLACK: Final = 2
"""The heap is rebuilt when it holds so many times what there is."""


class Ranking(Generic[K, V]):
    """Leaves of a collection, the least worthy first."""

    __slots__ = ("_find", "_heap", "_next")

    def __init__(self, find: Callable[[K], V | None]) -> None:
        """`find`: the block of a key, `None` once it is gone."""
        self._find = find
        self._heap: list[tuple[float, int, K]] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: K, ranked: V) -> None:
        """It is a leaf, maybe again."""
        self._next += 1
        heapq.heappush(self._heap, (ranked.worth(), self._next, key))

    def cheapest(self, take: Callable[[V], bool]) -> Iterator[V]:
        """Leaves that `take` agrees to, the least worthy first. The caller removes each before the next.

        Those that it does not agree to are kept for the next time.
        """
        passed: list[tuple[float, int, K]] = []
        seen: set[K] = set()
        try:
            while self._heap:
                item = heapq.heappop(self._heap)
                worth, number, key = item
                ranked = self._find(key)
                if ranked is None or not ranked.is_leaf() or key in seen:
                    continue
                if (current := ranked.worth()) > worth:
                    heapq.heappush(self._heap, (current, number, key))
                elif take(ranked):
                    yield ranked
                else:
                    seen.add(key)
                    passed.append(item)
        finally:
            for item in passed:
                heapq.heappush(self._heap, item)

    def compact(self, count: int) -> None:
        """Forget what is stale, where it outweighs the `count` blocks that there are."""
        if len(self._heap) <= _SLACK * count + 64:
            return
        best: dict[K, tuple[float, int, K]] = {}
        for item in self._heap:
            ranked = self._find(item[2])
            if ranked is not None and ranked.is_leaf():
                best[item[2]] = item
        self._heap = list(best.values())
        heapq.heapify(self._heap)


def warmed(heat: float, now: float, half_life_s: float) -> float:
    """The heat after one more use. Heat is log2 of the sum of 2^(time ÷ half-life) over all uses, so that a
    use weighs half as much as one that came a half-life later, whenever the two are compared."""
    use = now / half_life_s
    high, low = max(heat, use), min(heat, use)
    return high + log2(1.0 + 2.0 ** (low - high))
