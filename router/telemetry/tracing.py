"""Traces of turns: which are recorded, and a span for each, for its attempts, its prefills and its wait.

An observer of the engine, and what the data plane asks for a turn's place in its client's trace. It keeps
nothing of a turn between calls: all that spans have in common is in the turn's `Trace`. Knows no collector;
finished spans go to a sink, encoded. `docs/tracing.md` shows what comes of it.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Final, Protocol
from uuid import uuid4

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

import router
from router.base.errors import ErrorKind
from router.base.trace import (
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    Trace,
    parse_traceparent,
    sampled_flags,
    unsampled,
    unsampled_line,
)
from router.core.decide import Decision
from router.core.observe import Ended, Outcome, Prefilled, WaitEnd
from router.core.observer import Silent
from router.core.request import Turn
from router.telemetry.otlp import Attributes, SpanKind, Value, span
from router.telemetry.span_fields import (
    UrlOf,
    attempt_fields,
    attempt_name,
    has_failed,
    prefill_fields,
    prefill_name,
    route_of,
    turn_failed,
    turn_fields,
    wait_failed,
    wait_fields,
)
from router.telemetry.tenants import tenant_names

_NS: Final = 1e9
_MASK64: Final = (1 << 64) - 1

_IDS_BYTES: Final = TRACE_ID_BYTES + SPAN_ID_BYTES
_HALF: Final = TRACE_ID_BYTES // 2
# Neither of a trace's ids and its first span's may be 0, which the last bit of each rules out.
_NOT_ZERO: Final = 1 << 8 * SPAN_ID_BYTES | 1
# A span's own id leaves room for those that follow it.
_SPAN_MASK: Final = (1 << 63) - 1


class Sink(Protocol):
    """Where finished spans go."""

    def add(self, span: bytes) -> None: ...


def resource_attributes() -> list[tuple[str, Value]]:
    """Who records: this router, or what `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` call it."""
    ours = Resource(
        {
            "service.name": "homing",
            "service.version": router.__version__,
            "service.instance.id": str(uuid4()),
        }
    )
    found = ours.merge(OTELResourceDetector().detect()).attributes
    return [(name, value) for name, value in found.items() if isinstance(value, str)]


class Tracing(Silent):
    """An `Observer`. `now` is the engine's clock, `wall_ns` Unix nanoseconds."""

    __slots__ = (
        "_bound",
        "_bound_bytes",
        "_follow",
        "_now",
        "_random",
        "_sink",
        "_tenant",
        "_url_of",
        "_wall_ns",
    )

    def __init__(
        self,
        sink: Sink,
        *,
        sample: float,
        follow: bool,
        secret: bytes,
        url_of: UrlOf,
        now: Callable[[], float],
        rng: Random,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`sample` is the share of traces that are recorded, 0 … 1, of those that begin here; with `follow`
        a client's trace is recorded where the client records it, without it as those that begin here.
        `secret` keys the hashes of tenants' names."""
        self._sink = sink
        # The SDK's own, so that whoever samples by trace id beside us picks the same.
        self._bound = TraceIdRatioBased.get_bound_for_rate(sample)
        # As the second half of a trace id is compared with it; beyond all of them where each is recorded.
        self._bound_bytes = self._bound.to_bytes(_HALF, "big") if self._bound <= _MASK64 else b"\xff" * 9
        self._follow = follow
        self._tenant = tenant_names(secret)
        self._url_of = url_of
        self._now = now
        self._random = rng.getrandbits
        self._wall_ns = wall_ns

    def begin(self, traceparent: bytes | None, tracestate: bytes) -> Trace:
        """A turn's place in the trace that its headers name, or in one of its own."""
        parent = parse_traceparent(traceparent) if traceparent is not None else None
        if parent is None:
            bits = self._random(8 * _IDS_BYTES) | _NOT_ZERO
            ids = bits.to_bytes(_IDS_BYTES, "big")
            if ids[_HALF:TRACE_ID_BYTES] >= self._bound_bytes:
                return unsampled(unsampled_line(ids))
            trace_id, span_id = bits >> 8 * SPAN_ID_BYTES, bits & _SPAN_MASK
            return Trace(trace_id, span_id, 0, sampled_flags(None), "", True, b"", self._now())
        state = b"tracestate: %b\r\n" % tracestate if tracestate else b""
        if parent.sampled if self._follow else parent.trace_id & _MASK64 < self._bound:
            return Trace(
                parent.trace_id,
                self._random(63) + 1,
                parent.span_id,
                sampled_flags(parent),
                tracestate.decode("latin-1"),
                True,
                state,
                self._now(),
            )
        # Nothing of ours stands between the client and the replica. Another flag needs another id.
        span_id = self._random(63) + 1 if parent.sampled else parent.span_id
        ids = (parent.trace_id << 8 * SPAN_ID_BYTES | span_id).to_bytes(_IDS_BYTES, "big")
        return unsampled(unsampled_line(ids) + state)

    def over(
        self,
        turn: Turn,
        *,
        method: bytes,
        status: int,
        refused: ErrorKind | None,
        decision: Decision | None,
        outcome: Outcome | None,
    ) -> None:
        """The client has its answer, or is gone. `status` is what it was told, 0 where that is nothing."""
        trace = turn.trace
        if trace is None or not trace.sampled:
            return
        name = method.decode("ascii")
        fields = turn_fields(
            turn,
            method=name,
            status=status,
            refused=refused,
            decision=decision,
            outcome=outcome,
            tenant=self._tenant,
        )
        self._record(
            trace,
            f"{name} {route_of(turn.path)}",
            SpanKind.SERVER,
            span_id=trace.span_id,
            parent_id=trace.parent_id,
            took_s=self._now() - trace.began,
            fields=fields,
            failed=turn_failed(status, refused, outcome),
        )

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        trace = turn.trace
        if trace is None or not trace.sampled:
            return
        self._record(
            trace,
            "wait",
            SpanKind.INTERNAL,
            span_id=trace.wait_id(),
            parent_id=trace.span_id,
            took_s=waited_s,
            fields=wait_fields(waited_s, end),
            failed=wait_failed(end),
        )

    def on_ended(self, ended: Ended) -> None:
        trace = ended.turn.trace
        if trace is None or not trace.sampled:
            return
        decision = ended.decision
        self._record(
            trace,
            attempt_name(ended.turn),
            SpanKind.CLIENT,
            span_id=trace.attempt_id(decision.attempt),
            parent_id=trace.span_id,
            took_s=ended.duration_s,
            fields=attempt_fields(ended, self._url_of(decision.replica)),
            failed=has_failed(ended.outcome),
        )

    def on_prefilled(self, prefilled: Prefilled) -> None:
        trace = prefilled.turn.trace
        if trace is None or not trace.sampled:
            return
        self._record(
            trace,
            prefill_name(prefilled.turn),
            SpanKind.CLIENT,
            span_id=trace.prefill_id(prefilled.number),
            parent_id=trace.attempt_id(prefilled.decision.attempt),
            took_s=prefilled.duration_s,
            fields=prefill_fields(prefilled, self._url_of(prefilled.replica)),
            failed=has_failed(prefilled.outcome),
        )

    def _record(
        self,
        trace: Trace,
        name: str,
        kind: SpanKind,
        *,
        span_id: int,
        parent_id: int,
        took_s: float,
        fields: Attributes,
        failed: bool,
    ) -> None:
        """A span that ends now."""
        end_ns = self._wall_ns()
        self._sink.add(
            span(
                name,
                kind,
                trace_id=trace.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                remote_parent=kind is SpanKind.SERVER,
                flags=trace.flags,
                state=trace.state,
                start_ns=end_ns - int(took_s * _NS),
                end_ns=end_ns,
                attributes=fields,
                failed=failed,
            )
        )
