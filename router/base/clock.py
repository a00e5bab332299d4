"""Time as a value that can be handed in: the system's, or one that a test moves by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary origin that never go back."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    __slots__ = ()

    # The function itself: the data plane asks several times a request.
    now = staticmethod(time.monotonic)


class ManualClock:
    """A clock that stands still until `advance` is called."""

    __slots__ = ("_now",)

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move on by `seconds` (not negative) and return the new time."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._now += seconds
        return self._now
