"""How long turns hold their KV after their first token, and how much longer one that has lasted will.

Answers are short or very long: one that has been going on for a minute is not nearly over. So the whole
distribution is kept, coarsely, and fades.
"""

from math import isfinite, log2
from typing import Final

_LEAST_S: Final = 0.125
_BUCKETS: Final = 16
"""Each twice as long as the one before, the last for whatever is longer than 34 minutes."""
_MOST_S: Final = _LEAST_S * 2.0**_BUCKETS

# What was seen fades with each turn: 0.998³⁵⁰ = a half.
_FADE: Final = 0.998

# The seed weighs as much as so many turns.
_SEED_WEIGHT: Final = 4.0


class Holding:
    """A fading histogram of durations in seconds."""

    __slots__ = ("_counts", "_left", "_scale", "_sums", "_unsettled")

    def __init__(self, seed_s: float = 8.0) -> None:
        """`seed_s`: the mean to assume before any turn has ended."""
        self._counts = [0.0] * _BUCKETS
        self._sums = [0.0] * _BUCKETS
        # The weight of the next turn grows instead of all others' shrinking.
        self._scale = 1.0
        self._left: tuple[float, ...] = ()
        self._unsettled = True
        # As exponential as buckets allow: half of its turns are shorter than 0.7 of the mean.
        for share, times in ((0.5, 0.35), (0.3, 1.1), (0.2, 2.45)):
            self._add(seed_s * times, share * _SEED_WEIGHT)

    def observe(self, seconds: float) -> None:
        """A turn ended so long after its first token. What is no duration says nothing."""
        if not (seconds >= 0.0 and isfinite(seconds)):
            return
        self._scale /= _FADE
        self._add(min(seconds, _MOST_S), self._scale)
        if self._scale > 1e9:
            self._counts = [count / self._scale for count in self._counts]
            self._sums = [total / self._scale for total in self._sums]
            self._scale = 1.0

    def remaining_s(self, age_s: float) -> float:
        """The mean of what is left for a turn that has gone on for `age_s`.

        Never 0: an age beyond all that was seen means as long again.
        """
        if self._unsettled:
            self._settle()
        return max(self._left[_bucket(age_s)], 0.0)

    @property
    def mean_s(self) -> float:
        """The mean of all."""
        return self.remaining_s(0.0)

    def _add(self, seconds: float, weight: float) -> None:
        bucket = _bucket(seconds)
        self._counts[bucket] += weight
        self._sums[bucket] += weight * seconds
        self._unsettled = True

    def _settle(self) -> None:
        """Work out the mean remainder at the beginning of each bucket."""
        left: list[float] = []
        count = total = 0.0
        for bucket in reversed(range(_BUCKETS)):
            count += self._counts[bucket]
            total += self._sums[bucket]
            begins = _LEAST_S * 2.0 ** (bucket - 1) if bucket else 0.0
            # Beyond what was seen a turn lasts as long again as it has, as heavy tails do.
            left.append(total / count - begins if count > 1e-6 * self._scale else max(begins, _LEAST_S))
        self._left = tuple(reversed(left))
        self._unsettled = False


def _bucket(seconds: float) -> int:
    if seconds < _LEAST_S:
        return 0
    return min(_BUCKETS - 1, int(log2(min(seconds, _MOST_S) / _LEAST_S)) + 1)
