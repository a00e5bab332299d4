from collections.abc import Callable

import pytest

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.base.trace import Trace, unsampled
from router.core.decide import Decision
from router.core.observe import Ended, HealthChange, Outcome, Prefilled, WaitEnd
from router.core.observer import Observer
from router.core.request import Turn
from router.telemetry.fanout import Fanout

A, B = ReplicaId("a"), ReplicaId("b")
RECORDED = unsampled(b"").replace(sampled=True)


class Notes:
    """Writes down what it is told, and raises where it is told to."""

    def __init__(self, name: str, book: list[tuple[str, str]], raises_at: str = "") -> None:
        self.name = name
        self.book = book
        self.raises_at = raises_at

    def _note(self, fact: str) -> None:
        if fact == self.raises_at:
            raise RuntimeError(f"{self.name} broke")
        self.book.append((self.name, fact))

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        self._note("decision")

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self._note("refused")

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        self._note("waited")

    def on_ended(self, ended: Ended) -> None:
        self._note("ended")

    def on_prefilled(self, prefilled: Prefilled) -> None:
        self._note("prefilled")

    def on_health(self, change: HealthChange) -> None:
        self._note("health")

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        self._note("restarted")

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self._note("moved")


FACTS = ("decision", "refused", "waited", "ended", "prefilled", "health", "restarted", "moved")


@pytest.fixture
def tell_all(
    turn: Turn, decided: Callable[..., Decision], ended: Callable[..., Ended]
) -> Callable[[Observer], None]:
    def tell(observer: Observer) -> None:
        observer.on_decision(turn, decided())
        observer.on_refused(turn, ErrorKind.OVERLOADED, "full", 1.0)
        observer.on_waited(turn, 0.5, WaitEnd.DISPATCHED)
        observer.on_ended(ended(decided()))
        observer.on_prefilled(Prefilled(turn, decided(), B, 0, 9, 0, None, Outcome.COMPLETED, None, 1.0, 1.0))
        observer.on_health(HealthChange(A, "healthy", "down", "", 1.0))
        observer.on_restarted(A, 1.0)
        observer.on_moved(SessionKey("k"), A, B, 1.0)

    return tell


def test_every_observer_is_told_every_fact_in_order(
    tell_all: Callable[[Observer], None], caplog: pytest.LogCaptureFixture
) -> None:
    book: list[tuple[str, str]] = []
    tell_all(Fanout([Notes("x", book), Notes("y", book)]))
    assert book == [(name, fact) for fact in FACTS for name in "xy"]
    assert caplog.records == []


@pytest.mark.parametrize("fact", FACTS)
def test_one_that_raises_is_detached_and_reported_once_and_the_others_go_on(
    fact: str, tell_all: Callable[[Observer], None], caplog: pytest.LogCaptureFixture
) -> None:
    book: list[tuple[str, str]] = []
    fanout = Fanout([Notes("x", book, raises_at=fact), Notes("y", book)])
    tell_all(fanout)
    tell_all(fanout)
    (logged,) = caplog.records
    assert logged.getMessage() == "observer Notes failed and is detached; routing goes on without"
    assert "x broke" in caplog.text
    assert [entry for entry in book if entry[0] == "y"] == [("y", fact) for fact in FACTS * 2]
    assert [entry for entry in book if entry[0] == "x"] == [("x", f) for f in FACTS[: FACTS.index(fact)]]


SPANS = ("waited", "ended", "prefilled")


@pytest.fixture
def tell_of(
    turn: Turn, decided: Callable[..., Decision], ended: Callable[..., Ended]
) -> Callable[[Observer, Trace | None], None]:
    """What a span may be made of, told of a turn with this trace."""

    def tell(observer: Observer, trace: Trace | None) -> None:
        traced = turn.replace(trace=trace)
        observer.on_waited(traced, 0.5, WaitEnd.DISPATCHED)
        observer.on_ended(ended(decided()).replace(turn=traced))
        observer.on_prefilled(
            Prefilled(traced, decided(), B, 0, 9, 0, None, Outcome.COMPLETED, None, 1.0, 1.0)
        )

    return tell


@pytest.mark.parametrize(("trace", "heard"), [(RECORDED, SPANS), (unsampled(b""), ()), (None, ())])
def test_who_makes_spans_hears_of_recorded_turns_after_the_others(
    trace: Trace | None, heard: tuple[str, ...], tell_of: Callable[[Observer, Trace | None], None]
) -> None:
    book: list[tuple[str, str]] = []
    fanout = Fanout([Notes("x", book)])
    fanout.trace_by(Notes("spans", book))
    fanout.add(Notes("y", book))
    tell_of(fanout, trace)
    names = ("x", "y", "spans") if heard else ("x", "y")
    assert book == [(name, fact) for fact in SPANS for name in names]


@pytest.mark.parametrize("fact", SPANS)
def test_who_makes_spans_and_raises_is_detached_and_the_others_go_on(
    fact: str, tell_of: Callable[[Observer, Trace | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    book: list[tuple[str, str]] = []
    fanout = Fanout([Notes("x", book)])
    fanout.trace_by(Notes("spans", book, raises_at=fact))
    tell_of(fanout, RECORDED)
    tell_of(fanout, RECORDED)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert [entry for entry in book if entry[0] == "x"] == [("x", fact) for fact in SPANS * 2]
    heard = SPANS[: SPANS.index(fact)]
    assert [entry for entry in book if entry[0] == "spans"] == [("spans", one) for one in heard]
