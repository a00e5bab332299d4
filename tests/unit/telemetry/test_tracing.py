"""Which turns are recorded, and the spans that come of one."""

from random import Random

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.collector import Seen, decoded

from router.base.errors import ErrorKind
from router.base.ids import OPEN_TENANT, ReplicaId
from router.base.trace import Trace, parse_traceparent
from router.core.decide import Kind
from router.core.observe import Outcome, Prefilled, Usage, WaitEnd
from router.telemetry.otlp import Envelope
from router.telemetry.tracing import Tracing, resource_attributes

CLIENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
WALL_NS = 1_700_000_000_000_000_000


class Made:
    """A `Tracing` at a time that stands still, and what it made."""

    def __init__(
        self, sample: float = 1.0, *, follow: bool = True, seed: int = 1, rng: Random | None = None
    ) -> None:
        self.now = 100.0
        self.spans: list[bytes] = []
        self.tracing = Tracing(
            self,
            sample=sample,
            follow=follow,
            secret=b"s",
            url_of=lambda replica: "http://10.0.0.1:8000" if replica == "a" else None,
            now=lambda: self.now,
            rng=rng or Random(seed),
            wall_ns=lambda: WALL_NS,
        )

    def add(self, span: bytes) -> None:
        self.spans.append(span)

    def seen(self) -> list[Seen]:
        return decoded(Envelope([], "s", "1").request(self.spans))


def test_a_share_of_the_traces_that_begin_here_is_recorded() -> None:
    made = Made(0.25)
    traces = [made.tracing.begin(None, b"") for _ in range(4000)]
    assert sum(trace.sampled for trace in traces) == pytest.approx(1000, abs=120)
    told = [parse_traceparent(trace.lines(0).partition(b": ")[2]) for trace in traces]
    assert len({parent.trace_id for parent in told if parent is not None}) == 4000
    assert len({parent.span_id for parent in told if parent is not None}) == 4000
    for trace, parent in zip(traces, told, strict=True):
        assert parent is not None
        assert parent.sampled is trace.sampled
        # Whoever samples by the same share decides the same.
        assert trace.sampled is (parent.trace_id % (1 << 64) < 0.25 * (1 << 64))
        if trace.sampled:
            assert 0 < trace.span_id <= 1 << 63
            assert parent.trace_id == int.from_bytes(trace.trace_id, "big")
            assert parent.span_id == trace.attempt_id(0)


class Worst(Random):
    """All ones, or all zeros."""

    def __init__(self, bit: int) -> None:
        super().__init__()
        self.getrandbits = lambda size: ((1 << size) - 1) * bit  # type: ignore[method-assign]


@pytest.mark.parametrize("bit", [0, 1])
@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_no_id_is_0_or_beyond_its_bounds_whatever_chance_says(bit, sample):
    made = Made(sample, rng=Worst(bit))
    trace = made.tracing.begin(None, b"")
    told = parse_traceparent(trace.lines(0).partition(b": ")[2])
    assert told is not None
    assert trace.sampled is told.sampled is (sample == 1.0)
    assert trace.prefill_id(9) < 1 << 64


@pytest.mark.parametrize(("sample", "recorded"), [(0.0, 0), (1.0, 500)])
def test_none_and_all_are_exact(sample, recorded):
    made = Made(sample)
    assert sum(made.tracing.begin(None, b"").sampled for _ in range(500)) == recorded


def test_whoever_samples_by_the_same_share_picks_the_same_traces() -> None:
    parents = [b"00-%032x-%016x-00" % (Random(n).getrandbits(128), n + 1) for n in range(300)]
    few, more = Made(0.2, follow=False), Made(0.4, follow=False, seed=9)
    first = [few.tracing.begin(parent, b"").sampled for parent in parents]
    second = [more.tracing.begin(parent, b"").sampled for parent in parents]
    assert 20 < sum(first) < sum(second) < 180
    assert all(wide for narrow, wide in zip(first, second, strict=True) if narrow)


