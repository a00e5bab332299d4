"""How long turns hold their KV after their first token, on average.

Answers are short or very long, so a mean of the last few says little: this one remembers some hundreds, and
no single turn counts for more than a few of them.
"""

from math import isfinite
from typing import Final

# Weight of a turn once there were many: 0.997²³⁰ = a half. Before, each weighs as much as all others.
_GAIN: Final = 0.003

# The seed weighs as much as so many turns.
_SEED_WEIGHT: Final = 4.0

# One turn counts as at most so many times the mean, and a little: real answers reach thirty times it.
_MOST_TIMES: Final = 32.0
_MOST_PLUS_S: Final = 1.0

_LEAST_S: Final = 0.01
_MOST_S: Final = 3600.0


class Holding:
    """A running mean of durations in seconds."""

    __slots__ = ("_weight", "mean_s")

    def __init__(self, seed_s: float = 5.0) -> None:
        """`seed_s` is assumed before any turn has ended."""
        self.mean_s = min(_MOST_S, max(_LEAST_S, seed_s))
        """Read-only."""
        self._weight = _SEED_WEIGHT

    def observe(self, seconds: float) -> None:
        """A turn ended so long after its first token. What is no duration says nothing: a clock was set."""
        if not (seconds >= 0.0 and isfinite(seconds)):
            return
        self._weight += 1.0
        counted = min(seconds, _MOST_TIMES * self.mean_s + _MOST_PLUS_S)
        self.mean_s += max(_GAIN, 1.0 / self._weight) * (counted - self.mean_s)
        self.mean_s = min(_MOST_S, max(_LEAST_S, self.mean_s))
