"""Counts every fact that the engine reports. Knows no exporter: `metrics` reads it.

On the path of every turn, so it adds to plain integers and does nothing else. What it tells apart is
bounded: replicas, kinds, outcomes and policies, never sessions, tenants or models.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.observe import Ended, HealthChange, Outcome, Prefilled, Usage, WaitEnd
from router.core.price import expected_s
from router.core.pullbook import pull_came
from router.core.request import Turn
from router.telemetry.histogram import Histogram

# From a warm short prompt to a cold long one behind a queue.
TTFT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
DURATION_BOUNDS_S: Final[tuple[float, ...]] = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
# From a short warm request to a long body on a busy machine, or a connection that is slow to come.
OVERHEAD_BOUNDS_S: Final[tuple[float, ...]] = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.5,
    1.0,
)
# From a round trip to the longest that any policy should let a turn wait.
WAIT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    900.0,
)
# Shares of the time that was seen; the last doubles it.
TTFT_ERROR_BOUNDS: Final[tuple[float, ...]] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
# 0 has a bucket of its own: the prediction was right to the token. 16 and 64 are common block sizes.
ERROR_BOUNDS_TOKENS: Final[tuple[float, ...]] = (
    0.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262144.0,
)

# Replicas come and go under discovery. The names that went are dropped when metrics are read; where nobody
# reads them, this is how many are kept.
_MAX_REPLICAS: Final = 4096

# A member looked up on its class costs as much as four additions.
_COMPLETED: Final = Outcome.COMPLETED


class PullResult(StrEnum):
    """How the pull went that a turn was sent with, by the cached tokens that its replica reports."""

    CAME = "came"
    """What was to come was found there, but for a few blocks."""
    FELL_BACK = "fell_back"
    """It was not, and the replica computed the rest."""
    UNREPORTED = "unreported"
    """The replica did not say: the turn failed, or ended before its usage."""


def _no_decisions() -> defaultdict[Kind, int]:
    return defaultdict(int)


def _pull_result(decision: Decision, usage: Usage | None) -> PullResult:
    if usage is None or usage.cached_tokens is None:
        return PullResult.UNREPORTED
    return PullResult.CAME if pull_came(decision, usage.cached_tokens) else PullResult.FELL_BACK


class ReplicaCounts:
    """What happened to turns on one replica, since it was first seen."""

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "decisions",
        "health_changes",
        "outcomes",
        "predicted_tokens",
        "prompt_tokens",
        "restarts",
        "retries",
        "unreported",
    )

    def __init__(self) -> None:
        self.decisions: defaultdict[str, defaultdict[Kind, int]] = defaultdict(_no_decisions)
        """By policy and kind. Nested: a pair as key costs twice as much to count."""
        self.retries = 0
        """Decisions that were further attempts of a turn."""
        self.outcomes: defaultdict[Outcome, int] = defaultdict(int)
        self.health_changes: defaultdict[str, int] = defaultdict(int)
        """By the state entered."""
        self.restarts = 0
        # Tokens of turns for which the replica reported both prompt and cached tokens, so that the three
        # can be compared; a missing report is counted as such, not as zero tokens.
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.predicted_tokens = 0
        self.completion_tokens = 0
        self.unreported = 0
        """Completed turns without those reports."""


class Counters:
    """An `Observer`. Read its fields at any time; change them through the observer's methods only."""

    __slots__ = (
        "duration",
        "moves",
        "overhead",
        "prediction_error",
        "pulls",
        "refused",
        "replicas",
        "ttft",
        "ttft_error",
        "waits",
    )

    def __init__(self) -> None:
        self.replicas: dict[ReplicaId, ReplicaCounts] = {}
        self.refused: defaultdict[ErrorKind, int] = defaultdict(int)
        self.moves = 0
        self.pulls: defaultdict[PullResult, int] = defaultdict(int)
        self.ttft = {kind: Histogram(TTFT_BOUNDS_S) for kind in Kind}
        self.waits = {end: Histogram(WAIT_BOUNDS_S) for end in WaitEnd}
        """Of turns that the router held, by how their wait ended."""
        self.overhead = Histogram(OVERHEAD_BOUNDS_S)
        """From a whole request to its sending on, less what it was held. The data plane adds to it."""
        self.duration = Histogram(DURATION_BOUNDS_S)
        """Of turns that completed, dispatch to end."""
        self.prediction_error = Histogram(ERROR_BOUNDS_TOKENS)
        """|predicted − delivered cached tokens| of a turn."""
        self.ttft_error = Histogram(TTFT_ERROR_BOUNDS)
        """|expected − seen| time to first token of a streamed turn, as a share of what was seen."""

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        counts = self.replicas.get(decision.replica) or self._admit(decision.replica)
        counts.decisions[decision.policy][decision.kind] += 1
        if decision.attempt:
            counts.retries += 1

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self.refused[kind] += 1

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        self.waits[end].add(waited_s)

    def on_ended(self, ended: Ended) -> None:
        decision, outcome, usage, ttft_s = ended.decision, ended.outcome, ended.usage, ended.ttft_s
        counts = self.replicas.get(decision.replica) or self._admit(decision.replica)
        counts.outcomes[outcome] += 1
        if ttft_s is not None:
            self.ttft[decision.kind].add(ttft_s)
            if ttft_s > 0.0 and not decision.attempt:
                expected = expected_s(decision.chosen, decision.prompt_tokens, decision.pull)
                self.ttft_error.add(abs(expected - ttft_s) / ttft_s)
        if outcome is _COMPLETED:
            self.duration.add(ended.duration_s)
        if decision.pull is not None:
            self.pulls[_pull_result(decision, usage)] += 1
        if usage is None:
            if outcome is _COMPLETED:
                counts.unreported += 1
            return
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        if completion is not None:
            counts.completion_tokens += completion
        if prompt is not None and cached is not None:
            predicted = decision.cached_tokens
            counts.prompt_tokens += prompt
            counts.cached_tokens += cached
            counts.predicted_tokens += predicted
            self.prediction_error.add(abs(predicted - cached))
        elif outcome is _COMPLETED:
            counts.unreported += 1

    def on_prefilled(self, prefilled: Prefilled) -> None:
        """Counted in the books of pairs."""

    def on_health(self, change: HealthChange) -> None:
        self._of(change.replica).health_changes[change.after] += 1

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        self._of(replica).restarts += 1

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self.moves += 1

    def retain(self, replicas: Iterable[ReplicaId]) -> None:
        """Drop the counts of all replicas but these."""
        for gone in self.replicas.keys() - set(replicas):
            del self.replicas[gone]

    def _of(self, replica: ReplicaId) -> ReplicaCounts:
        return self.replicas.get(replica) or self._admit(replica)

    def _admit(self, replica: ReplicaId) -> ReplicaCounts:
        if len(self.replicas) >= _MAX_REPLICAS:
            del self.replicas[next(iter(self.replicas))]
        counts = self.replicas[replica] = ReplicaCounts()
        return counts
