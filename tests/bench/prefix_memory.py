"""Measures the prefix index: memory of a million segments on one shelf, of long and of short prompts, time of
match and touch.

Run: `python tests/bench/prefix_memory.py [SEGMENTS]`. Memory is traced by allocation, so it is exact and
leaves out what the interpreter itself takes.
"""

import gc
import sys
import time
import timeit
import tracemalloc
from collections.abc import Callable
from random import Random

from router.core.prefix import PrefixIndex

MEAN_BYTES = 2_000
DEPTHS = (3, 60, 190)
SHELVES = 8


def chain(rng: Random, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ends: list[int] = []
    for _ in range(depth):
        ends.append((ends[-1] if ends else 0) + rng.randrange(1, 2 * MEAN_BYTES))
    return tuple(rng.getrandbits(64) for _ in range(depth)), tuple(ends)


def memory(segments: int, depth: int) -> None:
    """Fill a shelf with `segments` of prompts of `depth`, then turn all of it over once while it is full."""
    rng = Random(1)
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(max_segments=segments)
    shelf = index.open_shelf(None)
    while len(index) + depth <= segments:
        index.touch(shelf, *chain(rng, depth))
    filled = tracemalloc.get_traced_memory()[0]
    for _ in range(segments // depth):
        index.touch(shelf, *chain(rng, depth))
    turned_over = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(
        f"{len(index)} segments, {depth} a prompt, on one shelf: {filled / 1e6:.0f} MB;"
        f" turned over: {turned_over / 1e6:.0f} MB"
    )


def best_us(call: Callable[[], object], number: int) -> float:
    """Least processor time of one call, in µs."""
    return min(timeit.repeat(call, timer=time.process_time, number=number, repeat=9)) / number * 1e6


def times(depth: int) -> None:
    """Eight shelves with 20,000 segments each, all of which hold the root of the chain that is timed."""
    rng = Random(depth)
    index = PrefixIndex()
    shelves = [index.open_shelf(None) for _ in range(SHELVES)]
    for shelf in shelves:
        for _ in range(20_000 // 60):
            index.touch(shelf, *chain(rng, 60))
    hashes, ends = chain(rng, depth)
    for shelf in shelves:
        index.touch(shelf, hashes[:1], ends[:1])
    home = shelves[3]
    index.touch(home, hashes, ends)
    assert (home, depth) in index.match(hashes)
    match = best_us(lambda: index.match(hashes), 2_000)
    known = best_us(lambda: index.touch(home, hashes, ends), 2_000)
    grown = iter([(*hashes, rng.getrandbits(64), rng.getrandbits(64)) for _ in range(9_000)])
    grown_ends = (*ends, ends[-1] + 300, ends[-1] + 900)
    growing = best_us(lambda: index.touch(home, next(grown), grown_ends), 1_000)
    print(f"depth {depth:3}: match {match:.2f} µs, touch known {known:.2f} µs, with two new {growing:.2f} µs")


if __name__ == "__main__":
    for depth in DEPTHS:
        times(depth)
    for depth in (60, 3, 1):
        memory(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, depth)
