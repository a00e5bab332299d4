"""Passes each fact on to several observers. One that raises is detached and reported; the others go on."""

from collections.abc import Callable

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.observe import Ended, HealthChange, Observer
from router.core.request import Turn


class Fanout:
    """An `Observer` made of observers, told in their order.

    `on_detach` is told which one raised and what; the engine would only know that something did.
    """

    __slots__ = ("_observers", "_on_detach")

    def __init__(self, *observers: Observer, on_detach: Callable[[Observer, Exception], None]) -> None:
        self._observers = observers
        self._on_detach = on_detach

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        for observer in self._observers:
            try:
                observer.on_decision(turn, decision)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(observer, error)

    def on_ended(self, ended: Ended) -> None:
        for observer in self._observers:
            try:
                observer.on_ended(ended)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(observer, error)

    # The rest is seldom, so it may cost a closure.

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self._tell(lambda observer: observer.on_refused(turn, kind, message, now))

    def on_health(self, change: HealthChange) -> None:
        self._tell(lambda observer: observer.on_health(change))

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        self._tell(lambda observer: observer.on_restarted(replica, now))

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self._tell(lambda observer: observer.on_moved(session, before, after, now))

    def _tell(self, say: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                say(observer)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(observer, error)

    def _detach(self, observer: Observer, error: Exception) -> None:
        """Whatever an observer's fault is, it must cost neither the turn nor the other observers."""
        self._observers = tuple(other for other in self._observers if other is not observer)
        self._on_detach(observer, error)