@pytest.mark.parametrize(("flags", "sampled"), [(b"01", True), (b"00", False)])
def test_a_client_that_says_is_followed(flags, sampled):
    made = Made(0.0 if sampled else 1.0)
    trace = made.tracing.begin(CLIENT + flags, b"a=1")
    assert trace.sampled is sampled
    line, state, _ = trace.lines(0).split(b"\r\n")
    assert state == b"tracestate: a=1"
    if sampled:
        assert trace.parent_id == 0x00F067AA0BA902B7
        assert line == b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-%016x-01" % trace.attempt_id(0)
    else:
        # Nothing of ours stands in between.
        assert line == b"traceparent: " + CLIENT + b"00"


def test_a_client_that_is_not_followed_has_its_trace_and_our_sampling() -> None:
    trace = Made(0.0, follow=False).tracing.begin(CLIENT + b"01", b"")
    assert not trace.sampled
    line = trace.lines(0)
    assert line.startswith(b"traceparent: " + CLIENT[:36])
    # Another flag under the client's own span would contradict it.
    assert CLIENT[36:] not in line
    assert line.endswith(b"-00\r\n")
    assert Made(1.0, follow=False).tracing.begin(CLIENT + b"00", b"").sampled


def test_a_context_that_is_none_takes_its_state_with_it() -> None:
    trace = Made().tracing.begin(b"nonsense", b"a=1")
    assert (trace.parent_id, trace.state) == (0, "")
    assert b"tracestate" not in trace.lines(0)


def test_a_turn_is_a_span_and_has_those_of_its_wait_and_attempts_in_it(turn, decided, ended) -> None:
    made = Made()
    trace = made.tracing.begin(CLIENT + b"01", b"a=1")
    turn = turn.replace(trace=trace)
    made.now += 2.0
    made.tracing.on_waited(turn, 1.5, WaitEnd.DISPATCHED)
    decision = decided(attempt=1)
    made.now += 3.0
    made.tracing.on_ended(ended(decision, Outcome.CUT, duration_s=2.5).replace(turn=turn))
    made.tracing.over(
        turn, method=b"POST", status=200, refused=ErrorKind.UPSTREAM_FAILED, decision=decision,
        outcome=Outcome.CUT,
    )  # fmt: skip
    wait, attempt, whole = made.seen()
    assert [one.name for one in (wait, attempt, whole)] == ["wait", "chat m", "POST /v1/chat/completions"]
    assert [one.kind for one in (wait, attempt, whole)] == ["internal", "client", "server"]
    assert {one.trace_id for one in (wait, attempt, whole)} == {CLIENT[3:35].decode()}
    assert whole.parent_id == "00f067aa0ba902b7"
    assert whole.span_id == wait.parent_id == attempt.parent_id == f"{trace.span_id:016x}"
    assert len({one.span_id for one in (wait, attempt, whole)}) == 3
    assert attempt.span_id.encode() in trace.lines(1)
    assert {one.span.trace_state for one in (wait, attempt, whole)} == {"a=1"}
    took = [one.span.end_time_unix_nano - one.span.start_time_unix_nano for one in (wait, attempt, whole)]
    assert took == [1_500_000_000, 2_500_000_000, 5_000_000_000]
    assert [one.failed for one in (wait, attempt, whole)] == [False, True, True]
    # Remote is the client's span, not ours.
    assert [bool(one.span.flags & 0x200) for one in (wait, attempt, whole)] == [False, False, True]
    assert attempt.fields["server.port"] == 8000


