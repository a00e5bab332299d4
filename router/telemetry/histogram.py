"""A histogram of fixed buckets, cheap to add to."""


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
        bounds = self.bounds
        low, high = 0, len(bounds)
        # As `bisect_left` does it, for which compiled code would have to box each figure.
        while low < high:
            middle = (low + high) // 2
            if bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)
