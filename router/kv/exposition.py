"""Figures in Prometheus' text format, over the least HTTP that a scraper needs.

One request a connection, a bounded head, GET and HEAD only. Not for anybody but scrapers and probes: it
listens on loopback unless told otherwise.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from router.base.system import naming

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HEAD: Final = 8 << 10
_REQUEST_S: Final = 5.0
_CONNECTIONS: Final = 64


class Figure(NamedTuple):
    """A metric with one sample for each set of labels."""

    name: str
    """Without the `homing_kv_` that all have; counters end in `_total`."""
    help: str
    samples: tuple[tuple[tuple[tuple[str, str], ...], float], ...]

    @classmethod
    def of(cls, name: str, help_: str, value: float) -> "Figure":
        """One sample without labels."""
        return cls(name, help_, (((), value),))

    @classmethod
    def by(cls, name: str, help_: str, label: str, values: Iterable[tuple[str, float]]) -> "Figure":
        """A sample for each value of one label."""
        return cls(name, help_, tuple((((label, key),), value) for key, value in values))


class Histogram:
    """How often a value was at most so much: for what is worth knowing more of than its mean."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds`: ascending."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, help_: str) -> list[str]:
        """As Prometheus has it: each bucket counts those before it, too."""
        name = f"homing_kv_{name}"
        lines = [f"# HELP {name} {help_}", f"# TYPE {name} histogram"]
        reached = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            reached += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {reached}')
        return [*lines, f"{name}_sum {self._sum:.17g}", f"{name}_count {reached}"]


def exposition(figures: Iterable[Figure]) -> str:
    """The text that a scraper reads."""
    lines: list[str] = []
    for figure in figures:
        name = f"homing_kv_{figure.name}"
        kind = "counter" if figure.name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {figure.help}", f"# TYPE {name} {kind}"]
        for labels, value in figure.samples:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"{name}{{{inside}}} {value:.17g}" if inside else f"{name} {value:.17g}")
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Answers `/metrics` and `/livez`."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError`."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD)
        except OSError as error:
            raise naming(f"{host}:{port}", error) from error

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                async with asyncio.timeout(_REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        line = head.split(b"\r\n", 1)[0].split(b" ")
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", "", b"")
        method, target, _ = line
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", "", b"")
        path = target.partition(b"?")[0]
        if path == b"/livez":
            return _response("200 OK", "text/plain", b"alive\n", body=method == b"GET")
        if path == b"/metrics":
            text = self._text().encode()
            return _response(
                "200 OK", "text/plain; version=0.0.4; charset=utf-8", text, body=method == b"GET"
            )
        return _response("404 Not Found", "", b"")


def _response(status: str, kind: str, content: bytes, *, body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n"
    if kind:
        head += f"Content-Type: {kind}\r\n"
    return head.encode() + b"\r\n" + (content if body else b"")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
