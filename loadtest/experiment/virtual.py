"""An event loop whose clock runs ahead whenever nothing else is to be done.

For programs that talk to themselves over loopback: with nothing to read and nothing ready to run, all that
can happen next is a timer, so its time is come. What takes seconds takes none, and a busy machine changes no
figure. Not while threads are at work: nobody would wait for them.
"""

import asyncio
import selectors
import time
from collections.abc import Mapping
from typing import Any

_TURN_S = 1e-6
"""What a turn of the loop takes at least: a timer that was set a rounding error too early would come again
and again, were the clock to stand still."""


class _Impatient(selectors.BaseSelector):
    """A selector that does not wait while `skipping`: it tells how long it would have."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.skipping = False
        self.skipped_s = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.skipping or timeout is None:
            return self._real.select(timeout)
        ready = self._real.select(0)
        self.skipped_s += _TURN_S if ready else max(timeout, _TURN_S)
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in real time until `skip`; from then on its clock all but stands still while anything runs."""

    def __init__(self) -> None:
        self._impatient = _Impatient()
        self._from: float | None = None
        super().__init__(self._impatient)

    def skip(self) -> None:
        """From now on no timer is waited for."""
        self._from = self.time()
        self._impatient.skipped_s = 0.0
        self._impatient.skipping = True

    def time(self) -> float:
        if self._from is None:
            return time.monotonic()
        return self._from + self._impatient.skipped_s


class LoopClock:
    """The loop's time, for those who are given a clock."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()
