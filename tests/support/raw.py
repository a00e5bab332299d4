"""A replica and a client on raw sockets, so that a test can say and see every byte."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson


@dataclass
class Request:
    """One request as it arrived at the replica."""

    head: bytes
    body: bytes
    connection: int
    """Which connection it came on, counted from 0."""

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines if line)

    def json(self) -> object:
        return orjson.loads(self.body)


class Stream:
    """One connection of the replica, while it answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_json(self, content: object, status: str = "200 OK", *headers: str) -> None:
        body = orjson.dumps(content)
        lines = "".join(f"{header}\r\n" for header in headers)
        await self.send(
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{lines}"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def start_events(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    def abort(self) -> None:
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the router has closed its end."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            return


Answer = Callable[[Request, Stream], Awaitable[None]]


@dataclass
class RawReplica:
    """A server that answers every request with what the test says."""

    answer: Answer
    requests: list[Request] = field(default_factory=list)
    at_head: bool = False
    """Answer as soon as the head is there, and read no further."""
    connections: int = 0
    open: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=1 << 26, backlog=4096, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die: stop listening and reset every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                if self.at_head:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    length = 0
                body = await reader.readexactly(length)
                request = Request(head, body, number)
                self.requests.append(request)
                await self.answer(request, Stream(reader, writer))
                if writer.transport.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        except RuntimeError:
            if not writer.transport.is_closing() and reader.exception() is None and not reader.at_eof():
                raise  # else it is what uvloop says to a write on a connection that is gone
        finally:
            self.open -= 1
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()


@asynccontextmanager
async def raw_replica(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawReplica]:
    replica = RawReplica(answer, tls=tls)
    await replica.start()
    try:
        yield replica
    finally:
        await replica.close()


@dataclass
class RawResponse:
    """A response, with its body as framed on the wire and decoded."""

    head: bytes
    body: bytes
    wire: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines if line)

    def json(self) -> dict[str, object]:
        content: dict[str, object] = orjson.loads(self.body)
        return content


class RawClient:
    """A client that sends the bytes it is given and reads responses strictly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, *, head_only: bool = False) -> RawResponse:
        head = b"HTTP/1.1 100"
        while head.startswith(b"HTTP/1.1 100"):
            head = await self.reader.readuntil(b"\r\n\r\n")
        lowered = head.lower()
        if head_only or b" 204 " in head.split(b"\r\n")[0]:
            return RawResponse(head, b"", b"")
        if b"transfer-encoding: chunked" in lowered:
            body, wire = b"", b""
            while True:
                line = await self.reader.readuntil(b"\r\n")
                size = int(line, 16)
                data = await self.reader.readexactly(size + 2)
                assert data.endswith(b"\r\n")
                wire += line + data
                body += data[:-2]
                if size == 0:
                    return RawResponse(head, body, wire)
        for line in lowered.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                body = await self.reader.readexactly(int(line.split(b":")[1]))
                return RawResponse(head, body, body)
        body = await self.reader.read(-1)
        return RawResponse(head, body, body)

    async def exchange(self, data: bytes) -> RawResponse:
        await self.send(data)
        return await self.response()

    async def closed(self) -> bytes:
        """Everything until the router closes the connection."""
        return await self.reader.read(-1)

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):  # the router may still be sending
            return


@asynccontextmanager
async def raw_client(
    port: int, *, limit: int = 1 << 26, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawClient]:
    """A connection that reads ahead of the test by some `limit` bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit, ssl=tls)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        await client.close()


def post(
    content: object | bytes, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1"
) -> bytes:
    """A well-formed POST."""
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    lines = "".join(f"{header}\r\n" for header in headers)
    return (
        f"POST {path} HTTP/{version}\r\nHost: router\r\nContent-Type: application/json\r\n{lines}"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def chat(text: str = "hi", **more: object) -> dict[str, object]:
    """A chat request body."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}
