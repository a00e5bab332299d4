"""Prefix index: hashed prompt segment → the shelves believed to hold it, with each shelf's own LRU.

A shelf stands for one tier of one replica; the engine knows which. The index knows no replicas, no tokens
and no time: recency is the order of touches.

Held to at every moment:

1. A segment's bit for a shelf is set exactly while that shelf lists the segment.
2. On a shelf, a segment is more recent than each of its descendants there. Eviction takes the least recent,
   hence tails before roots, and never takes a segment while a descendant of it is held.
3. So a shelf that holds a segment holds all that precede it, and `match` walks from the root and leaves a
   shelf at the first segment that it does not hold.
"""

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import sub
from typing import Any, Final

from router.core.memory import ShelfMemory

# Entries that one call may drop beyond as many as it added: about half a millisecond. Shrinking or closing
# a shelf with a million entries is spread over the touches that follow.
_SPREAD: Final = 1024

# Up to so many steps a plain loop is quicker than to set up one of the interpreter's own.
_FEW: Final = 12


class _Shelf:
    """What one shelf lists, least recent first, and what it adds up to."""

    __slots__ = ("bit", "capacity_bytes", "held_bytes", "number", "sizes")

    def __init__(self, number: int, capacity_bytes: float | None) -> None:
        self.number = number
        self.bit = 1 << number
        self.capacity_bytes = float("inf") if capacity_bytes is None else capacity_bytes
        self.held_bytes = 0
        # Segments are any objects here: hashes of 64 bits are no numbers that compiled code can hold unboxed.
        self.sizes: OrderedDict[Any, int] = OrderedDict()


