"""A histogram of fixed buckets, cheap to add to."""

from bisect import bisect_left


class Histogram:
    """Counts of values up to and including each bound, and above the last. Bounds ascend."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Not cumulative."""
        self.total = 0.0
        """Sum of all values."""

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)
