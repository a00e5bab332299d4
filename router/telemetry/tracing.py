"""Traces of turns: which are recorded, and a span for each, for its attempts, its prefills and its wait.

Told of recorded turns by `fanout.py`, and asked by the data plane for a turn's place in its client's trace.
It keeps nothing of a turn between calls: all that spans have in common is in the turn's `Trace`. Knows no
collector; finished spans go to a sink, encoded. `docs/tracing.md` shows what comes of it.
"""

import time
from binascii import unhexlify
from collections.abc import Callable
from random import Random
from typing import Final, Protocol
from uuid import uuid4

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

import router
from router.base.errors import ErrorKind
from router.base.trace import (
    TRACE_ID_BYTES,
    TRACE_ID_DIGITS,
    FreshIds,
    Trace,
    parse_traceparent,
    sampled_flags,
    unsampled,
    unsampled_line,
)
from router.core.decide import Decision
from router.core.observe import Ended, Outcome, Prefilled, WaitEnd
from router.core.request import Turn
from router.telemetry.otlp import Attributes, SpanKind, span
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
_HALF: Final = TRACE_ID_DIGITS // 2


class Sink(Protocol):
    """Where finished spans go."""

    def add(self, span: bytes) -> None: ...


def resource_attributes() -> list[tuple[str, str]]:
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


class Tracing:
    """A `SpanMaker`. `now` is the engine's clock, `wall_ns` Unix nanoseconds."""

    __slots__ = (
        "_bound",
        "_bound_digits",
        "_follow",
        "_ids",
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
        self._bound_digits = b"%016x" % self._bound if self._bound <= _MASK64 else b"g"
        self._follow = follow
        self._tenant = tenant_names(secret)
        self._url_of = url_of
        self._now = now
        self._random = rng.getrandbits
        self._ids = FreshIds(rng)
        self._wall_ns = wall_ns

    def begin(self, traceparent: bytes | None, tracestate: bytes) -> Trace:
        """A turn's place in the trace that its headers name, or in one of its own."""
        parent = parse_traceparent(traceparent) if traceparent is not None else None
        if parent is None:
            ids = self._ids.take()
            if ids[_HALF:TRACE_ID_DIGITS] >= self._bound_digits:
                return unsampled(unsampled_line(ids))
            trace_id = unhexlify(ids[:TRACE_ID_DIGITS])
            return Trace(trace_id, self._new_span_id(), 0, sampled_flags(None), "", True, b"", self._now())
        state = b"tracestate: %b\r\n" % tracestate if tracestate else b""
        if parent.sampled if self._follow else parent.trace_id & _MASK64 < self._bound:
            return Trace(
                parent.trace_id.to_bytes(TRACE_ID_BYTES, "big"),
                self._new_span_id(),
                parent.span_id,
                sampled_flags(parent),
                tracestate.decode("latin-1"),
                True,
                state,
                self._now(),
            )
        # Nothing of ours stands between the client and the replica. Another flag needs another id.
        span_id = self._new_span_id() if parent.sampled else parent.span_id
        return unsampled(unsampled_line(b"%032x-%016x" % (parent.trace_id, span_id)) + state)

    def _new_span_id(self) -> int:
        """Leaves room for the ids that follow it."""
        return self._random(63) + 1

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
