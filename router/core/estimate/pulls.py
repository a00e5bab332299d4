"""How pulls from one source go: their success lately, and whether to ask it for any more.

Knows no network: it is told how each pull ended, and when.
"""

from collections import deque
from enum import StrEnum
from typing import Final

# From CONNECTOR: under 80 % of at least 20 pulls within 10 s, nothing more is pulled.
_WINDOW_S: Final = 10.0
_LEAST_PULLS: Final = 20
_LEAST_SHARE: Final = 0.8

# Then one pull at a time is tried, from so long after on; each that succeeds halves the distance to the next,
# each that fails doubles it.
_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 60.0
_RETURNED_S: Final = 0.5

# The chance before any pull weighs as much as four; 0.9¹⁰ = a third of an old one is left after ten more.
_SEED: Final = 0.95
_GAIN: Final = 0.1
_SEED_WEIGHT: Final = 4.0


class Breaker(StrEnum):
    """Whether a source is pulled from."""

    CLOSED = "closed"
    """It is."""
    OPEN = "open"
    """It is not, for now."""
    RETURNING = "returning"
    """One pull may be tried."""


class PullRecord:
    """Success of pulls from one source, and its breaker."""

    __slots__ = ("_ends", "_open_until", "_pause_s", "_weight", "chance")

    def __init__(self) -> None:
        self.chance = _SEED
        """That the next pull brings what it was sent for, 0 … 1. Read-only."""
        self._weight = _SEED_WEIGHT
        self._ends: deque[tuple[float, bool]] = deque(maxlen=1000)
        self._pause_s = 0.0
        self._open_until = 0.0

    def allows(self, now: float) -> bool:
        """Whether one more pull may be tried."""
        return not self._pause_s or now >= self._open_until

    def breaker(self, now: float) -> Breaker:
        """What `allows` says, and why."""
        if not self._pause_s:
            return Breaker.CLOSED
        return Breaker.OPEN if now < self._open_until else Breaker.RETURNING

    def tried(self, now: float) -> None:
        """A pull begins. While the breaker is returning, the next has to wait for its pause."""
        if self._pause_s:
            self._open_until = now + self._pause_s

    def observe(self, succeeded: bool, now: float) -> None:
        """A pull ended."""
        self._weight += 1.0
        self.chance += max(_GAIN, 1.0 / self._weight) * (float(succeeded) - self.chance)
        if self._pause_s:
            self._pause_s = self._pause_s / 2.0 if succeeded else min(_LONGEST_PAUSE_S, self._pause_s * 2.0)
            if self._pause_s < _RETURNED_S:
                self._pause_s = 0.0
                self._ends.clear()
                return
            self._open_until = now + self._pause_s
            return
        ends = self._ends
        ends.append((now, succeeded))
        # A clock that was set back leaves what is then in the future: it goes as well.
        while ends and not now - _WINDOW_S <= ends[0][0] <= now:
            ends.popleft()
        if len(ends) >= _LEAST_PULLS and sum(good for _, good in ends) < _LEAST_SHARE * len(ends):
            self._pause_s = _PAUSE_S
            self._open_until = now + _PAUSE_S
