"""A positive quantity of unknown size, from observations of it that are off by a factor: a rate, say.

Knows nothing of what it measures. Works in the log domain, where twice too much is as far off as half.
"""

from math import exp, isfinite, log
from typing import Final

# Weight of an observation once the first few are in: 0.8¹⁰ = 11 % of an old error is left after ten.
_GAIN: Final = 0.2

# One observation counts as at most twice or half the present value, so an absurd one moves it by 2^0.2, 15 %.
_STEP: Final = log(2.0)


class Scale:
    """A running estimate within [`least`, `most`]."""

    __slots__ = ("_least", "_log", "_most", "_weight", "value")

    def __init__(self, seed: float, *, least: float, most: float) -> None:
        """`seed` is believed before any observation, and weighs as much as one. Raises `ValueError` unless
        0 < `least` ≤ `most`."""
        if not 0.0 < least <= most:
            raise ValueError(f"the bounds must be above 0 and in order, not {least} and {most}")
        self._least = least
        self._most = most
        self.value = min(most, max(least, seed))
        """Read-only."""
        self._log = log(self.value)
        self._weight = 1.0

    def observe(self, value: float, weight: float = 1.0) -> None:
        """Learn from one observation, which counts `weight` (0 … 1) of a full one.

        What is not a positive number says nothing: a clock that was set back makes such.
        """
        if not (value > 0.0 and isfinite(value) and weight > 0.0):
            return
        self._weight += weight
        off = log(min(self._most, max(self._least, value))) - self._log
        self._log += weight * max(_GAIN, 1.0 / self._weight) * min(_STEP, max(-_STEP, off))
        self.value = min(self._most, max(self._least, exp(self._log)))
