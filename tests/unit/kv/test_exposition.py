"""Exposition: what a scraper reads, and little patience with anything else."""

import asyncio

import pytest

from router.kv.exposition import Figure, Histogram, MetricsServer, exposition


def test_figures_are_prometheus_text():
    figures = [
        Figure.of("blocks", "Blocks held.", 3),
        Figure.by("refused_total", "Turned away.", "reason", [('se"cr\\et\n', 2.5)]),
    ]
    assert exposition(figures) == (
        "# HELP homing_kv_blocks Blocks held.\n"
        "# TYPE homing_kv_blocks gauge\n"
        "homing_kv_blocks 3\n"
        "# HELP homing_kv_refused_total Turned away.\n"
        "# TYPE homing_kv_refused_total counter\n"
        'homing_kv_refused_total{reason="se\\"cr\\\\et\\n"} 2.5\n'
    )


def test_a_histogram_counts_what_is_at_most_so_much():
    histogram = Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.count == 3
    assert histogram.lines("pull_seconds", "Pulls.") == [
        "# HELP homing_kv_pull_seconds Pulls.",
        "# TYPE homing_kv_pull_seconds histogram",
        'homing_kv_pull_seconds_bucket{le="0.1"} 1',
        'homing_kv_pull_seconds_bucket{le="1.0"} 2',
        'homing_kv_pull_seconds_bucket{le="+Inf"} 3',
        "homing_kv_pull_seconds_sum 7.5999999999999996",
        "homing_kv_pull_seconds_count 3",
    ]


@pytest.fixture
async def server():
    server = MetricsServer(lambda: exposition([Figure.of("blocks", "Blocks held.", 3)]))
    await server.start("127.0.0.1", 0)
    yield server
    await server.close()


async def answer(server, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    writer.write_eof()
    data = await reader.read()
    writer.close()
    return data


@pytest.mark.parametrize(
    ("request_", "status", "contains"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"200 OK", b"homing_kv_blocks 3\n"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200 OK", b"homing_kv_blocks 3\n"),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"200 OK", b"alive"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404 Not Found", b"Content-Length: 0"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b""),
        (b"nonsense\r\n\r\n", b"400 Bad Request", b""),
    ],
)
async def test_requests_are_answered(server, request_, status, contains):
    data = await answer(server, request_)
    assert data.startswith(b"HTTP/1.1 " + status)
    assert contains in data


async def test_head_has_no_body(server):
    data = await answer(server, b"HEAD /livez HTTP/1.1\r\n\r\n")
    assert data.endswith(b"\r\n\r\n")
    assert b"Content-Length: 6" in data


@pytest.mark.parametrize("request_", [b"GET /metrics HT", b"G" * 100_000])
async def test_what_is_no_request_gets_no_answer(server, request_):
    assert await answer(server, request_) == b""


async def test_one_that_says_nothing_is_let_go(server, monkeypatch):
    monkeypatch.setattr("router.kv.exposition._REQUEST_S", 0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b""
    writer.close()
