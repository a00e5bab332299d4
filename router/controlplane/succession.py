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


class Succession:
    """Call `begin`, `recall` when replicas have been looked at, `established` when the router listens; and
    `leave` when its last turn has ended."""

    def __init__(
        self,
        engine: Remembering,
        clock: Clock,
        secret: bytes,
        *,
        snapshot_path: Path | None,
        handover_path: Path | None,
        addresses: Mapping[str, str],
        listeners: Callable[[], Mapping[str, Sequence[int]]],
    ) -> None:
        """`addresses` and `listeners`: what is listened on, and the sockets, by what they are for."""
        self._engine = engine
        self._clock = clock
        self._secret = secret
        self._snapshot_path = snapshot_path
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

    def sockets(self, name: str) -> list[socket.socket]:
        """Those that were taken over, each once: they listen already."""
        return self._taken.sockets.pop(name, []) if self._taken is not None else []

    async def recall(self) -> None:
        """Let the engine know what its predecessor knew, as far as it holds."""
        try:
            if self._taken is not None:
                raw: bytes | None = self._taken.snapshot
            elif self._snapshot_path is not None:
                raw = await asyncio.to_thread(snapshot.read, self._snapshot_path)
            else:
                return
            if raw is None:
                return
            found = await asyncio.to_thread(snapshot.decode, raw, self._secret)
        except SnapshotError as error:
            _log.warning("the snapshot %s; starting without", error)
            return
        verdicts = self._engine.recall(found.memory, self._clock.now(), found.passed_s())
        for replica, why in verdicts.items():
            if why:
                _log.info("snapshot: %s %s: cold", replica, why)
        warm = sum(not why for why in verdicts.values())
        _log.info("snapshot: %d of %d replicas are as they were", warm, len(verdicts))

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
        if self._snapshot_path is None or not self._established or self.handed_over.is_set():
            return
        self._established = False
        try:
            raw = snapshot.encode(self._engine.memory(self._clock.now()), self._secret)
            await asyncio.to_thread(snapshot.write, self._snapshot_path, raw)
        except SnapshotError as error:
            _log.error("the snapshot %s", error)

    def _offer(self, wanted: Mapping[str, str]) -> Offer:
        sockets = {
            name: numbers
            for name, numbers in self._listeners().items()
            if wanted.get(name) == self._addresses[name]
        }
        raw = snapshot.encode(self._engine.memory(self._clock.now()), self._secret)
        return Offer(sockets, raw)
