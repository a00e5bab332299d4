"""All that listens to one router, put together: what it counts and remembers, its logs, its traces.

Knows what the config says of them, and of the router its clock and where its replicas are.
"""

import ssl
from collections.abc import Iterable
from functools import partial
from random import Random

import router
from router.base.clock import Clock
from router.settings.config import Telemetry
from router.telemetry.access_log import AccessLog, access_log_metrics
from router.telemetry.counters import Counters
from router.telemetry.fanout import Fanout
from router.telemetry.health_log import HealthLog
from router.telemetry.history import History
from router.telemetry.log_file import LogFile
from router.telemetry.metrics import Section
from router.telemetry.moves import Moves
from router.telemetry.otlp import Envelope
from router.telemetry.recent import RecentDecisions
from router.telemetry.span_export import SpanExport, trace_metrics
from router.telemetry.span_fields import UrlOf
from router.telemetry.timelines import Timelines
from router.telemetry.tracing import Tracing, resource_attributes


class Recording:
    """Of one router. `start` once its event loop runs, `close` at its end."""

    def __init__(
        self,
        written: Telemetry,
        clock: Clock,
        *,
        secret: bytes,
        url_of: UrlOf,
        headers: Iterable[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        """`secret` keys the hashes of tenants' names. `headers` go along to the collector; `tls` = what an
        `https` one is spoken to with. The router is the `worker`th, from 0, of so many processes that serve
        the same clients."""
        self.counters = Counters()
        self.recent = RecentDecisions(clock, worker=worker, workers=workers)
        self.history = History(clock)
        self.timelines = Timelines(clock)
        self.moves = Moves(clock)
        self.observer = Fanout(
            (self.counters, self.recent, self.history, self.timelines, self.moves, HealthLog())
        )
        """What the engine is to tell; whoever else listens is added to it."""
        self.access_log: LogFile | None = None
        self.span_export: SpanExport | None = None
        """Where spans go; `None` where there is no collector."""
        self.tracing: Tracing | None = None
        self.sections: tuple[Section, ...] = ()
        """Metrics of logs and traces themselves."""
        if written.access_log is not None:
            self.access_log = LogFile(written.access_log)
            self.observer.add(AccessLog(self.access_log, secret=secret))
            self.sections += (partial(access_log_metrics, self.access_log),)
        if written.otlp is not None:
            self.span_export = SpanExport(
                written.otlp,
                Envelope(resource_attributes(), "homing", router.__version__),
                headers=headers,
                tls=tls,
            )
            self.tracing = Tracing(
                self.span_export,
                sample=written.trace_sample,
                follow=written.trace_parent == "follow",
                secret=secret,
                url_of=url_of,
                now=clock.now,
                # Not the router's own: that one is seeded where decisions are to be repeated, and two routers
                # must not give one id to two traces.
                rng=Random(),
            )
            self.observer.trace_by(self.tracing)
            self.sections += (partial(trace_metrics, self.span_export),)

    def use(self, headers: Iterable[tuple[str, str]]) -> None:
        """Send these headers along to the collector from now on."""
        if self.span_export is not None:
            self.span_export.use(headers)

    def start(self) -> None:
        """Begin to write and to send. Must be called in a running event loop."""
        if self.access_log is not None:
            self.access_log.start()
        if self.span_export is not None:
            self.span_export.start()

    async def close(self) -> None:
        """Write and send what there is, and end. May be called again, and without a start."""
        if self.access_log is not None:
            self.access_log.close()
        if self.span_export is not None:
            await self.span_export.close()
