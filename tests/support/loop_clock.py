"""Time as an event loop had it: what the machine gave to others in between does not count.

A router on it whose limits are tenths of a second gives up on nobody for the machine's slowness, and a bound
on how long something takes by it holds on any machine.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TICK_S: Final = 0.005

# A tick comes late on any machine; one that is later than this was kept from coming.
_LONGEST_TICK_S: Final = 2 * _TICK_S


class LoopClock:
    """The machine's clock, less the time in which the loop was kept from running."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._now = self._ticked_at = loop.time()
        """By this clock, and by the loop's."""
        self._timer = loop.call_later(_TICK_S, self._tick)

    def now(self) -> float:
        return self._now + min(self._loop.time() - self._ticked_at, _LONGEST_TICK_S)

    def stop(self) -> None:
        """Stand still from now on."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._now, self._ticked_at = self.now(), self._loop.time()
        self._timer = self._loop.call_later(_TICK_S, self._tick)


@contextmanager
def loop_clock() -> Iterator[LoopClock]:
    """A clock that runs for as long as it is needed."""
    clock = LoopClock()
    try:
        yield clock
    finally:
        clock.stop()
