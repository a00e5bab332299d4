"""From one run of a router to the next: what it takes over when it starts, and leaves behind when it ends.

A snapshot is believed of a replica only where that is the same process as then; all else starts cold.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from router.base.clock import Clock
from router.base.ids import ReplicaId
from router.controlplane import snapshot
from router.controlplane.handover import HandoverServer, Offer, Taken, take_over
from router.controlplane.snapshot import SnapshotError
from router.core.memory import Memory

_log = logging.getLogger(__name__)

DATA = "data"
ADMIN = "admin"


class Remembering(Protocol):
    """What is asked of the engine."""

    def memory(self, now: float) -> Memory: ...

    def recall(self, memory: Memory, now: float, passed_s: float) -> dict[ReplicaId, str]: ...


class Keeper(Protocol):
    """Who knows what is to be kept from one run to the next, as a snapshot's bytes."""

    async def remember(self) -> bytes:
        """Raises `SnapshotError`."""
        ...

    async def recall(self, raw: bytes) -> None:
        """Raises `SnapshotError` where it cannot be used."""
        ...


class EngineKeeper:
    """The `Keeper` of one engine."""

    def __init__(self, recollection: Remembering, clock: Clock, secret: bytes) -> None:
        self._recollection = recollection
        self._clock = clock
        self._secret = secret

    async def remember(self) -> bytes:
        return snapshot.encode(self._recollection.memory(self._clock.now()), self._secret)

    async def recall(self, raw: bytes) -> None:
        found = await asyncio.to_thread(snapshot.decode, raw, self._secret)
        verdicts = self._recollection.recall(found.memory, self._clock.now(), found.passed_s())
        for replica, why in verdicts.items():
            if why:
                _log.info("snapshot: %s %s: cold", replica, why)
        warm = sum(not why for why in verdicts.values())
        _log.info("snapshot: %d of %d replicas are as they were", warm, len(verdicts))


class Succession:
    """Call `begin`, `recall` when replicas have been looked at, `established` when the router listens; and
    `leave` when its last turn has ended."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        recall_from: Path | None,
        leave_at: Path | None,
        handover_path: Path | None,
        addresses: Mapping[str, str],
        listeners: Callable[[], Mapping[str, Sequence[int]]],
    ) -> None:
        """`recall_from`, `leave_at`: where the snapshot is read and written. `addresses`, `listeners`: what
        is listened on, and the sockets, by what they are for."""
        self._keeper = keeper
        self._recall_from = recall_from
        self._leave_at = leave_at
        self._addresses = dict(addresses)
        self._listeners = listeners
        self._handover_path = handover_path
        self._server: HandoverServer | None = None
        self._taken: Taken | None = None
        self._established = False
        self.handed_over = asyncio.Event()
        """A successor has taken over: nothing is to be listened on any more."""

    async def begin(self) -> None:
        """Ask the router that runs, where one does. Raises `HomingError` where it does not answer."""
        if self._handover_path is not None:
            self._taken = await take_over(self._handover_path, self._addresses)

    def takes_over(self, name: str) -> bool:
        """Whether a predecessor listens there, and goes on with it until `established`."""
        return self._taken is not None and bool(self._taken.sockets.get(name))

    def sockets(self, name: str) -> list[socket.socket]:
        """Those that were taken over, each once: they listen already."""
        return self._taken.sockets.pop(name, []) if self._taken is not None else []

    async def recall(self) -> None:
        """Let the keeper know what its predecessor knew, as far as it holds."""
        try:
            if self._taken is not None:
                raw: bytes | None = self._taken.snapshot
            elif self._recall_from is not None:
                raw = await asyncio.to_thread(snapshot.read, self._recall_from)
            else:
                return
            if raw is not None:
                await self._keeper.recall(raw)
        except SnapshotError as error:
            _log.warning("the snapshot %s; starting without", error)

    def established(self) -> None:
        """The router listens: a successor may come, and its predecessor may go, in this order, so that there
        is always somebody to take over from. Raises `HomingError` where no successor could come."""
        if self._handover_path is not None:
            self._server = HandoverServer(self._handover_path, self._offer, self.handed_over.set)
            self._server.start()
        self._established = True
        if self._taken is not None:
            taken, self._taken = self._taken, None
            try:
                taken.confirm()
            except OSError:
                _log.info("the router that was taken over has gone already")
            taken.close()

    async def close(self) -> None:
        """Wait for no successor any longer. May be called again, and after a failed start."""
        if self._server is not None:
            await self._server.close()
        if self._taken is not None:
            self._taken.close()
            self._taken = None

    async def leave(self) -> None:
        """Write the snapshot, where one is to be kept and no successor has it."""
        if self._leave_at is None or not self._established or self.handed_over.is_set():
            return
        self._established = False
        try:
            await self.write_down()
        except SnapshotError as error:
            _log.error("the snapshot %s", error)

    async def write_down(self) -> None:
        """Write the snapshot as things are. Raises `SnapshotError`."""
        if self._leave_at is not None:
            await asyncio.to_thread(snapshot.write, self._leave_at, await self._keeper.remember())

    async def _offer(self, wanted: Mapping[str, str]) -> Offer:
        sockets = {
            name: numbers
            for name, numbers in self._listeners().items()
            if wanted.get(name) == self._addresses[name]
        }
        try:
            raw = await self._keeper.remember()
        except SnapshotError as error:
            # The sockets matter more: sessions go to their owners on the ring.
            _log.warning("the snapshot %s; the successor gets none", error)
            raw = b""
        return Offer(sockets, raw)
