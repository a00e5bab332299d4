"""Tells the observer what has happened, and goes on without one that fails.

Knows no fact: which there are is the `Observer`'s.
"""

from collections.abc import Callable

from router.core.decide import Decision
from router.core.observe import Ended
from router.core.observer import Observer
from router.core.request import Turn


class Teller:
    """An observer that raises is told nothing further, and `on_detach` is told why."""

    __slots__ = ("_on_detach", "observer")

    def __init__(self, observer: Observer | None, on_detach: Callable[[Exception], None] | None) -> None:
        self.observer = observer
        """`None` where nobody listens: whoever asks spares making what would be told."""
        self._on_detach = on_detach

    def tell(self, say: Callable[[Observer], None]) -> None:
        """Have `say` told to who listens."""
        if self.observer is None:
            return
        try:
            say(self.observer)
        except Exception as error:  # noqa: BLE001 - an observer must never stop routing
            self._detach(error)

    # What every turn tells is told without a closure.

    def decided(self, turn: Turn, decision: Decision) -> None:
        """A turn was given to a replica."""
        if self.observer is not None:
            try:
                self.observer.on_decision(turn, decision)
            except Exception as error:  # noqa: BLE001 - as above
                self._detach(error)

    def ended(self, ended: Ended) -> None:
        """An attempt is over."""
        if self.observer is not None:
            try:
                self.observer.on_ended(ended)
            except Exception as error:  # noqa: BLE001 - as above
                self._detach(error)

    def _detach(self, error: Exception) -> None:
        self.observer = None
        if self._on_detach is not None:
            self._on_detach(error)
