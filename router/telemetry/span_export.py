"""Sends finished spans to an OpenTelemetry collector: OTLP over HTTP, protobuf.

Whoever adds a span never waits and never fails. What may wait here is bounded in number and in bytes, and so
is whatever a collector does: time, size of an answer, attempts. What it does not get is counted, and the log
says so once. Knows no span's meaning.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

import aiohttp
from opentelemetry.sdk.metrics.export import Metric

from router.base.tasks import TaskOwner
from router.telemetry.otlp import Envelope, rejected_spans
from router.telemetry.points import Builder

_log = logging.getLogger(__name__)

# Some ten seconds of 400 recorded turns a second; a span is a kilobyte or less.
_MOST_SPANS: Final = 8192
_MOST_BYTES: Final = 16 << 20

# Well below what collectors take at once by default, and what is written in one go without delay.
_BATCH: Final = 512
_BATCH_BYTES: Final = 512 << 10

_EVERY_S: Final = 1.0

# A request, from the connection to the end of the answer.
_TIMEOUT_S: Final = 10.0

_ATTEMPTS: Final = 4
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0

# With these a collector asks for the same spans again, later.
_AGAIN: Final = frozenset({429, 502, 503, 504})

# An answer is some bytes. Of a longer one, nothing more is read, and the connection is closed.
_MOST_ANSWER: Final = 64 << 10

# A collector that takes nothing must not hold up the end of the process.
_FAREWELL_S: Final = 2.0


class Tally(Protocol):
    """How many spans became what."""

    @property
    def exported(self) -> int: ...

    @property
    def rejected(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    @property
    def lost(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def failing(self) -> bool: ...


def trace_metrics(tally: Tally, build: Builder) -> list[Metric]:
    """What became of the spans."""
    return [
        build.counter(
            "homing_trace_spans",
            "Finished spans, by what became of them.",
            "{span}",
            [
                ({"result": "exported"}, tally.exported),
                ({"result": "rejected"}, tally.rejected),
                ({"result": "dropped"}, tally.dropped),
                ({"result": "lost"}, tally.lost),
            ],
        ),
        build.gauge(
            "homing_trace_spans_waiting",
            "Finished spans that the collector has not got yet.",
            "{span}",
            [({}, tally.waiting)],
        ),
        build.gauge(
            "homing_trace_export_failing",
            "1 while the collector does not take spans.",
            "1",
            [({}, int(tally.failing))],
        ),
    ]


class SpanExport:
    """A sink for spans. `start` before use, `close` after; spans that came before the start are kept."""

    def __init__(
        self,
        url: str,
        envelope: Envelope,
        *,
        headers: Iterable[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
        every_s: float = _EVERY_S,
        timeout_s: float = _TIMEOUT_S,
        first_pause_s: float = _FIRST_PAUSE_S,
        most_spans: int = _MOST_SPANS,
    ) -> None:
        """`headers` go along with every request. `tls` = what an `https` collector is spoken to with."""
        self.url = url
        self._envelope = envelope
        self._headers = tuple(headers)
        self._tls = tls
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._first_pause_s = first_pause_s
        self._most_spans = most_spans
        self._spans: deque[bytes] = deque()
        self._bytes = 0
        self._sending = 0
        self.exported = 0
        """Spans that the collector took."""
        self.rejected = 0
        """Those that it said it did not take."""
        self.dropped = 0
        """Those that found too many waiting."""
        self.lost = 0
        """Those that it did not answer for in all attempts, or that were left at the end."""
        self._trouble = ""
        self._tasks = TaskOwner()
        self._session: aiohttp.ClientSession | None = None
        self._stopping: asyncio.Event | None = None
        self._task: asyncio.Task[object] | None = None

    @property
    def waiting(self) -> int:
        """Spans that are yet to be sent, or are being sent."""
        return len(self._spans) + self._sending

    @property
    def failing(self) -> bool:
        """Whether the latest attempt failed."""
        return bool(self._trouble)

    def add(self, span: bytes) -> None:
        """One finished span. Never waits and never fails."""
        size = len(span)
        if len(self._spans) >= self._most_spans or self._bytes + size > _MOST_BYTES or size > _BATCH_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._spans.append(span)

    def use(self, headers: Iterable[tuple[str, str]]) -> None:
        """Send these headers along from now on."""
        self._headers = tuple(headers)

    def start(self) -> None:
        """Begin to send. Must be called in a running event loop."""
        self._stopping = asyncio.Event()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, ssl=self._tls if self._tls is not None else True),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            # What is inflated has no bound but the answer's author.
            auto_decompress=False,
        )
        self._task = self._tasks.spawn(self._run(self._stopping), name="span export")

    async def close(self) -> None:
        """Send what there is, within a short time, and end. May be called again, and without a start."""
        task, self._task = self._task, None
        if task is not None and self._stopping is not None:
            self._stopping.set()
            await asyncio.wait([task], timeout=_FAREWELL_S)
        await self._tasks.close()
        if self._session is not None:
            await self._session.close()
            self._session = None
        self.lost += self.waiting
        self._spans.clear()
        self._bytes = self._sending = 0

    async def _run(self, stopping: asyncio.Event) -> None:
        while True:
            await _either(stopping, self._every_s)
            # As many as there are now: those that come meanwhile go next time.
            due = len(self._spans)
            while due > 0:
                batch = self._take()
                due -= len(batch)
                await self._send(batch, stopping)
            if stopping.is_set():
                return

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._spans and len(batch) < _BATCH and size + len(self._spans[0]) <= _BATCH_BYTES:
            span = self._spans.popleft()
            size += len(span)
            batch.append(span)
        self._bytes -= size
        self._sending = len(batch)
        return batch

    async def _send(self, batch: list[bytes], stopping: asyncio.Event) -> None:
        """Until the collector has it, refuses it, or has had its attempts."""
        body = self._envelope.request(batch)
        pause_s = self._first_pause_s
        for attempt in range(_ATTEMPTS):
            if attempt:
                if stopping.is_set():
                    break
                await _either(stopping, pause_s)
                pause_s *= 2.0
            try:
                status, answer, asked_s = await self._post(body)
            except Exception as error:  # noqa: BLE001 - whatever a collector provokes, the next batch is sent
                self._complain(str(error) or type(error).__name__)
                continue
            if status == 200:
                rejected = min(rejected_spans(answer), len(batch))
                self.rejected += rejected
                self.exported += len(batch) - rejected
                self._sending = 0
                self._relax()
                return
            self._complain(f"it answers {status}")
            if status not in _AGAIN:
                break
            pause_s = min(max(pause_s, asked_s), _LONGEST_PAUSE_S)
        self.lost += len(batch)
        self._sending = 0

    async def _post(self, body: bytes) -> tuple[int, bytes, float]:
        """Status, the answer's beginning, and how many seconds it asks us to wait."""
        assert self._session is not None
        headers = {
            "content-type": "application/x-protobuf",
            "accept-encoding": "identity",
            "user-agent": "homing",
            **dict(self._headers),
        }
        async with self._session.post(
            self.url, data=body, headers=headers, allow_redirects=False
        ) as response:
            answer = b""
            async for piece in response.content.iter_any():
                answer += piece
                if len(answer) > _MOST_ANSWER:
                    response.close()
                    break
            asked = response.headers.get("retry-after", "")
            return response.status, answer, float(asked) if asked.isdecimal() and len(asked) < 9 else 0.0

    def _complain(self, why: str) -> None:
        if not self._trouble:
            _log.error("the collector %s does not take spans: %s; turns go on", self.url, why[:200])
        self._trouble = why

    def _relax(self) -> None:
        if self._trouble:
            self._trouble = ""
            _log.warning(
                "the collector %s takes spans again; %d were lost", self.url, self.lost + self.dropped
            )


async def _either(stopping: asyncio.Event, seconds: float) -> None:
    """Wait for the end of the time or of the process, whichever comes first."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return
