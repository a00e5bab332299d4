"""What became of turns in the last hour, in slices of ten seconds: for people who begin to look late.

On the path of every turn it adds to plain numbers; shares and percentiles are worked out when someone looks.
Bounded: an hour of slices, and of these only the latest ones tell replicas apart.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

from collections import deque
from collections.abc import Iterable
from math import log2
from typing import Final

from router.base.clock import Clock
from router.base.errors import ErrorKind
from router.base.ids import ReplicaId
from router.core.decide import Kind
from router.core.observe import FAILURES, Ended, Outcome
from router.core.observer import Silent
from router.core.request import Turn

SLICE_S: Final = 10.0
SLICES: Final = 360

LATELY_S: Final = 300.0
"""The window of the figures that are not a series, and of those of one replica."""
_LATELY: Final = int(LATELY_S / SLICE_S)

# Times to first token fall in steps of a fifth, from a millisecond to two minutes: as exact as a percentile
# over some hundred turns is.
_STEPS: Final = 4
_TTFT_MOST: Final = 17 * _STEPS - 1
_TTFT_LEAST_S: Final = 0.001

_MS: Final = 1000.0

_COMPLETED: Final = Outcome.COMPLETED


class Tokens:
    """Turns that completed, and their prompts."""

    __slots__ = ("cached", "predicted", "prompt", "turns", "unreported")

    def __init__(self) -> None:
        self.turns = 0
        self.unreported = 0
        """Turns whose replica told no cached tokens: the three below leave them out."""
        self.prompt = 0
        self.cached = 0
        self.predicted = 0

    def add(self, other: "Tokens") -> None:
        """What the other one counted, too."""
        self.turns += other.turns
        self.unreported += other.unreported
        self.prompt += other.prompt
        self.cached += other.cached
        self.predicted += other.predicted

    def fields(self) -> dict[str, object]:
        """As plain fields; a share of nothing is `None`."""
        return {
            "turns": self.turns,
            "unreported": self.unreported,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "predicted_cached_tokens": self.predicted,
            "hit_rate": _share(self.cached, self.prompt),
        }


class _Slice:
    __slots__ = ("failed", "kinds", "number", "refused", "replicas", "ttft")

    def __init__(self, number: int) -> None:
        self.number = number
        """Of slices since the clock's origin."""
        self.kinds: dict[Kind, Tokens] = {}
        self.replicas: dict[ReplicaId, Tokens] = {}
        self.refused = 0
        self.failed = 0
        """Attempts that a replica failed."""
        self.ttft = [0] * (_TTFT_MOST + 1)

    def all(self) -> Tokens:
        whole = Tokens()
        for tokens in self.kinds.values():
            whole.add(tokens)
        return whole


