"""Passes each fact on to several observers. One that raises is detached and reported; the others go on."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.observe import Ended, HealthChange, Prefilled, WaitEnd
from router.core.observer import Observer, Silent
from router.core.request import Turn

_log = logging.getLogger(__name__)


class SpanMaker(Protocol):
    """Hears where a span ends, and of recorded turns only: most are not."""

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None: ...

    def on_ended(self, ended: Ended) -> None: ...

    def on_prefilled(self, prefilled: Prefilled) -> None: ...


class Fanout:
    """An `Observer` made of observers, told in their order, and last who makes spans.

    The log says which one was detached and why; the engine would only know that something raised. Each
    turn's two facts go straight to those who listen for them: `Silent` methods are not called.
    """

    __slots__ = ("_decided", "_ended", "_observers", "_spans")

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self._spans: SpanMaker | None = None
        self._sort()

    def trace_by(self, spans: SpanMaker) -> None:
        """Tell this one of recorded turns."""
        self._spans = spans

    def add(self, observer: Observer) -> None:
        """Tell one more, after the others."""
        self._observers = (*self._observers, observer)
        self._sort()

    def _sort(self) -> None:
        self._decided = tuple(
            (observer, observer.on_decision)
            for observer in self._observers
            if type(observer).on_decision is not Silent.on_decision
        )
        self._ended = tuple(
            (observer, observer.on_ended)
            for observer in self._observers
            if type(observer).on_ended is not Silent.on_ended
        )

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        for observer, tell in self._decided:
            try:
                tell(turn, decision)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(observer, error)

    def on_ended(self, ended: Ended) -> None:
        for observer, tell in self._ended:
            try:
                tell(ended)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(observer, error)
        spans = self._spans
        if spans is not None and ended.turn.is_recorded:
            try:
                spans.on_ended(ended)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(spans, error)

    # The rest is seldom, so it may cost a closure.

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self._tell(lambda observer: observer.on_refused(turn, kind, message, now))

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        self._tell(lambda observer: observer.on_waited(turn, waited_s, end))
        if turn.is_recorded:
            self._trace(lambda spans: spans.on_waited(turn, waited_s, end))

    def on_prefilled(self, prefilled: Prefilled) -> None:
        self._tell(lambda observer: observer.on_prefilled(prefilled))
        if prefilled.turn.is_recorded:
            self._trace(lambda spans: spans.on_prefilled(prefilled))

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

    def _trace(self, say: Callable[[SpanMaker], None]) -> None:
        if self._spans is not None:
            try:
                say(self._spans)
            except Exception as error:  # noqa: BLE001 - see `_detach`
                self._detach(self._spans, error)

    def _detach(self, observer: Observer | SpanMaker, error: Exception) -> None:
        """Whatever an observer's fault is, it must cost neither the turn nor the other observers."""
        self._observers = tuple(other for other in self._observers if other is not observer)
        self._sort()
        if observer is self._spans:
            self._spans = None
        name = type(observer).__name__
        _log.error("observer %s failed and is detached; routing goes on without", name, exc_info=error)
