"""How long a path takes to carry bytes: a start and a bandwidth, learned from transfers.

Knows no ends and no sharing: callers tell what one transfer had of the path.
"""

from math import isfinite, log
from typing import Final

from router.core.estimate.fit import Coefficient, Fit

# A modem, and far beyond any fabric.
_LEAST_BYTES_PER_S: Final = 1e4
_MOST_BYTES_PER_S: Final = 1e13

# Between nothing and a lost packet's repeats.
_LEAST_START_S: Final = 1e-5
_MOST_START_S: Final = 10.0

# A transfer that took longer says that something else went wrong.
_MOST_S: Final = 3600.0

_DOUBT: Final = 10.0
"""Factor by which the seeds may be off."""

# A guess may be off by so much, and so the first transfer that was timed may differ from it. What was learned
# is less in doubt, and a later one that is as odd counts for little.
_TIMED_CLIP: Final = log(_DOUBT)

# What else took time shows in what was seen from without, and is late by any factor.
_SEEN_CLIP: Final = log(1.5)


class Link:
    """Seconds = start + bytes ÷ bandwidth."""

    __slots__ = ("_fit",)

    def __init__(self, bytes_per_s: float, start_s: float) -> None:
        """What to assume before any transfer."""
        byte_s = 1.0 / min(_MOST_BYTES_PER_S, max(_LEAST_BYTES_PER_S, bytes_per_s))
        start_s = min(_MOST_START_S, max(_LEAST_START_S, start_s))
        self._fit = Fit(
            (
                Coefficient(start_s, _DOUBT, _LEAST_START_S, _MOST_START_S),
                Coefficient(byte_s, _DOUBT, 1.0 / _MOST_BYTES_PER_S, 1.0 / _LEAST_BYTES_PER_S),
            )
        )

    @property
    def start_s(self) -> float:
        return self._fit.values[0]

    @property
    def byte_s(self) -> float:
        """Seconds a byte."""
        return self._fit.values[1]

    def seconds(self, size: float) -> float:
        """To carry `size` bytes."""
        start, byte = self._fit.values
        return start + size * byte

    def observe(self, size: float, seconds: float, *, timed: bool = True) -> bool:
        """`size` bytes took so long. Whether anything has changed.

        `timed`: as measured by whoever carried them; else as it looks from without. What cannot be, from a
        clock that was set, teaches nothing.
        """
        if not 0.0 < seconds <= _MOST_S or not size >= 0.0 or not isfinite(size):
            return False
        return self._fit.observe((1.0, size), seconds, _TIMED_CLIP if timed else _SEEN_CLIP)
