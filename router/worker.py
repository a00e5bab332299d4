"""A router that is one of several processes: it does as its parent says, and ends when that is gone."""

import asyncio
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from router.base.tasks import TaskOwner, first_of
from router.controlplane import crew_folder
from router.controlplane.crew import Stop
from router.controlplane.link import HEARSAY, Kind, Link
from router.controlplane.place import Place
from router.controlplane.snapshot import SnapshotError
from router.wiring import Router

_log = logging.getLogger(__name__)

_STOP: Final = msgspec.json.Decoder(Stop)


class Worker:
    """A router in its place."""

    def __init__(self, router: Router, place: Place) -> None:
        self._router = router
        self._place = place
        self._link = Link(self._told, self._orphaned)
        self._stop = asyncio.Event()
        self._order: Stop | None = None
        self._tasks = TaskOwner()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until the parent says so, is gone, or `stop` is set. Raises `HomingError` where it cannot
        start."""
        router = self._router
        self._stop = stop
        await asyncio.get_running_loop().create_unix_connection(
            lambda: self._link, sock=socket.socket(fileno=self._place.link)
        )
        assert router.hearsay is not None
        router.hearsay.set_listener(self._link.send)
        try:
            await self._take_policies()
            await first_of(router.start(), stop.wait())
            if not stop.is_set():
                self._link.send(Kind.READY, str(router.dataplane.port).encode())
                await stop.wait()
            stop.clear()
            order = self._order or Stop(router.config.restart.grace, succeeded=False)
            await first_of(router.close(order.grace_s, succeeded=order.succeeded), stop.wait())
        finally:
            await self._tasks.close()
            await router.close()
            self._link.close()
            crew_folder.leave(Path(self._place.policies).parent, self._place.lock)

    async def _take_policies(self) -> None:
        """Go by those that the others go by, which may have been put since the files were read."""
        with suppress(FileNotFoundError):
            text = await asyncio.to_thread(Path(self._place.policies).read_bytes)
            await self._router.reloader.put_policies(text, "as the other workers")

    def _told(self, kind: Kind, message: bytes) -> None:
        if kind in HEARSAY:
            assert self._router.hearsay is not None
            self._router.hearsay.hear(kind, message)
        elif kind is Kind.STOP:
            self._order = _STOP.decode(message)
            self._stop.set()
        elif kind is Kind.REMEMBER:
            self._tasks.spawn(self._write_down(), name="write down what is known")

    async def _write_down(self) -> None:
        try:
            await self._router.succession.write_down()
        except SnapshotError as error:
            _log.error("the snapshot %s", error)
        else:
            self._link.send(Kind.REMEMBER)

    def _orphaned(self) -> None:
        """The parent is gone: whoever takes its place knows nothing of this one."""
        self._stop.set()
