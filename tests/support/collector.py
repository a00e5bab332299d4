"""An OpenTelemetry collector over real HTTP: reads traces by the published schema, misbehaves on demand."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.plane import until

# A busy machine takes its time.
_PATIENCE_S = 20.0


@dataclass
class Seen:
    """One span that was received."""

    span: Span
    resource: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def fields(self) -> dict[str, Any]:
        """Its attributes."""
        return {one.key: plain(one.value) for one in self.span.attributes}

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def span_id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent_id(self) -> str:
        """ "" where it has none."""
        return self.span.parent_span_id.hex()

    @property
    def kind(self) -> str:
        return Span.SpanKind.Name(self.span.kind).removeprefix("SPAN_KIND_").lower()

    @property
    def failed(self) -> bool:
        return self.span.status.code == 2


@dataclass
class Collector:
    """What came, and how to answer."""

    url: str = ""
    spans: list[Seen] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """How to answer the next requests, first first; 200 when they are used up."""
    retry_after: str | None = None
    rejects: int = 0
    """How many spans of a request to reject in the answer."""
    answer: bytes | None = None
    """What to say instead of what the protocol says."""
    endless: bool = False
    """Answer without an end."""
    silent: bool = False
    """Take requests and never answer."""
    redirect: str | None = None

    async def named(self, name: str, count: int = 1) -> list[Seen]:
        """The spans of that name, once there are so many."""
        await until(lambda: len(self._named(name)) >= count, _PATIENCE_S)
        return self._named(name)

    async def all(self, count: int) -> list[Seen]:
        """All spans, once there are so many."""
        await until(lambda: len(self.spans) >= count, _PATIENCE_S)
        return list(self.spans)

    def _named(self, name: str) -> list[Seen]:
        return [one for one in self.spans if one.name == name]

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.silent:
            await asyncio.Event().wait()
        if self.redirect is not None:
            return web.Response(status=307, headers={"location": self.redirect})
        status = self.statuses.pop(0) if self.statuses else 200
        if status != 200:
            headers = {"retry-after": self.retry_after} if self.retry_after is not None else {}
            return web.Response(status=status, headers=headers)
        self.spans += decoded(body)
        if self.endless:
            return await _endless(request)
        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_spans = self.rejects
            answer.partial_success.error_message = "too many"
        said = self.answer if self.answer is not None else answer.SerializeToString()
        return web.Response(body=said, content_type="application/x-protobuf")


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(bytes(64 << 10))
    except ConnectionError:
        return response


def decoded(body: bytes) -> list[Seen]:
    """The spans of a request, by the published schema."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Seen(span, {one.key: plain(one.value) for one in group.resource.attributes})
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def plain(value: AnyValue) -> Any:
    """An attribute's value as Python has it."""
    which = value.WhichOneof("value")
    if which == "array_value":
        return [plain(each) for each in value.array_value.values]
    return getattr(value, which) if which is not None else None


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """One on a free port of loopback."""
    taking = Collector()
    application = web.Application(client_max_size=64 << 20)
    application.router.add_post("/v1/traces", taking.take)
    # A client that goes away ends what is silent or endless.
    runner = web.AppRunner(
        application, access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        taking.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
        yield taking
    finally:
        await runner.cleanup()
