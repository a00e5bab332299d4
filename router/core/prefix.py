"""Prefix index: hashed prompt segment → the shelves believed to hold it, with each shelf's own LRU.

A shelf stands for one tier of one replica; the engine knows which. The index knows no replicas, no tokens
and no time: recency is the order of touches.

Held to at every moment:

1. A segment's bit for a shelf is set exactly while that shelf lists the segment.
2. On a shelf, a segment is more recent than each of its descendants there. Eviction takes the least recent,
   hence tails before roots, and never takes a segment while a descendant of it is held.
3. So a shelf that holds a segment holds all that precede it, and `match` walks from the root and leaves a
   shelf at the first segment that it does not hold.

A shelf lists runs, not segments: segments that follow one another in every prompt that has them, and so were
last used together. A conversation is a run or two, however long it has become, and a turn moves these.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final

from router.core.memory import ShelfMemory

# Entries that one call may drop beyond as many as it added: about half a millisecond. Shrinking or closing
# a shelf with a million entries is spread over the touches that follow.
_SPREAD: Final = 1024


class _Run:
    """Segments one behind the other, on one shelf. Each is more recent than those behind it."""

    __slots__ = ("children", "first", "more", "newer", "older", "parent", "size", "sizes")

    def __init__(self, first: Any, size: int, parent: "_Run | None") -> None:
        # Segments are any objects here: hashes of 64 bits are no numbers that compiled code can hold unboxed.
        self.first = first
        self.size = size
        """Prompt bytes of the first segment."""
        self.more: list[Any] | None = None
        """The segments behind it. A run of one, as a question without a history makes, does without."""
        self.sizes: Any = None
        """Prompt bytes of each of these, an array."""
        self.parent = parent
        """What precedes it; `None` at the root."""
        self.children = 0
        """Runs that it precedes. One that precedes none may grow."""
        self.older: _Run | None = None
        self.newer: _Run | None = None

    def length(self) -> int:
        """How many segments."""
        more = self.more
        return 1 if more is None else 1 + len(more)

    def extend(self, hashes: list[Any], sizes: Any) -> None:
        """Put segments at the end, which must be one's to keep."""
        if self.more is None:
            self.more, self.sizes = hashes, sizes
        elif hashes:
            self.more += hashes
            self.sizes += sizes

    def absorb(self, other: "_Run") -> None:
        """Put another run's segments at the end."""
        self.extend([other.first], array("Q", (other.size,)))
        if other.more is not None:
            self.extend(other.more, other.sizes)


class _Shelf:
    """What one shelf lists, and what it adds up to."""

    __slots__ = ("bit", "capacity_bytes", "held_bytes", "newest", "number", "oldest", "runs", "segments")

    def __init__(self, number: int, capacity_bytes: float | None) -> None:
        self.number = number
        self.bit = 1 << number
        self.capacity_bytes = float("inf") if capacity_bytes is None else capacity_bytes
        self.held_bytes = 0
        self.segments = 0
        self.runs: dict[Any, _Run] = {}
        """By their first segments."""
        self.oldest: _Run | None = None
        self.newest: _Run | None = None

    def refresh(self, run: _Run) -> None:
        """Make a run, listed already or not, the most recent."""
        newest = self.newest
        if run is newest:
            return
        older, newer = run.older, run.newer
        if older is not None:
            older.newer = newer
        if newer is not None:
            newer.older = older
            if older is None:
                self.oldest = newer
        run.older, run.newer = newest, None
        if newest is not None:
            newest.newer = run
        else:
            self.oldest = run
        self.newest = run

    def unlink(self, run: _Run) -> None:
        """Take a run that precedes none out of the listing."""
        older, newer = run.older, run.newer
        if older is not None:
            older.newer = newer
        else:
            self.oldest = newer
        if newer is not None:
            newer.older = older
        else:
            self.newest = older
        run.older = run.newer = None

    def listed(self) -> Iterator[_Run]:
        """All runs, least recent first."""
        run = self.oldest
        while run is not None:
            yield run
            run = run.newer