class PrefixIndex:
    """Which leading segments of a prompt lie on which shelf. Methods raise `KeyError` for a shelf not open.

    Memory: 200 bytes a segment on its first shelf and about 150 on each further one, half as much
    again after heavy turnover, since a table that is always full grows once more.
    `tests/bench/prefix_memory.py` measures it; `max_segments` bounds it.
    """

    __slots__ = ("_entries", "_free", "_masks", "_max_segments", "_open", "_open_bits", "_retired", "_used")

    def __init__(self, *, max_segments: int = 2_000_000) -> None:
        """`max_segments` bounds the entries of all shelves together; a segment on two shelves is two."""
        self._max_segments = max_segments
        self._masks: dict[Any, int] = {}
        self._open: dict[int, _Shelf] = {}
        self._open_bits = 0
        self._retired: deque[_Shelf] = deque()
        # Entries on all shelves, the retired ones included: they take memory until they are dropped.
        self._entries = 0
        self._free: list[int] = []
        self._used = 0

    def __len__(self) -> int:
        """Entries of the open shelves together."""
        return self._entries - sum(len(shelf.sizes) for shelf in self._retired)

    def open_shelf(self, capacity_bytes: float | None) -> int:
        """A new, empty shelf: its number, as small as can be. `None` = no capacity of its own."""
        if self._free:
            number = heappop(self._free)
        else:
            number = self._used
            self._used += 1
        shelf = self._open[number] = _Shelf(number, capacity_bytes)
        self._open_bits |= shelf.bit
        return number

    def close_shelf(self, shelf: int) -> None:
        """Forget all that it holds. It matches nothing from now on.

        Its entries are dropped a bounded number at a time by later touches, and only then is its number
        given out again.
        """
        closed = self._open.pop(shelf)
        self._open_bits ^= closed.bit
        self._retired.append(closed)
        self._drain(_SPREAD)

    def resize(self, shelf: int, capacity_bytes: float | None) -> None:
        """Set a capacity in prompt bytes; `None` = none. A large excess leaves over the next touches."""
        resized = self._open[shelf]
        resized.capacity_bytes = float("inf") if capacity_bytes is None else capacity_bytes
        self._trim(resized, _SPREAD)

    def touch(self, shelf: int, hashes: Sequence[int], ends: Sequence[int]) -> None:
        """The shelf has just had this chain in use: all its segments, the root as the most recent.

        `ends` are prompt bytes up to and including each segment. A chain longer than the capacity is cut to
        the segments that fit, rather than pushing out all else and itself.
        """
        touched = self._open[shelf]
        sizes = touched.sizes
        count = len(hashes)
        if count and ends[-1] > touched.capacity_bytes:
            count = bisect_right(ends, touched.capacity_bytes)

        known = _known(sizes, hashes, count)
        added = count - known
        if added:
            # The deepest first, so that each is more recent than what follows it.
            self._add(touched, tuple(hashes[known:count])[::-1], ends, known)
        if known <= _FEW:
            for at in range(known - 1, -1, -1):
                sizes.move_to_end(hashes[at])
        else:
            # A loop of the interpreter's own: nothing is kept of it.
            deque(map(sizes.move_to_end, reversed(hashes[:known])), maxlen=0)
        if touched.held_bytes > touched.capacity_bytes:
            self._trim(touched, added + _SPREAD)
        if self._retired:
            self._drain(added + _SPREAD)
        while self._entries > self._max_segments:
            self._shed(self._entries - self._max_segments)

    def _add(self, shelf: _Shelf, new: tuple[Any, ...], ends: Sequence[int], known: int) -> None:
        """List segments on a shelf that does not, the last of a chain first; `known` go before them."""
        count = known + len(new)
        before = ends[known - 1 : count - 1] if known else (0, *ends[: count - 1])
        lengths = list(map(sub, ends[known:count], before))
        lengths.reverse()
        listed = len(shelf.sizes)
        shelf.sizes.update(zip(new, lengths, strict=True))
        bit, masks = shelf.bit, self._masks
        if masks.keys().isdisjoint(new):
            # One number, shared by all of the shelf's own segments.
            masks.update(dict.fromkeys(new, bit))
        else:
            for segment in new:
                masks[segment] = masks.get(segment, 0) | bit
        added = len(shelf.sizes) - listed
        # Two segments of one hash are one entry.
        shelf.held_bytes += (
            sum(lengths) if added == len(new) else sum(shelf.sizes.values()) - shelf.held_bytes
        )
        self._entries += added

    def match(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """(shelf, leading segments held there), shallowest first; a shelf that holds none is left out."""
        found: list[tuple[int, int]] = []
        holders = self._open_bits
        count = len(hashes)
        if not count or not holders:
            return found
        masks = self._masks
        # Who holds a segment holds all that precede it, so the place where the first of the holders leaves is
        # found by halving. A session's turn has two such places: the end of what all sessions share, and the
        # end of its own last turn.
        depth = 0
        while depth < count:
            last = masks.get(hashes[count - 1], 0) & holders
            if last == holders:
                break
            low, high, still = depth, count - 1, last
            while low < high:
                middle = (low + high) // 2
                mask = masks.get(hashes[middle], 0) & holders
                if mask == holders:
                    low = middle + 1
                else:
                    high, still = middle, mask
            if low:
                _append_each(holders ^ still, low, found)
            if not still:
                return found
            holders, depth = still, low + 1
        _append_each(holders, count, found)
        return found

    def dump(self, shelf: int) -> ShelfMemory:
        """All that the shelf lists."""
        sizes = self._open[shelf].sizes
        return ShelfMemory(array("Q", sizes).tobytes(), array("Q", sizes.values()).tobytes())

    def load(self, shelf: int, memory: ShelfMemory) -> None:
        """List what an index has dumped, on a shelf that lists nothing yet: the most recent that fit.

        Raises `ValueError` for a shelf that lists something. Takes about a second for a million segments.
        """
        loaded = self._open[shelf]
        if loaded.sizes:
            raise ValueError("only an empty shelf can be loaded")
        hashes, sizes = array("Q"), array("Q")
        hashes.frombytes(memory.hashes)
        sizes.frombytes(memory.sizes)
        loaded.sizes = OrderedDict(zip(hashes, sizes, strict=True))
        loaded.held_bytes = sum(loaded.sizes.values())
        self._entries += len(loaded.sizes)
        for segment in loaded.sizes:
            self._masks[segment] = self._masks.get(segment, 0) | loaded.bit
        self._trim(loaded, len(loaded.sizes))
        self._drain(len(loaded.sizes))
        while self._entries > self._max_segments:
            self._shed(self._entries - self._max_segments)

    def segments(self, shelf: int) -> int:
        """How many segments the shelf lists."""
        return len(self._open[shelf].sizes)

    def _clear(self, segment: Any, bit: int) -> None:
        rest = self._masks[segment] ^ bit
        if rest:
            self._masks[segment] = rest
        else:
            del self._masks[segment]

    def _evict(self, shelf: _Shelf, limit: int) -> int:
        """Drop the least recent entries, `limit` at most; the answer is how many there were."""
        sizes, bit = shelf.sizes, shelf.bit
        gone: list[Any] = list(islice(sizes, limit))
        for segment in gone:
            shelf.held_bytes -= sizes.pop(segment)
            self._clear(segment, bit)
        self._entries -= len(gone)
        return len(gone)

    def _trim(self, shelf: _Shelf, limit: int) -> None:
        """Evict until the shelf is within its capacity, `limit` entries at most."""
        excess = shelf.held_bytes - shelf.capacity_bytes
        if excess <= 0:
            return
        count = 0
        for size in shelf.sizes.values():
            if excess <= 0 or count == limit:
                break
            excess -= size
            count += 1
        self._evict(shelf, count)

    def _drain(self, limit: int) -> None:
        """Drop up to `limit` entries of retired shelves; free the numbers of those that are empty."""
        while self._retired:
            shelf = self._retired[0]
            limit -= self._evict(shelf, limit)
            if shelf.sizes:
                return
            self._retired.popleft()
            heappush(self._free, shelf.number)

    def _shed(self, excess: int) -> None:
        """Make room on the open shelf that lists most, the lowest of them.

        The retired are empty by then: `touch` has dropped as many of their entries as it added.
        """
        largest = max(self._open.values(), key=lambda shelf: (len(shelf.sizes), -shelf.number))
        self._evict(largest, excess)


def _known(sizes: "OrderedDict[Any, int]", hashes: Sequence[Any], count: int) -> int:
    """How many of the first `count` segments of a chain are listed: those up to one that is not."""
    if not count or hashes[count - 1] in sizes:
        return count
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] in sizes:
            low = middle + 1
        else:
            high = middle
    return low


def _append_each(bits: int, depth: int, found: list[tuple[int, int]]) -> None:
    while bits:
        lowest = bits & -bits
        found.append((lowest.bit_length() - 1, depth))
        bits ^= lowest
