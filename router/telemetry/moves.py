"""Turns that left home, and KV that was pulled for them: who gave what to whom, and why.

Home turns, most of them by far, cost it one comparison. What is counted is the last quarter of an hour, by
the minute, in pairs of replicas; the latest moves are kept one by one.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from router.base.clock import Clock
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.observe import FAILURES, Ended, Outcome
from router.core.observer import Silent
from router.core.request import Turn

_SLICE_S: Final = 60.0
_SLICES: Final = 15

# Pairs told apart in a minute. A fleet of 500 has 250,000; what is beyond is counted, and not shown by name.
_MAX_PAIRS: Final = 2048

_KEPT: Final = 500

_LEFT_HOME: Final = frozenset({Kind.PULL, Kind.SPILL, Kind.FAILOVER})

# As for the books of pulls: a few blocks less may be the estimate's fault.
_CAME: Final = 0.8


class _Flow:
    """What went from one replica to another."""

    __slots__ = ("asked_tokens", "came_tokens", "failovers", "pulls", "short", "spills")

    def __init__(self) -> None:
        self.pulls = 0
        """Turns for which KV was to be pulled."""
        self.spills = 0
        """Turns that left home and were computed again."""
        self.failovers = 0
        self.short = 0
        """Pulls that brought less than they were sent for."""
        self.asked_tokens = 0
        self.came_tokens = 0

    def add(self, other: "_Flow") -> None:
        self.pulls += other.pulls
        self.spills += other.spills
        self.failovers += other.failovers
        self.short += other.short
        self.asked_tokens += other.asked_tokens
        self.came_tokens += other.came_tokens


_Pair: TypeAlias = tuple[ReplicaId, ReplicaId]


class _Move(NamedTuple):
    """One turn that moved, or for which KV was pulled. A decision's bill is not kept here."""

    at: float
    session: SessionKey | None
    kind: Kind
    source: ReplicaId | None
    """Whom KV was pulled from, or where home was; `None` if there was none."""
    target: ReplicaId
    reason: str
    prompt_tokens: int
    asked_tokens: int | None
    """To be pulled; `None` where nothing was."""
    came_tokens: int | None
    ttft_s: float | None


class Moves(Silent):
    """An `Observer`. `wall` is Unix seconds: turns carry monotonic time, people read dates."""

    __slots__ = ("_clock", "_current", "_latest", "_minutes", "_number", "_wall", "under_way", "unnamed")

    def __init__(self, clock: Clock, *, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._latest: deque[_Move] = deque(maxlen=_KEPT)
        self._number = -1
        self._current: dict[_Pair, _Flow] = {}
        self._minutes: deque[tuple[int, dict[_Pair, _Flow]]] = deque(maxlen=_SLICES)
        self.under_way: dict[_Pair, int] = {}
        """Pulls whose turns have not ended. Read-only."""
        self.unnamed = 0
        """Moves between pairs beyond those that are told apart, ever. Read-only."""

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        if decision.pull is not None:
            pair = (decision.pull.source, decision.replica)
            self.under_way[pair] = self.under_way.get(pair, 0) + 1

    def on_ended(self, ended: Ended) -> None:
        decision = ended.decision
        pull, kind = decision.pull, decision.kind
        if pull is None and kind not in _LEFT_HOME:
            return
        target = decision.replica
        if pull is not None:
            pair = (pull.source, target)
            left = self.under_way.get(pair, 0) - 1
            if left > 0:
                self.under_way[pair] = left
            else:
                self.under_way.pop(pair, None)
        if ended.outcome in FAILURES or ended.outcome is Outcome.CANCELLED:
            return
        source = pull.source if pull is not None else decision.home
        came = _came(ended)
        self._latest.append(
            _Move(
                decision.at,
                ended.turn.session,
                kind,
                source,
                target,
                decision.reason,
                decision.prompt_tokens,
                pull.tokens if pull is not None else None,
                came,
                ended.ttft_s,
            )
        )
        if source is None or source == target:
            return
        flow = self._flow((source, target), ended.now)
        if pull is not None:
            flow.pulls += 1
            flow.asked_tokens += pull.tokens
            if came is not None:
                flow.came_tokens += came
                flow.short += came < _CAME * pull.tokens
        elif kind is Kind.FAILOVER:
            flow.failovers += 1
        else:
            flow.spills += 1

    def fields(self, limit: int) -> dict[str, object]:
        """The flows of the last quarter of an hour, the largest first, and at most `limit` of the latest
        moves, the newest first."""
        now = self._clock.now()
        origin = self._wall() - now
        after = int(now / _SLICE_S) - _SLICES
        flows: dict[_Pair, _Flow] = {}
        for number, pairs in self._minutes:
            if number > after:
                for pair, flow in pairs.items():
                    flows.setdefault(pair, _Flow()).add(flow)
        for pair in self.under_way:
            flows.setdefault(pair, _Flow())
        ordered = sorted(flows.items(), key=lambda item: (-_size(item[1]), item[0]))
        return {
            "window_s": _SLICE_S * _SLICES,
            "flows": [_flow_fields(pair, flow, self.under_way.get(pair, 0)) for pair, flow in ordered],
            "unnamed": self.unnamed,
            "moves": [_move_fields(each, origin) for each in islice(reversed(self._latest), limit)],
        }

    def _flow(self, pair: _Pair, now: float) -> _Flow:
        number = int(now / _SLICE_S)
        if number > self._number:
            self._number = number
            self._current = {}
            self._minutes.append((number, self._current))
        flow = self._current.get(pair)
        if flow is None:
            flow = _Flow()
            if len(self._current) < _MAX_PAIRS:
                self._current[pair] = flow
            else:
                self.unnamed += 1
        return flow


def _size(flow: _Flow) -> int:
    return flow.pulls + flow.spills + flow.failovers


def _came(ended: Ended) -> int | None:
    """How much of what was to be pulled was found in the cache; `None` where the replica did not say."""
    decision, usage = ended.decision, ended.usage
    if decision.pull is None or usage is None or usage.cached_tokens is None:
        return None
    there_before = decision.cached_tokens - decision.pull.tokens
    return max(0, min(decision.pull.tokens, usage.cached_tokens - there_before))


def _flow_fields(pair: _Pair, flow: _Flow, under_way: int) -> dict[str, object]:
    return {
        "source": pair[0],
        "target": pair[1],
        "pulls": flow.pulls,
        "spills": flow.spills,
        "failovers": flow.failovers,
        "short": flow.short,
        "asked_tokens": flow.asked_tokens,
        "came_tokens": flow.came_tokens,
        "under_way": under_way,
    }


def _move_fields(move: _Move, origin: float) -> dict[str, object]:
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(origin + move.at, UTC).isoformat(timespec="milliseconds"),
        **move._asdict(),
        "kind": move.kind.value,
        "ttft_ms": round(move.ttft_s * 1000.0, 3) if move.ttft_s is not None else None,
    }
    del fields["at"], fields["ttft_s"]
    return fields
