"""A limit for what hangs, that a busy machine does not reach."""

import time
from typing import Final

LOOK_S: Final = 1.0


class Patience:
    """So many seconds of this process's own time.

    A while between two looks counts as a second at most, however long it was: then the machine did something
    else, and whoever is waited for got no further either.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Look once more. To be asked several times a second."""
        now = time.monotonic()
        self._left -= min(now - self._looked, LOOK_S)
        self._looked = now
        return self._left < 0.0
