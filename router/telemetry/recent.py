"""Keeps the last decisions and how they ended, for people who ask why a turn went where it did.

On the path of every turn it stores references; fields are made when someone looks. It keeps no prompt and
no chain of it. Memory is bounded by records and by the candidates they hold: a bill of 500 replicas is a
hundred times one of 5.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from router.base.clock import Clock
from router.base.errors import ErrorKind
from router.core.decide import Decision
from router.core.observe import Ended, Outcome, Usage
from router.core.observer import Silent
from router.core.request import Turn
from router.telemetry.bill import bill, brief_bill

# Some 250 bytes each.
_MAX_CANDIDATES: Final = 50_000


class _Record:
    """One decision or refusal, and what came of it."""

    __slots__ = (
        "at",
        "decision",
        "duration_s",
        "model",
        "outcome",
        "path",
        "refusal",
        "serial",
        "session",
        "tenant",
        "ttft_s",
        "usage",
    )

    def __init__(
        self,
        serial: int,
        turn: Turn,
        decision: Decision | None,
        refusal: tuple[ErrorKind, str] | None,
        at: float,
    ) -> None:
        self.serial = serial
        # A turn's head, without its chain.
        self.path = turn.path
        self.model = turn.model
        self.tenant = turn.tenant
        self.session = turn.session
        self.decision = decision
        self.refusal = refusal
        self.at = at
        self.outcome: Outcome | None = None
        """`None` while the turn runs, as are the next three."""
        self.usage: Usage | None = None
        self.ttft_s: float | None = None
        self.duration_s: float | None = None

    @property
    def kind(self) -> str:
        return "refused" if self.decision is None else self.decision.kind.value


class RecentDecisions(Silent):
    """An `Observer`. `wall` is Unix seconds: decisions carry monotonic time, people read dates."""

    __slots__ = (
        "_candidates",
        "_clock",
        "_max_candidates",
        "_max_records",
        "_open",
        "_records",
        "_serial",
        "_step",
        "_wall",
    )

    def __init__(
        self,
        clock: Clock,
        *,
        worker: int = 0,
        workers: int = 1,
        max_records: int = 1000,
        max_candidates: int = _MAX_CANDIDATES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Where several `workers` keep decisions, each gives them ids that no other does."""
        if max_records < 1:
            raise ValueError(f"at least 1 decision is kept, not {max_records}")
        self._clock = clock
        self._wall = wall
        self._max_records = max_records
        self._max_candidates = max_candidates
        self._records: deque[_Record] = deque()
        self._candidates = 0
        self._serial = worker
        self._step = workers
        # By identity: the engine ends a turn with the decision that it began with, and a record keeps its
        # decision alive, so no other object has that id while the entry is here.
        self._open: dict[int, _Record] = {}

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        record = _Record(self._next(), turn, decision, None, decision.at)
        self._open[id(decision)] = record
        self._keep(record, len(decision.candidates))

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self._keep(_Record(self._next(), turn, None, (kind, message), now), 0)

    def on_ended(self, ended: Ended) -> None:
        record = self._open.pop(id(ended.decision), None)
        if record is not None:
            record.outcome, record.usage = ended.outcome, ended.usage
            record.ttft_s, record.duration_s = ended.ttft_s, ended.duration_s

    def newest(
        self,
        limit: int,
        *,
        brief: bool = False,
        session: str | None = None,
        replica: str | None = None,
        kind: str | None = None,
    ) -> list[dict[str, object]]:
        """At most `limit` records as plain fields, newest first. `brief`: without options, candidates and
        the bill of a pair.

        Of one session, by its key or the longer one that names a model, one replica or one kind (`refused`
        is one), where they are given.
        """
        origin = self._origin()
        found = (
            record
            for record in reversed(self._records)
            if (session is None or (record.session is not None and session.startswith(record.session)))
            and (replica is None or (record.decision is not None and record.decision.replica == replica))
            and (kind is None or record.kind == kind)
        )
        return [_fields(record, origin, brief) for record in islice(found, limit)]

    def find(self, serial: int) -> dict[str, object] | None:
        """One record with all that there is of it, by its `id`; `None` if it is not kept any more."""
        records = self._records
        at, others = divmod(serial - records[0].serial, self._step) if records else (-1, 0)
        return _fields(records[at], self._origin(), False) if not others and 0 <= at < len(records) else None

    def _origin(self) -> float:
        """Wall time of the monotonic origin, taken anew each time: the wall clock may have been set."""
        return self._wall() - self._clock.now()

    def _next(self) -> int:
        self._serial += self._step
        return self._serial

    def _keep(self, record: _Record, candidates: int) -> None:
        records = self._records
        records.append(record)
        self._candidates += candidates
        while len(records) > self._max_records or (
            self._candidates > self._max_candidates and len(records) > 1
        ):
            gone = records.popleft().decision
            if gone is not None:
                self._candidates -= len(gone.candidates)
                self._open.pop(id(gone), None)


def _fields(record: _Record, origin: float, brief: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": record.serial,
        "time": datetime.fromtimestamp(origin + record.at, UTC).isoformat(timespec="milliseconds"),
        "session": record.session,
        "tenant": record.tenant,
        "path": record.path,
        "model": record.model,
    }
    if record.refusal is not None:
        kind, message = record.refusal
        return fields | {"kind": record.kind, "reason": message, "refused": kind.value}
    assert record.decision is not None
    outcome, usage = record.outcome, record.usage or Usage()
    return (
        fields
        | (brief_bill(record.decision) if brief else bill(record.decision))
        | {
            "outcome": outcome.value if outcome is not None else None,
            "delivered_cached_tokens": usage.cached_tokens,
            "delivered_prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "ttft_ms": _ms(record.ttft_s),
            "duration_ms": _ms(record.duration_s),
        }
    )


def _ms(seconds: float | None) -> float | None:
    return round(seconds * 1000.0, 3) if seconds is not None else None
