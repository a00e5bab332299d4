"""A proxy with faults, for what goes between KV agents; and one for tests that have no event loop."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from support.patience import Patience

DRIP: Final = (1, 0.02)


class Proxy:
    """Sits before a port and does to its bytes what a test asks for."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.hold_after: int | None = None
        """Bytes from the target until nothing passes any more, and nobody is told."""
        self.drip_after: int | None = None
        """Bytes from the target until they pass drop by drop: progress, but none to speak of."""
        self.drip = DRIP
        """So many bytes, and so many seconds until the next ones."""
        self.dripping = threading.Event()
        """Set once they do."""
        self.flip_after: int | None = None
        """Bytes from the target until one of them is flipped."""
        self.cut_after: int | None = None
        """Bytes from the target until both ends are closed."""
        self.passing = asyncio.Event()
        """Cleared: nothing passes any more, and nobody is told."""
        self.passing.set()
        self._writers = set()
        self._tasks = set()

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader, writer):
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        task = asyncio.current_task()
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, back, False), self._pump(there, writer, True))
        writer.close()
        back.close()
        self._tasks.discard(task)

    async def _pump(self, reader, writer, faulty):
        while data := await reader.read(65536):
            await self.passing.wait()
            if writer.transport.is_closing():
                return
            if faulty:
                if self.hold_after is not None:
                    if self.hold_after < len(data):
                        writer.write(data[: self.hold_after])
                        data = data[self.hold_after :]
                        self.hold_after = None
                        self.passing.clear()
                        await self.passing.wait()
                    else:
                        self.hold_after -= len(data)
                if self.drip_after is not None:
                    if self.drip_after < len(data):
                        writer.write(data[: self.drip_after])
                        data = data[self.drip_after :]
                        self.drip_after = 0
                        self.dripping.set()
                        while data and self.drip_after is not None:
                            count, seconds = self.drip
                            writer.write(data[:count])
                            data = data[count:]
                            await asyncio.sleep(seconds)
                            if writer.transport.is_closing():
                                return
                    else:
                        self.drip_after -= len(data)
                if self.flip_after is not None:
                    if self.flip_after < len(data):
                        data = bytearray(data)
                        data[self.flip_after] ^= 0x10
                        self.flip_after = None
                    else:
                        self.flip_after -= len(data)
                if self.cut_after is not None:
                    if self.cut_after < len(data):
                        self.cut()
                        return
                    self.cut_after -= len(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    def cut(self):
        """Close everything."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self):
        self.server.close()
        self.cut()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


class ProxyThread:
    """A proxy in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.faults = Proxy(port)
        """Its faults may be set from any thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self.faults.start())
        self.port: int = self.faults.port

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def await_hold(self, within_s: float = 60.0) -> None:
        """Until `hold_after` has come true: so many bytes are there, and no more will come."""
        patience = Patience(within_s)
        while self.faults.passing.is_set():
            if patience.is_over:
                raise AssertionError("less came than was to be held after")
            time.sleep(0.001)

    def when_held(self, act: Callable[[], None]) -> threading.Thread:
        """Do something at that moment, beside the caller, who joins the thread."""

        def watch() -> None:
            self.await_hold()
            act()

        thread = threading.Thread(target=watch)
        thread.start()
        return thread

    def go_on(self) -> None:
        """What drips pours."""
        self.faults.drip_after = None

    def mend(self) -> None:
        """All passes again. Connections that were held or drip are cut: what they carry is of no use."""

        async def release() -> None:
            broken = not self.faults.passing.is_set() or self.faults.drip_after is not None
            for fault in ("hold_after", "drip_after", "flip_after", "cut_after"):
                setattr(self.faults, fault, None)
            self.faults.passing.set()
            self.faults.dripping.clear()
            self.faults.drip = DRIP
            if broken:
                self.faults.cut()

        self._run(release())

    def close(self) -> None:
        self._run(self.faults.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