def test_a_prompt_that_another_replica_computed_is_a_span_in_the_attempts(turn, decided) -> None:
    made = Made()
    trace = made.tracing.begin(None, b"")
    turn = turn.replace(trace=trace)
    for number, outcome in enumerate((Outcome.DIED, Outcome.COMPLETED)):
        usage = Usage(1000, 1, 400) if outcome is Outcome.COMPLETED else None
        source = ReplicaId("c") if number else None
        made.tracing.on_prefilled(
            Prefilled(
                turn,
                decided("b", attempt=1),
                ReplicaId("a"),
                number,
                990,
                410,
                source,
                outcome,
                usage,
                2.0,
                9.0,
            )
        )
    died, computed = made.seen()
    assert died.name == computed.name == "prefill m"
    assert died.kind == computed.kind == "client"
    assert died.parent_id == computed.parent_id == f"{trace.attempt_id(1):016x}"
    ids = {died.span_id, computed.span_id}
    assert len(ids | {f"{one:016x}" for one in (trace.span_id, trace.wait_id(), trace.attempt_id(1))}) == 5
    assert died.span_id.encode() in trace.prefill_lines(0)
    assert computed.span_id.encode() in trace.prefill_lines(1)
    assert (died.failed, computed.failed) == (True, False)
    assert died.fields == {
        "gen_ai.request.model": "m",
        "server.address": "10.0.0.1",
        "server.port": 8000,
        "homing.outcome": "died",
        "error.type": "died",
        "homing.replica": "a",
        "homing.attempt": 0,
        "homing.predicted.prompt_tokens": 990,
        "homing.predicted.cached_tokens": 410,
    }
    assert computed.fields["gen_ai.usage.input_tokens"] == 1000
    assert computed.fields["gen_ai.usage.cache_read.input_tokens"] == 400
    assert computed.fields["homing.pull.source"] == "c"
    took = computed.span.end_time_unix_nano - computed.span.start_time_unix_nano
    assert took == 2_000_000_000


def test_a_replica_that_has_left_has_no_address(turn, decided, ended) -> None:
    made = Made()
    turn = turn.replace(trace=made.tracing.begin(None, b""))
    made.tracing.on_ended(ended(decided("b", Kind.NEW)).replace(turn=turn))
    [attempt] = made.seen()
    assert "server.address" not in attempt.fields


@pytest.mark.parametrize("traced", [True, False])
def test_of_a_turn_that_is_not_recorded_there_is_no_span(traced, turn, decided, ended) -> None:
    made = Made(0.0)
    if traced:
        turn = turn.replace(trace=made.tracing.begin(None, b""))
        assert isinstance(turn.trace, Trace)
    made.tracing.on_waited(turn, 1.0, WaitEnd.LEFT)
    made.tracing.on_ended(ended(decided()).replace(turn=turn))
    made.tracing.on_prefilled(
        Prefilled(turn, decided(), ReplicaId("a"), 0, 9, 0, None, Outcome.COMPLETED, None, 1.0, 1.0)
    )
    made.tracing.over(turn, method=b"POST", status=200, refused=None, decision=None, outcome=None)
    assert made.spans == []


def test_tenants_are_hashed(turn) -> None:
    made = Made()
    trace = made.tracing.begin(None, b"")
    for tenant in ("acme", OPEN_TENANT):
        one = turn.replace(tenant=tenant, trace=trace)
        made.tracing.over(one, method=b"GET", status=200, refused=None, decision=None, outcome=None)
    named, open_ = made.seen()
    assert len(named.fields["homing.tenant"]) == 16
    assert "homing.tenant" not in open_.fields
    assert b"acme" not in b"".join(made.spans)


def test_the_environment_may_call_the_service_otherwise(monkeypatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    found = dict(resource_attributes())
    assert found["service.name"] == "homing"
    assert found["deployment.environment.name"] == "staging"
    assert found["service.version"]
    assert found["service.instance.id"] != dict(resource_attributes())["service.instance.id"]
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    named = resource_attributes()
    assert dict(named)["service.name"] == "edge"
    assert ExportTraceServiceRequest.FromString(Envelope(named, "s", "1").request([]))