class PrefixIndex:
    """Which leading segments of a prompt lie on which shelf. Methods raise `KeyError` for a shelf not open.

    Memory, of a segment on its first shelf: 99 bytes where prompts have 60 of their own, 185 where they have
    three, 224 where they have a single one; after heavy turnover 142, 237 and 308. Some 20 on each further
    shelf. `tests/bench/prefix_memory.py` measures it, compiled;
    `max_segments` bounds it.
    """

    __slots__ = ("_entries", "_free", "_masks", "_max_segments", "_open", "_open_bits", "_retired", "_used")

    def __init__(self, *, max_segments: int = 2_000_000) -> None:
        """`max_segments` bounds the entries of all shelves together; a segment on two shelves is two."""
        self._max_segments = max_segments
        self._masks: dict[Any, Any] = {}
        self._open: dict[int, _Shelf] = {}
        self._open_bits = 0
        self._retired: deque[_Shelf] = deque()
        # Entries on all shelves, the retired ones included: they take memory until they are dropped.
        self._entries = 0
        self._free: list[int] = []
        self._used = 0

    def __len__(self) -> int:
        """Entries of the open shelves together."""
        return self._entries - sum(shelf.segments for shelf in self._retired)

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

    def touch(self, shelf: int, hashes: tuple[Any, ...], ends: tuple[int, ...]) -> None:
        """The shelf has just had this chain in use: all its segments, the root as the most recent.

        `ends` are prompt bytes up to and including each segment. A chain longer than the capacity is cut to
        the segments that fit, rather than pushing out all else and itself.
        """
        touched = self._open[shelf]
        count = len(hashes)
        if count and ends[-1] > touched.capacity_bytes:
            count = bisect_right(ends, touched.capacity_bytes)

        known = self._known(touched.bit, hashes, count)
        path: list[_Run] = []
        before: _Run | None = None
        at = 0
        while at < known:
            run = touched.runs.get(hashes[at])
            if run is None or run.parent is not before:
                # Two chains have a hash in common that ought to have none: from here on, another's is listed.
                known = at
                break
            path.append(run)
            before = run
            at += run.length()
        if at > known:
            _part(touched, path, at - known)
        added = self._add(touched, path, hashes, ends, known, count) if known < count else 0
        if len(path) > 1:
            _join(touched, path)
        # The deepest first, so that each is more recent than what follows it.
        for place in range(len(path) - 1, -1, -1):
            touched.refresh(path[place])
        if touched.held_bytes > touched.capacity_bytes:
            self._trim(touched, added + _SPREAD)
        if self._retired:
            self._drain(added + _SPREAD)
        while self._entries > self._max_segments:
            self._shed(self._entries - self._max_segments)

    def _known(self, bit: int, hashes: tuple[Any, ...], count: int) -> int:
        """How many of the first `count` segments of a chain are listed: those up to one that is not."""
        masks = self._masks
        if not count:
            return 0
        mask: int = masks.get(hashes[count - 1], 0)
        if mask & bit:
            return count
        low, high = 0, count - 1
        while low < high:
            middle = (low + high) // 2
            mask = masks.get(hashes[middle], 0)
            if mask & bit:
                low = middle + 1
            else:
                high = middle
        return low

    def _add(
        self,
        shelf: _Shelf,
        path: list[_Run],
        hashes: tuple[Any, ...],
        ends: tuple[int, ...],
        known: int,
        count: int,
    ) -> int:
        """List the segments of a chain from `known` on, behind the runs of the `path`. Answers how many."""
        new: list[Any] = list(hashes[known:count])
        masks = self._masks
        bit: Any = shelf.bit  # the very object, which all of the shelf's own segments share
        for at, segment in enumerate(new):
            mask: Any = masks.get(segment)
            if mask is None:
                masks[segment] = bit
            elif mask & bit:
                # Two segments have one hash. What comes second is not listed, nor what follows it.
                del new[at:]
                break
            else:
                masks[segment] = mask | bit
        if not new:
            return 0
        added = len(new)
        before = ends[known - 1] if known else 0
        held = ends[known + added - 1] - before
        first = 0
        run = path[-1] if path else None
        if run is None or run.children:
            if run is not None:
                run.children += 1
            first, begun = 1, ends[known]
            run = shelf.runs[new[0]] = _Run(new[0], begun - before, run)
            path.append(run)
            before = begun
        if added > first:
            sizes = array("Q")
            for at in range(known + first, known + added):
                end = ends[at]
                sizes.append(end - before)
                before = end
            run.extend(new[first:] if first else new, sizes)
        shelf.held_bytes += held
        shelf.segments += added
        self._entries += added
        return added

    def match(self, hashes: tuple[Any, ...]) -> list[tuple[int, int]]:
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
            still: int = masks.get(hashes[count - 1], 0)
            still &= holders
            if still == holders:
                break
            low, high = depth, count - 1
            while low < high:
                middle = (low + high) // 2
                mask: int = masks.get(hashes[middle], 0)
                if mask & holders == holders:
                    low = middle + 1
                else:
                    high, still = middle, mask & holders
            if low:
                _append_each(holders ^ still, low, found)
            if not still:
                return found
            holders, depth = still, low + 1
        _append_each(holders, count, found)
        return found

    def dump(self, shelf: int) -> ShelfMemory:
        """All that the shelf lists."""
        hashes, sizes, lengths, parents = array("Q"), array("Q"), array("Q"), array("Q")
        for run in self._open[shelf].listed():
            hashes.append(run.first)
            sizes.append(run.size)
            if run.more is not None:
                hashes.extend(run.more)
                sizes.extend(run.sizes)
            lengths.append(run.length())
            parents.append(run.parent.first if run.parent is not None else 0)
        return ShelfMemory(hashes.tobytes(), sizes.tobytes(), lengths.tobytes(), parents.tobytes())

    def load(self, shelf: int, memory: ShelfMemory) -> None:
        """List what an index has dumped, on a shelf that lists nothing yet: the most recent that fit.

        Raises `ValueError` for a shelf that lists something. Takes about a second for a million segments.
        """
        loaded = self._open[shelf]
        if loaded.segments:
            raise ValueError("only an empty shelf can be loaded")
        hashes, sizes, lengths, parents = (_numbers(each) for each in memory)
        at = 0
        for length in lengths:
            run = loaded.runs[hashes[at]] = _Run(hashes[at], sizes[at], None)
            if length > 1:
                run.extend(list(hashes[at + 1 : at + length]), sizes[at + 1 : at + length])
            loaded.refresh(run)
            at += length
        for run, parent in zip(tuple(loaded.runs.values()), parents, strict=True):
            # A root's is 0, which no run begins with but one whose hash that is: it has no parent then.
            before = loaded.runs.get(parent)
            if before is not None and before is not run:
                run.parent = before
                before.children += 1
        loaded.held_bytes = sum(sizes)
        loaded.segments = len(hashes)
        self._entries += len(hashes)
        for run in loaded.listed():
            # The runs' own objects: a number read from the array anew would be kept twice.
            for segment in (run.first, *(run.more or ())):
                self._masks[segment] = self._masks.get(segment, 0) | loaded.bit
        self._trim(loaded, len(hashes))
        self._drain(len(hashes))
        while self._entries > self._max_segments:
            self._shed(self._entries - self._max_segments)

    def segments(self, shelf: int) -> int:
        """How many segments the shelf lists."""
        return self._open[shelf].segments

    def _evict(self, shelf: _Shelf, limit: int, excess: float) -> int:
        """Drop the least recent entries, as many as have `excess` bytes, `limit` at most; the answer is how
        many there were."""
        bit, masks = shelf.bit, self._masks
        gone, freed = 0, 0
        while gone < limit and freed < excess:
            run = shelf.oldest
            if run is None:
                break
            more, sizes = run.more, run.sizes
            left = run.length()
            while left and gone < limit and freed < excess:
                left -= 1
                segment = more.pop() if more else run.first
                size: int = sizes.pop() if left else run.size
                freed += size
                gone += 1
                rest = masks[segment] ^ bit
                if rest:
                    masks[segment] = rest
                else:
                    del masks[segment]
            if not left:
                del shelf.runs[run.first]
                shelf.unlink(run)
                if run.parent is not None:
                    run.parent.children -= 1
        shelf.held_bytes -= freed
        shelf.segments -= gone
        self._entries -= gone
        return gone

    def _trim(self, shelf: _Shelf, limit: int) -> None:
        """Evict until the shelf is within its capacity, `limit` entries at most."""
        self._evict(shelf, limit, shelf.held_bytes - shelf.capacity_bytes)

    def _drain(self, limit: int) -> None:
        """Drop up to `limit` entries of retired shelves; free the numbers of those that are empty."""
        while self._retired:
            shelf = self._retired[0]
            limit -= self._evict(shelf, limit, float("inf"))
            if shelf.segments:
                return
            self._retired.popleft()
            heappush(self._free, shelf.number)

    def _shed(self, excess: int) -> None:
        """Make room on the open shelf that lists most, the lowest of them.

        The retired are empty by then: `touch` has dropped as many of their entries as it added.
        """
        largest = max(self._open.values(), key=lambda shelf: (shelf.segments, -shelf.number))
        self._evict(largest, excess, float("inf"))


