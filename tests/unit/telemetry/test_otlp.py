"""The wire format, held against the published schema."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.collector import plain

from router.telemetry.otlp import Attributes, Envelope, Key, SpanKind, rejected_spans, span

TRACE_ID = bytes(15) + b"\x01"
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
VALUES = st.one_of(
    TEXTS,
    st.just(True),
    NUMBERS,
    FLOATS,
    st.lists(TEXTS, max_size=5).map(tuple),
    st.lists(FLOATS, max_size=5),
)


def attributes(given: Iterable[tuple[str, Any]]) -> Attributes:
    """Each value by the method for its type."""
    made = Attributes()
    for name, value in given:
        key = Key(name)
        if isinstance(value, str):
            made.text(key, value)
        elif value is True:
            made.true(key)
        elif isinstance(value, int):
            made.number(key, value)
        elif isinstance(value, float):
            made.double(key, value)
        elif isinstance(value, tuple):
            made.texts(key, value)
        else:
            made.doubles(key, value)
    return made


def write(**more: object) -> bytes:
    fields: dict[str, object] = {
        "trace_id": TRACE_ID,
        "span_id": 7,
        "parent_id": 0,
        "remote_parent": False,
        "flags": 1,
        "state": "",
        "start_ns": 1,
        "end_ns": 2,
        "attributes": Attributes(),
        "failed": False,
    }
    return span("a name", SpanKind.SERVER, **{**fields, **more})  # type: ignore[arg-type]


def read(*spans: bytes) -> ExportTraceServiceRequest:
    envelope = Envelope([("service.name", "homing"), ("replicas", "3")], "scope", "1.2")
    return ExportTraceServiceRequest.FromString(envelope.request(spans))


def only(written: bytes) -> Span:
    [group] = read(written).resource_spans
    [scope] = group.scope_spans
    [one] = scope.spans
    return one


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(1, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)),
    TEXTS,
    st.lists(st.tuples(TEXTS, VALUES), max_size=8),
    st.sampled_from(SpanKind),
)
@example(TRACE_ID, 1, 1, (0, 0), "x" * 127, [("k" * 128, "v" * 127), ("", ())], SpanKind.CLIENT)
@example(TRACE_ID, 1, 1, (0, 0), "x" * 16_384, [("k", "v" * 16_383)], SpanKind.INTERNAL)
def test_what_is_written_is_what_the_schema_reads(
    trace_id, span_id, parent_id, times, text, given_attributes, kind
):
    one = only(
        span(
            text,
            kind,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            remote_parent=False,
            flags=1,
            state=text,
            start_ns=times[0],
            end_ns=times[1],
            attributes=attributes(given_attributes),
            failed=False,
        )
    )
    assert one.name == one.trace_state == text
    assert one.kind == kind
    assert one.trace_id == trace_id
    assert one.span_id == span_id.to_bytes(8, "big")
    assert one.parent_span_id == (parent_id.to_bytes(8, "big") if parent_id else b"")
    assert (one.start_time_unix_nano, one.end_time_unix_nano) == times
    assert [attribute.key for attribute in one.attributes] == [name for name, _ in given_attributes]
    for attribute, (_, value) in zip(one.attributes, given_attributes, strict=True):
        found = plain(attribute.value)
        assert found == (list(value) if isinstance(value, tuple) else value)
        assert isinstance(found, bool) is isinstance(value, bool)


def test_kinds_are_the_schemas():
    for kind in SpanKind:
        assert Span.SpanKind.Name(kind) == f"SPAN_KIND_{kind.name}"


def test_a_failure_is_a_status_and_else_there_is_none():
    assert only(write(failed=True)).status.code == Status.STATUS_CODE_ERROR
    assert not only(write()).HasField("status")


@pytest.mark.parametrize(
    ("parent_id", "remote", "flags"),
    [(0, False, 0x101), (0, True, 0x101), (5, False, 0x101), (5, True, 0x301)],
)
def test_flags_say_whether_the_parent_is_another_processs(parent_id, remote, flags):
    assert only(write(parent_id=parent_id, remote_parent=remote)).flags == flags


def test_a_lone_surrogate_is_replaced():
    assert only(write(state="a=\ud800")).trace_state == "a=?"


@pytest.mark.parametrize(
    ("given_number", "written"),
    [
        ((1 << 63) - 1, (1 << 63) - 1),
        (1 << 63, (1 << 63) - 1),
        ((1 << 64) + 5, (1 << 63) - 1),
        (10**30, (1 << 63) - 1),
        (-(10**30), -(1 << 63)),
    ],
)
def test_a_number_of_more_than_64_bits_is_the_nearest_that_has_so_many(given_number, written):
    one = only(write(attributes=attributes([("k", given_number)])))
    assert one.attributes[0].value.int_value == written


def test_a_subclass_of_text_or_number_is_what_it_is():
    class Text(str):
        __slots__ = ()

    class Real(float):
        __slots__ = ()

    one = only(write(attributes=attributes([("a", Text("x")), ("b", Real(1.5))])))
    assert [plain(attribute.value) for attribute in one.attributes] == ["x", 1.5]


def test_spans_are_wrapped_with_whose_they_are_and_what_made_them():
    [group] = read(write(), write(span_id=8)).resource_spans
    assert {one.key: plain(one.value) for one in group.resource.attributes} == {
        "service.name": "homing",
        "replicas": "3",
    }
    [scope] = group.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("scope", "1.2")
    assert [one.span_id[-1] for one in scope.spans] == [7, 8]


def test_requests_add_up():
    # By protobuf's rules two messages in a row are one.
    envelope = Envelope([], "scope", "1")
    both = ExportTraceServiceRequest.FromString(envelope.request([write()]) + envelope.request([write()]))
    assert len(both.resource_spans) == 2


@pytest.mark.parametrize("rejected", [0, 1, 300, (1 << 63) - 1])
def test_what_a_collector_rejected_is_read(rejected):
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message="why " * 50)
    answer = ExportTraceServiceResponse(partial_success=partial)
    assert rejected_spans(answer.SerializeToString()) == rejected


def test_fields_of_later_versions_are_passed_over():
    answer = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=3))
    later = b"\x51" + b"\xff" * 8 + b"\x5d" + b"\xff" * 4 + b"\x60\xff\x01"
    assert rejected_spans(later + answer.SerializeToString()) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b'{"partialSuccess": {"rejectedSpans": 5}}',
        b"<html>Welcome</html>",
        b"\x0a",
        b"\x0a\x05\x08",
        b"\x0a\x02\x08\x80",
        b"\x0a\x02\x08\x05\x0b",
        # A negative number, and one of eleven bytes.
        b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01",
        b"\x0a\x0c\x08" + b"\xff" * 10 + b"\x01",
        b"\x08\x05",
    ],
)
def test_an_answer_that_is_none_rejects_nothing(answer):
    assert rejected_spans(answer) == 0


@given(st.binary(max_size=64))
def test_whatever_a_stranger_answers_is_read_to_its_end(answer):
    assert rejected_spans(answer) >= 0
