"""Compares chains of block hashes. A hash stands for its block and all before it, so one look tells much."""

from collections.abc import Sequence


def shared_blocks(run: Sequence[int], hashes: Sequence[int], at: int, limit: int) -> int:
    """How many leading blocks of `run` are `hashes[at:limit]`. The first is known to be equal."""
    most = min(len(run), limit - at)
    if run[most - 1] == hashes[at + most - 1]:
        return most
    low, high = 1, most - 1  # equal up to `low`, not beyond `high`
    while low < high:
        middle = (low + high + 1) // 2
        if run[middle - 1] == hashes[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