def _part(shelf: _Shelf, path: list[_Run], behind: int) -> None:
    """Part the last run of a path from its `behind` last segments: they are not in use, and stay as old as
    they are."""
    run = path[-1]
    more, sizes, parent = run.more, run.sizes, run.parent
    assert more is not None, "a run of one has nothing behind its first"
    front = _Run(run.first, run.size, parent)
    cut = len(more) - behind
    if cut:
        front.extend(more[:cut], sizes[:cut])
    del shelf.runs[run.first]
    run.first, run.size = more[cut], sizes[cut]
    run.more, run.sizes = (more[cut + 1 :], sizes[cut + 1 :]) if behind > 1 else (None, None)
    shelf.runs[run.first] = run
    if parent is not None and parent.children == 1:
        # What precedes it precedes nothing else: as one with that, it makes no run of its own.
        parent.absorb(front)
        path.pop()
        return
    front.children = 1
    shelf.runs[front.first] = run.parent = path[-1] = front


def _join(shelf: _Shelf, path: list[_Run]) -> None:
    """Make one of the last two runs of a path where nothing else follows either."""
    last, before = path[-1], path[-2]
    if last.children or before.children != 1:
        return
    del shelf.runs[last.first]
    before.absorb(last)
    before.children = 0
    shelf.unlink(last)
    path.pop()


def _numbers(raw: bytes) -> "array[int]":
    numbers = array("Q")
    numbers.frombytes(raw)
    return numbers


def _append_each(bits: int, depth: int, found: list[tuple[int, int]]) -> None:
    while bits:
        lowest = bits & -bits
        found.append((lowest.bit_length() - 1, depth))
        bits ^= lowest
