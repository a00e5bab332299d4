"""Fits a few positive coefficients to sums of parts, in relative errors, with fading memory.

For times that add up: so much for the start, so much a token. Knows not what it fits.
"""

from collections.abc import Sequence
from math import exp, log
from typing import Final, NamedTuple

# Relative error of one observation. A step of the engine that has just begun makes it of this size.
_NOISE: Final = 0.2**2

# What was seen counts as at most so many times what was expected, or as few: one absurd observation moves no
# coefficient by more. And as no further off than an observation usually is, as far as one can tell: first
# tokens are late by much and early by little, so a mean of them all would be late.
_CLIP: Final = log(1.5)

# A prediction that is right to 2 % teaches nothing: most observations of what is known cost only this look.
_NEGLIGIBLE: Final = 0.02

# What was learned fades: 0.99⁷⁰ = a half.
_FADE: Final = 0.99


class Coefficient(NamedTuple):
    """What is assumed of one coefficient: 0 < `least` ≤ `seed` ≤ `most`."""

    seed: float
    doubt: float
    """By what factor the seed may well be wrong: above 1."""
    least: float
    most: float


class Fit:
    """A Kalman filter over the logarithms of the coefficients, which therefore stay positive.

    Where what was expected is right, an observation costs no more than a look.
    """

    __slots__ = ("_bounds", "_covariance", "_limits", "_logs", "_prior", "values")

    def __init__(self, coefficients: Sequence[Coefficient]) -> None:
        self._limits = tuple((each.least, each.most) for each in coefficients)
        self._bounds = tuple((log(each.least), log(each.most)) for each in coefficients)
        self._prior = tuple(log(each.doubt) ** 2 for each in coefficients)
        self._covariance = [
            [prior if row == column else 0.0 for column in range(len(coefficients))]
            for row, prior in enumerate(self._prior)
        ]
        self._logs = [log(each.seed) for each in coefficients]
        self.values = tuple(each.seed for each in coefficients)
        """What is believed of each. Read-only; replaced whole."""

    def observe(self, parts: Sequence[float], seen: float, clip: float = _CLIP) -> bool:
        """`seen`, above 0, is the sum of the coefficients times `parts`. Whether `values` have changed.

        `clip`: the logarithm of how many times what was expected it counts as, at most.
        """
        count = len(parts)
        each = [self.values[at] * parts[at] for at in range(count)]
        expected = sum(each)
        if not expected > 0.0:
            return False
        times = seen / expected
        if -_NEGLIGIBLE < times - 1.0 < _NEGLIGIBLE:
            return False
        shares = [part / expected for part in each]
        spread = [_product(row, shares) for row in self._covariance]
        doubt = _NOISE + _product(spread, shares)
        gain = 1.0 / doubt
        most = min(clip, doubt**0.5)
        off = min(most, max(-most, log(times))) if times > 0.0 else -most
        for at, (least, greatest) in enumerate(self._bounds):
            self._logs[at] = min(greatest, max(least, self._logs[at] + spread[at] * gain * off))
        values: list[float] = []
        for at, (lowest, highest) in enumerate(self._limits):
            # What the logarithm of a bound stands for may be rounded beyond it.
            values.append(min(highest, max(lowest, exp(self._logs[at]))))
        self.values = tuple(values)
        if abs(off) == most:
            return True  # what is far off says that something is wrong, and makes nothing more certain
        # A little less certain than the observation left it, and never less than at the beginning: else all
        # certainty would fade where observations do not differ, and one odd one move everything.
        fade: list[float] = []
        for row in range(count):
            certain = self._covariance[row][row] - spread[row] * spread[row] * gain
            fade.append(min(1.0 / _FADE, self._prior[row] / certain) ** 0.5 if certain > 0.0 else 1.0)
        # One half is computed and the other mirrors it: rounded in another order, the two would differ, which
        # is never seen, so it would grow by a hundredth each time, until variances are negative.
        for row in range(count):
            mine, faded, own = spread[row], fade[row], self._covariance[row]
            for column in range(row + 1):
                left = (own[column] - mine * spread[column] * gain) * (faded * fade[column])
                own[column] = left
                self._covariance[column][row] = left
        return True


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two rows of as many numbers each, the sum of the products."""
    total = 0.0
    for at, value in enumerate(one):
        total += value * other[at]
    return total
