"""The way to a collector: what waits is bounded, so is what a collector does, and what is lost is counted."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.collector import collector
from support.plane import until

from router.telemetry import span_export
from router.telemetry.otlp import Attributes, Envelope, SpanKind, span
from router.telemetry.points import Builder
from router.telemetry.prometheus import render
from router.telemetry.span_export import SpanExport, trace_metrics

SOON_S = 20.0


def make(number: int, size: int = 0) -> bytes:
    return span(
        str(number) + "x" * size, SpanKind.SERVER, trace_id=b"1" * 16, span_id=number + 1, parent_id=0,
        remote_parent=False, flags=1, state="", start_ns=1, end_ns=2, attributes=Attributes(), failed=False,
    )  # fmt: skip


@asynccontextmanager
async def exporting(url: str, **wishes: Any) -> AsyncIterator[SpanExport]:
    given = {"every_s": 0.01, "timeout_s": 5.0, "first_pause_s": 0.01} | wishes
    export = SpanExport(url, Envelope([("service.name", "homing")], "homing", "1"), **given)
    export.start()
    try:
        yield export
    finally:
        await export.close()
        assert export.waiting == 0


def sum_of(export: SpanExport) -> int:
    return export.exported + export.rejected + export.dropped + export.lost


async def test_spans_arrive_in_order_and_are_counted() -> None:
    async with collector() as taking, exporting(taking.url) as export:
        for number in range(1200):
            export.add(make(number))
        seen = await taking.all(1200)
        assert [one.name for one in seen] == [str(number) for number in range(1200)]
        await until(lambda: export.exported == 1200, SOON_S)
        # Not all in one request.
        assert len(taking.bodies) >= 3
        assert taking.headers[0]["content-type"] == "application/x-protobuf"
        assert not export.failing
    assert sum_of(export) == 1200


async def test_a_request_is_bounded_in_bytes() -> None:
    async with collector() as taking, exporting(taking.url) as export:
        for number in range(8):
            export.add(make(number, 200_000))
        await taking.all(8)
        # More than goes at once never goes.
        export.add(make(8, 600_000))
        assert export.dropped == 1
    assert max(len(body) for body in taking.bodies) < 600_000


async def test_what_came_before_the_start_is_sent_and_what_waits_at_the_end() -> None:
    async with collector() as taking:
        export = SpanExport(taking.url, Envelope([], "homing", "1"), every_s=3600.0)
        export.add(make(0))
        export.start()
        export.add(make(1))
        await export.close()
        await export.close()
        assert [one.name for one in taking.spans] == ["0", "1"]
    assert export.exported == 2


async def test_without_a_start_what_came_is_lost_at_the_end() -> None:
    export = SpanExport("http://127.0.0.1:1/", Envelope([], "homing", "1"))
    export.add(make(0))
    await export.close()
    assert export.lost == 1


async def test_headers_go_along_and_may_be_replaced() -> None:
    async with collector() as taking, exporting(taking.url, headers=[("x-key", "one")]) as export:
        export.add(make(0))
        await taking.all(1)
        export.use([("x-key", "two")])
        export.add(make(1))
        await taking.all(2)
    assert [headers["x-key"] for headers in taking.headers] == ["one", "two"]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_collector_that_is_busy_gets_them_again(status, caplog) -> None:
    async with collector() as taking, exporting(taking.url) as export:
        taking.statuses = [status, status]
        export.add(make(0))
        await taking.all(1)
        await until(lambda: export.exported == 1, SOON_S)
        assert len(taking.bodies) == 3
        assert len(set(taking.bodies)) == 1
    texts = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(texts) == 2
    assert f"it answers {status}" in texts[0]
    assert "takes spans again; 0 were lost" in texts[1]


async def test_a_collector_says_when_to_come_again(monkeypatch) -> None:
    pauses = []

    async def no_wait(_stopping: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.005)

    monkeypatch.setattr(span_export, "_either", no_wait)
    async with collector() as taking, exporting(taking.url, every_s=0.125) as export:
        taking.statuses, taking.retry_after = [503, 503, 503], "7"
        export.add(make(0))
        await taking.all(1)
        taking.statuses, taking.retry_after = [503], "86400"
        export.add(make(1))
        await taking.all(2)
        taking.statuses, taking.retry_after = [503], "soon"
        export.add(make(2))
        await taking.all(3)
    assert [pause for pause in pauses if pause != 0.125] == [7.0, 14.0, 28.0, 30.0, 0.01]


async def test_after_all_attempts_they_are_lost_and_the_next_go_on() -> None:
    async with collector() as taking, exporting(taking.url) as export:
        taking.statuses = [503] * 4
        export.add(make(0))
        await until(lambda: export.lost == 1, SOON_S)
        assert export.failing
        export.add(make(1))
        await taking.all(1)
        await until(lambda: not export.failing, SOON_S)
    assert [one.name for one in taking.spans] == ["1"]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
async def test_a_collector_that_refuses_is_not_asked_again(status) -> None:
    async with collector() as taking, exporting(taking.url) as export:
        taking.statuses = [status]
        export.add(make(0))
        await until(lambda: export.lost == 1, SOON_S)
        assert len(taking.bodies) == 1


async def test_what_a_collector_rejects_is_counted() -> None:
    async with collector() as taking, exporting(taking.url) as export:
        taking.rejects = 2
        for number in range(3):
            export.add(make(number))
        await until(lambda: export.rejected == 2, SOON_S)
        # More than there were, it cannot have rejected.
        taking.rejects = 1 << 40
        export.add(make(3))
        await until(lambda: export.rejected == 3, SOON_S)
    assert export.exported == 1


async def test_a_redirect_is_not_followed() -> None:
    async with collector() as elsewhere, collector() as taking, exporting(taking.url) as export:
        taking.redirect = elsewhere.url
        export.add(make(0))
        await until(lambda: export.lost == 1, SOON_S)
    assert elsewhere.bodies == []


async def test_an_endless_answer_is_cut_off() -> None:
    async with collector() as taking, exporting(taking.url) as export:
        taking.endless = True
        export.add(make(0))
        await until(lambda: export.exported == 1, SOON_S)
        taking.endless = False
        export.add(make(1))
        await until(lambda: export.exported == 2, SOON_S)


async def test_a_silent_collector_has_its_time_and_its_attempts() -> None:
    async with collector() as taking, exporting(taking.url, timeout_s=0.05) as export:
        taking.silent = True
        export.add(make(0))
        await until(lambda: export.lost == 1, SOON_S)
        assert len(taking.bodies) <= 4
        taking.silent = False
        export._timeout_s = 5.0


async def test_nobody_there_is_no_fault_of_anybody_else(caplog) -> None:
    async with exporting("http://127.0.0.1:1/v1/traces") as export:
        for number in range(3):
            export.add(make(number))
        await until(lambda: export.lost == 3, SOON_S)
    assert len([one for one in caplog.records if "does not take spans" in one.message]) == 1


async def test_garbage_is_no_answer() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x00\xff no HTTP at all\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with exporting(f"http://127.0.0.1:{port}/") as export:
            export.add(make(0))
            await until(lambda: export.lost == 1, SOON_S)


async def test_what_waits_is_bounded_in_number_and_bytes(monkeypatch) -> None:
    export = SpanExport("http://127.0.0.1:1/", Envelope([], "homing", "1"), most_spans=10)
    for number in range(25):
        export.add(make(number))
    assert (export.waiting, export.dropped) == (10, 15)
    monkeypatch.setattr(span_export, "_MOST_BYTES", 1000)
    heavy = SpanExport("http://127.0.0.1:1/", Envelope([], "homing", "1"))
    for number in range(25):
        heavy.add(make(number, 200))
    assert 3 <= heavy.waiting <= 4
    assert heavy.dropped == 25 - heavy.waiting


async def test_the_end_waits_for_no_collector_for_long(monkeypatch) -> None:
    monkeypatch.setattr(span_export, "_FAREWELL_S", 0.05)
    async with collector() as taking:
        taking.silent = True
        export = SpanExport(taking.url, Envelope([], "homing", "1"), every_s=0.01)
        export.start()
        export.add(make(0))
        await until(lambda: bool(taking.bodies), SOON_S)
        export.add(make(1))
        # The collector's time is ten seconds, and there would be four attempts.
        await asyncio.wait_for(export.close(), 8.0)
    assert (export.lost, export.exported) == (2, 0)


async def test_its_metrics_say_what_became_of_spans() -> None:
    async with collector() as taking, exporting(taking.url) as export:
        export.add(make(0))
        await until(lambda: export.exported == 1, SOON_S)
        text = render(trace_metrics(export, Builder(1, 2)))
    assert 'homing_trace_spans_total{result="exported"} 1' in text
    assert 'homing_trace_spans_total{result="dropped"} 0' in text
    assert "homing_trace_spans_waiting 0" in text
    assert "homing_trace_export_failing 0" in text
