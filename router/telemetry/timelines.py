"""Where each session has lived: its stays at replicas, why it went there, and its last turns.

On the path of every turn it adds to the stay that the session is in. A long session costs no more than its
moves. Bounded by what is kept of a session, and by how much that is in all: the session not heard of for
longest goes first. Keeps no prompt.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

from router.base.clock import Clock
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Kind
from router.core.observe import FAILURES, NEUTRAL, Ended, Outcome
from router.core.observer import Silent

_MAX_STAYS: Final = 32
_MAX_TURNS: Final = 24

# Stays and turns of all sessions, some 200 bytes each.
_MAX_ENTRIES: Final = 200_000

_MS: Final = 1000.0


class _Stay:
    """Consecutive turns on one replica."""

    __slots__ = (
        "cached_tokens",
        "home",
        "kind",
        "prompt_tokens",
        "pulled_from",
        "reason",
        "replica",
        "since",
        "turns",
        "until",
    )

    def __init__(self, ended: Ended) -> None:
        decision = ended.decision
        self.replica = decision.replica
        self.kind = decision.kind
        """Of the turn that it began with, as are the next two."""
        self.reason = decision.reason
        self.home = decision.home
        self.pulled_from = decision.pull.source if decision.pull is not None else None
        self.since = decision.at
        self.until = ended.now
        self.turns = 0
        self.prompt_tokens = 0
        """Of turns whose replica told cached tokens; so is the next."""
        self.cached_tokens = 0


_Mark: TypeAlias = tuple[
    float, ReplicaId, Kind, Outcome, int, int, int | None, int | None, float, float | None
]
"""One turn: when, where, kind, outcome; prompt and cached tokens as predicted, the same as told; seconds held
and to the first token."""


class _Lived:
    """One session."""

    __slots__ = ("forgotten", "stays", "turns")

    def __init__(self) -> None:
        self.stays: deque[_Stay] = deque()
        self.turns: deque[_Mark] = deque(maxlen=_MAX_TURNS)
        self.forgotten = 0
        """Stays before those kept."""

    @property
    def entries(self) -> int:
        return len(self.stays) + len(self.turns)


class Timelines(Silent):
    """An `Observer`. `wall` is Unix seconds: turns carry monotonic time, people read dates."""

    __slots__ = ("_clock", "_entries", "_max_entries", "_sessions", "_wall")

    def __init__(
        self, clock: Clock, *, max_entries: int = _MAX_ENTRIES, wall: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._max_entries = max_entries
        self._entries = 0
        # The one with the latest turn last.
        self._sessions: OrderedDict[SessionKey, _Lived] = OrderedDict()

    def __len__(self) -> int:
        """Sessions."""
        return len(self._sessions)

    def on_ended(self, ended: Ended) -> None:
        turn, decision, outcome, usage = ended.turn, ended.decision, ended.outcome, ended.usage
        session = turn.session
        if session is None or not turn.computes:
            return
        lived = self._sessions.get(session)
        if lived is None:
            lived = self._sessions[session] = _Lived()
        else:
            self._sessions.move_to_end(session)
        self._entries -= lived.entries
        prompt = usage.prompt_tokens if usage is not None else None
        cached = usage.cached_tokens if usage is not None else None
        mark = (
            decision.at,
            decision.replica,
            decision.kind,
            outcome,
            decision.prompt_tokens,
            decision.cached_tokens,
            prompt,
            cached,
            decision.waited_s,
            ended.ttft_s,
        )
        lived.turns.append(mark)
        if outcome not in FAILURES and outcome not in NEUTRAL:
            stays = lived.stays
            if not stays or stays[-1].replica != decision.replica:
                stays.append(_Stay(ended))
                if len(stays) > _MAX_STAYS:
                    stays.popleft()
                    lived.forgotten += 1
            stay = stays[-1]
            stay.turns += 1
            stay.until = ended.now
            if prompt is not None and cached is not None:
                stay.prompt_tokens += prompt
                stay.cached_tokens += cached
        self._entries += lived.entries
        while self._entries > self._max_entries and len(self._sessions) > 1:
            _, gone = self._sessions.popitem(last=False)
            self._entries -= gone.entries

    def of(self, session: SessionKey) -> dict[str, object] | None:
        """A session's stays and last turns as plain fields, the oldest first; `None` where none are kept."""
        lived = self._sessions.get(session)
        if lived is None:
            return None
        # Wall time of the monotonic origin, taken anew each time: the wall clock may have been set.
        origin = self._wall() - self._clock.now()
        return {
            "forgotten_stays": lived.forgotten,
            "stays": [_stay_fields(stay, origin) for stay in lived.stays],
            "turns": [_turn_fields(mark, origin) for mark in lived.turns],
        }


def _stay_fields(stay: _Stay, origin: float) -> dict[str, object]:
    return {
        "replica": stay.replica,
        "kind": stay.kind.value,
        "reason": stay.reason,
        "home": stay.home,
        "pulled_from": stay.pulled_from,
        "since": _date(origin + stay.since),
        "until": _date(origin + stay.until),
        "turns": stay.turns,
        "prompt_tokens": stay.prompt_tokens,
        "cached_tokens": stay.cached_tokens,
    }


def _turn_fields(mark: _Mark, origin: float) -> dict[str, object]:
    at, replica, kind, outcome, expected, predicted, prompt, cached, waited_s, ttft_s = mark
    return {
        "time": _date(origin + at),
        "replica": replica,
        "kind": kind.value,
        "outcome": outcome.value,
        "prompt_tokens": expected if prompt is None else prompt,
        "predicted_cached_tokens": predicted,
        "delivered_cached_tokens": cached,
        "waited_ms": round(waited_s * _MS, 3),
        "ttft_ms": round(ttft_s * _MS, 3) if ttft_s is not None else None,
    }


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
