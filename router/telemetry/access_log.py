"""The access log: one line of JSON for each turn, with all that a replay needs of it and no text.

Says what to write; `log_file` writes it. Of a prompt it keeps the hashes of its chain, and writes only those
that are new since the session's last line. `docs/access-log.md` describes the fields.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

import sys
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import orjson
from opentelemetry.sdk.metrics.export import Metric

from router.base.errors import ErrorKind
from router.base.ids import OPEN_TENANT
from router.core.observe import Ended, Usage, WaitEnd
from router.core.observer import Silent
from router.core.request import Chain, Turn
from router.telemetry.points import Builder
from router.telemetry.tenants import tenant_names

FORMAT: Final = 1
"""Of the lines: another number means that an older reader must not guess."""

# Segments whose hashes are kept, of all sessions, to write only what is new: 8 bytes each.
_MOST_SEGMENTS: Final = 2_000_000

_RESPONSES: Final = "/v1/responses/"
_NONE: Final = array("Q")
_NO_USAGE: Final = Usage()


class Lines(Protocol):
    """Where lines go. `begun` grows when they can no longer refer to those before."""

    @property
    def begun(self) -> int: ...

    def write(self, line: bytes) -> None: ...


class Tally(Protocol):
    """How many lines became what."""

    @property
    def written(self) -> int: ...

    @property
    def lost(self) -> int: ...


def access_log_metrics(tally: Tally, build: Builder) -> list[Metric]:
    """What became of the lines."""
    return [
        build.counter(
            "homing_access_log_lines",
            "Lines of the access log, by whether they were written or lost.",
            "{line}",
            [({"result": "written"}, tally.written), ({"result": "lost"}, tally.lost)],
        )
    ]


class AccessLog(Silent):
    """An `Observer`. `wall` is Unix seconds; `secret` keys the hashes of tenants' names."""

    __slots__ = ("_begun", "_known", "_lines", "_segments", "_tenant", "_waited_s", "_wall")

    def __init__(self, lines: Lines, *, secret: bytes, wall: Callable[[], float] = time.time) -> None:
        self._lines = lines
        self._wall = wall
        self._begun = 0
        self._known: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        """The chain of each session's last line, by session and model."""
        self._segments = 0
        self._waited_s = 0.0
        """For how long the turn was held whose refusal is told next."""
        self._tenant = tenant_names(secret)

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        self._waited_s = 0.0
        if end is WaitEnd.LEFT:
            line = self._head(turn, self._wall() - waited_s)
            line |= {"outcome": end.value, "wait_ms": _ms(waited_s)}
            self._lines.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        elif end is not WaitEnd.DISPATCHED:
            self._waited_s = waited_s

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        waited_s, self._waited_s = self._waited_s, 0.0
        line = self._head(turn, self._wall() - waited_s)
        line["refused"] = kind.value
        if waited_s:
            line["wait_ms"] = _ms(waited_s)
        self._lines.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def on_ended(self, ended: Ended) -> None:
        turn, decision, duration_s = ended.turn, ended.decision, ended.duration_s
        usage = ended.usage or _NO_USAGE
        line = self._head(turn, self._wall() - duration_s - decision.waited_s)
        line |= {
            "policy": decision.policy,
            "kind": decision.kind.value,
            "replica": decision.replica,
            "reason": decision.reason,
            "outcome": ended.outcome.value,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "estimated_prompt_tokens": decision.prompt_tokens,
            "predicted_cached_tokens": decision.cached_tokens,
            "wait_ms": _ms(decision.waited_s),
            "ttft_ms": _ms(ended.ttft_s) if ended.ttft_s is not None else None,
            "duration_ms": _ms(duration_s),
        }
        if decision.pair is not None:
            line["prefill"] = decision.pair.prefill
        if decision.attempt:
            line["attempt"] = decision.attempt
        if turn.chain.hashes and turn.session is not None:
            line |= self._chain(turn.session, turn.model, turn.chain, continued=turn.response_id is not None)
        self._lines.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _head(self, turn: Turn, at: float) -> dict[str, object]:
        line: dict[str, object] = {
            "homing": FORMAT,
            "at": round(at, 6),
            "session": turn.session,
            "source": turn.session_source,
            # What else such a path holds is the id of a response.
            "path": turn.path if not turn.path.startswith(_RESPONSES) else _RESPONSES + "*",
            "model": turn.model,
            "stream": turn.stream,
        }
        if turn.tenant != OPEN_TENANT:
            line["tenant"] = self._tenant(turn.tenant)
        if turn.parent is not None:
            line["parent"] = turn.parent
        if turn.last:
            line["last"] = True
        if not turn.computes:
            line["computes"] = False
        return line

    def _chain(self, session: str, model: str, chain: Chain, *, continued: bool) -> dict[str, object]:
        """How many segments are those of the session's last line, and all others; sizes in prompt bytes."""
        hashes, ends = chain.hashes, chain.ends
        kept = 0
        if not continued:
            kept = self._keep((session, model), hashes)
        before = ends[kept - 1] if kept else 0
        sizes = []
        for end in ends[kept:]:
            sizes.append(end - before)
            before = end
        new = array("Q", hashes[kept:])
        line: dict[str, object] = {"keep": kept, "new": _hex(new), "sizes": sizes, "opening": chain.opening}
        if kept:
            line["after"] = _hex(array("Q", hashes[kept - 1 : kept]))
        if continued:
            line["continued"] = True
        return line

    def _keep(self, key: tuple[str, str], hashes: tuple[int, ...]) -> int:
        """Remember a session's chain; how many leading segments it had in common with the one before."""
        if self._begun != self._lines.begun:
            self._begun = self._lines.begun
            self._known.clear()
            self._segments = 0
        known = self._known.get(key, _NONE)
        # A hash stands for all that precedes it: where two chains agree, they agree up to there.
        most = min(len(known), len(hashes))
        kept = bisect_left(range(most), True, key=lambda at: known[at] != hashes[at])
        if known is _NONE:
            known = self._known[key] = array("Q", hashes)
            self._segments += len(hashes)
        else:
            self._segments += len(hashes) - len(known)
            del known[kept:]
            known.extend(hashes[kept:])
            self._known.move_to_end(key)
        while self._segments > _MOST_SEGMENTS and len(self._known) > 1:
            _, gone = self._known.popitem(last=False)
            self._segments -= len(gone)
        return kept


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)


def _hex(hashes: "array[int]") -> str:
    """Sixteen digits each, one after the other."""
    if sys.byteorder == "little":
        hashes.byteswap()
    return hashes.tobytes().hex()