class History(Silent):
    """An `Observer`."""

    __slots__ = ("_clock", "_current", "_slices", "_until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slices: deque[_Slice] = deque(maxlen=SLICES)
        self._current = self._begin(clock.now())
        self._until = (self._current.number + 1) * SLICE_S

    def on_ended(self, ended: Ended) -> None:
        decision, outcome, usage = ended.decision, ended.outcome, ended.usage
        ttft_s, now = ended.ttft_s, ended.now
        current = self._current if now < self._until else self._begin(now)
        if ttft_s is not None:
            current.ttft[_step(ttft_s)] += 1
        if outcome is not _COMPLETED:
            current.failed += outcome in FAILURES
            return
        of_kind = current.kinds.get(decision.kind)
        if of_kind is None:
            of_kind = current.kinds[decision.kind] = Tokens()
        of_replica = current.replicas.get(decision.replica)
        if of_replica is None:
            of_replica = current.replicas[decision.replica] = Tokens()
        of_kind.turns += 1
        of_replica.turns += 1
        if usage is None or usage.prompt_tokens is None or usage.cached_tokens is None:
            of_kind.unreported += 1
            of_replica.unreported += 1
            return
        for tokens in (of_kind, of_replica):
            tokens.prompt += usage.prompt_tokens
            tokens.cached += usage.cached_tokens
            tokens.predicted += decision.cached_tokens

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        current = self._current if now < self._until else self._begin(now)
        current.refused += 1

    # --- for people ---------------------------------------------------------------------------------

    def lately(self) -> dict[str, object]:
        """The last five minutes, or what there was of them: rates, percentiles, and turns by kind."""
        now = self._clock.now()
        slices = self._latest(now, _LATELY)
        seconds = self._seconds(now)
        whole, kinds, ttft = Tokens(), dict[Kind, Tokens](), [0] * (_TTFT_MOST + 1)
        for each in slices:
            _add(ttft, each.ttft)
            for kind, tokens in each.kinds.items():
                kinds.setdefault(kind, Tokens()).add(tokens)
                whole.add(tokens)
        refused = sum(each.refused for each in slices)
        return {
            "window_s": round(seconds, 3),
            **whole.fields(),
            "turns_per_s": _share(whole.turns, seconds),
            "refused": refused,
            "failed": sum(each.failed for each in slices),
            "ttft_ms": _percentiles(ttft),
            "kinds": {kind.value: kinds[kind].fields() for kind in Kind if kind in kinds},
        }

    def replicas(self) -> dict[ReplicaId, dict[str, object]]:
        """The last five minutes of each replica that completed a turn."""
        found: dict[ReplicaId, Tokens] = {}
        for each in self._latest(self._clock.now(), _LATELY):
            for replica, tokens in each.replicas.items():
                found.setdefault(replica, Tokens()).add(tokens)
        return {replica: tokens.fields() for replica, tokens in found.items()}

    def series(self) -> dict[str, object]:
        """Columns, a figure a slice, the oldest first; `None` = no figure. The last slice is not over yet."""
        now = self._clock.now()
        last = int(now / SLICE_S)
        by_number = {each.number: each for each in self._latest(now, SLICES)}
        first = min(by_number, default=last)
        slices = [by_number.get(number) for number in range(first, last + 1)]
        whole = [each.all() if each is not None else Tokens() for each in slices]
        ttft = [_percentiles(each.ttft if each is not None else []) for each in slices]
        return {
            "slice_s": SLICE_S,
            "ends_in_s": round((last + 1) * SLICE_S - now, 3),
            "turns": [each.turns for each in whole],
            "prompt_tokens": [each.prompt for each in whole],
            "cached_tokens": [each.cached for each in whole],
            "refused": [each.refused if each is not None else 0 for each in slices],
            "failed": [each.failed if each is not None else 0 for each in slices],
            "ttft_p50_ms": [each["p50"] for each in ttft],
            "ttft_p95_ms": [each["p95"] for each in ttft],
            "kinds": {
                kind.value: [
                    each.kinds[kind].turns if each is not None and kind in each.kinds else 0
                    for each in slices
                ]
                for kind in Kind
            },
        }

    def _begin(self, now: float) -> _Slice:
        number = int(now / SLICE_S)
        if self._slices and number <= self._slices[-1].number:
            # Told late: it counts as of the latest.
            return self._slices[-1]
        self._current = _Slice(number)
        self._until = (number + 1) * SLICE_S
        self._slices.append(self._current)
        if len(self._slices) > _LATELY:
            self._slices[-_LATELY - 1].replicas = {}
        return self._current

    def _latest(self, now: float, count: int) -> list[_Slice]:
        """Those of so many slices up to this one that anything happened in."""
        after = int(now / SLICE_S) - count
        found = []
        for each in reversed(self._slices):
            if each.number <= after:
                break
            found.append(each)
        return found

    def _seconds(self, now: float) -> float:
        """How much of the last five minutes has been seen."""
        begun = self._slices[0].number * SLICE_S
        return max(SLICE_S / 2, min(LATELY_S - SLICE_S + now % SLICE_S, now - begun))


def _step(seconds: float) -> int:
    if seconds <= _TTFT_LEAST_S:
        return 0
    return min(_TTFT_MOST, int(_STEPS * log2(seconds / _TTFT_LEAST_S)))


def _add(counts: list[int], more: Iterable[int]) -> None:
    for at, count in enumerate(more):
        counts[at] += count


def _percentiles(counts: list[int]) -> dict[str, float | None]:
    return {"p50": _percentile(counts, 0.5), "p95": _percentile(counts, 0.95)}


def _percentile(counts: list[int], share: float) -> float | None:
    """The middle of the step that so many of the times do not exceed, in milliseconds."""
    left = share * sum(counts)
    if not left:
        return None
    step = -1
    while left > 0.0:
        step += 1
        left -= counts[step]
    milliseconds: float = _TTFT_LEAST_S * _MS * 2.0 ** ((step + 0.5) / _STEPS)
    return round(milliseconds, 1)


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
