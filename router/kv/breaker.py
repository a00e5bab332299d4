"""Whether to pull from a source: stops after too many failures and returns little by little.

Pure: time is an argument, in seconds. Says nothing of why a pull failed.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """How much is pulled."""

    CLOSED = "closed"
    """As much as anybody asks for."""
    OPEN = "open"
    """Nothing."""
    RETURNING = "returning"
    """A share that grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When it opens, and how it closes."""

    window_s: float = 10.0
    min_pulls: int = 20
    """In the window, before it can open."""
    min_success: float = 0.8
    rest_s: float = 5.0
    """How long it stays open the first time; twice as long each time it fails to return."""
    max_rest_s: float = 60.0
    first_share: float = 1 / 16
    """Of the pulls asked for that are let through at first; doubled after each step without failures."""
    step_s: float = 2.0


class Breaker:
    """One source's breaker."""

    __slots__ = (
        "_credit",
        "_ends",
        "_policy",
        "_rest_s",
        "_share",
        "_since",
        "_state",
        "_successes",
        "opened",
    )

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._state = BreakerState.CLOSED
        self._ends: deque[tuple[float, bool]] = deque()
        self._successes = 0
        self._since = 0.0
        self._rest_s = policy.rest_s
        self._share = 1.0
        self._credit = 0.0
        self.opened = 0
        """How often it has opened."""

    def state(self, now: float) -> BreakerState:
        """The state, after what time has changed."""
        if self._state is BreakerState.OPEN and now >= self._since + self._rest_s:
            self._state = BreakerState.RETURNING
            self._since = now
            self._share = self._policy.first_share
            self._credit = 1.0
            self._forget()
        return self._state

    def allows(self, now: float) -> bool:
        """Whether this pull may be made. One that may counts against the share: ask once for each."""
        match self.state(now):
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.RETURNING:
                self._credit += self._share
                if self._credit < 1.0:
                    return False
                self._credit -= 1.0
                return True

    def record(self, *, success: bool, now: float) -> None:
        """A pull has ended."""
        state = self.state(now)
        if state is BreakerState.OPEN:
            return  # it was begun before
        self._ends.append((now, success))
        self._successes += success
        while self._ends[0][0] <= now - self._policy.window_s:
            self._successes -= self._ends.popleft()[1]
        if state is BreakerState.CLOSED:
            if len(self._ends) >= self._policy.min_pulls and self._rate() < self._policy.min_success:
                self._rest_s = self._policy.rest_s
                self._open(now)
        elif not success:
            self._rest_s = min(2 * self._rest_s, self._policy.max_rest_s)
            self._open(now)
        elif now >= self._since + self._policy.step_s:
            self._since = now
            self._share *= 2
            if self._share >= 1.0:
                self._state = BreakerState.CLOSED
                self._forget()

    def _rate(self) -> float:
        return self._successes / len(self._ends)

    def _open(self, now: float) -> None:
        self._state = BreakerState.OPEN
        self._since = now
        self.opened += 1
        self._forget()

    def _forget(self) -> None:
        self._ends.clear()
        self._successes = 0
