"""Starts workers, watches over them and ends them. Knows nothing of what they serve.

Workers are processes of the same command, each with its place. They accept from the same sockets, so what one
does not take another does. One that ends unasked is replaced by another, which is told what the others know.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from router.base.errors import HomingError
from router.base.tasks import TaskOwner
from router.controlplane import snapshot
from router.controlplane.crew_folder import CrewFolder
from router.controlplane.link import HEARSAY, Kind, Link
from router.controlplane.place import Place
from router.controlplane.snapshot import SnapshotError

_log = logging.getLogger(__name__)

# Between the end of a worker and the start of the next in its place: longer while none lasts.
_AGAIN_S: Final = 0.5
_AGAIN_MOST_S: Final = 30.0
_LASTED_S: Final = 60.0

_REMEMBER_S: Final = 30.0
# Beyond its grace, for its last words and its memory.
_FAREWELL_S: Final = 20.0

_POLICIES: Final = "policies.yaml"

RECALLED: Final = "recall"
"""The file, in a crew's folder, that the first workers recall from."""


class Stop(msgspec.Struct, frozen=True):
    """What a worker is told that is to end."""

    grace_s: float
    succeeded: bool
    """Another router listens in its place."""


class _Worker:
    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.admin = folder / f"admin-{number}"
        self.left = folder / f"left-{number}"
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.port = 0
        self.ready = asyncio.Event()
        self.begun = asyncio.Event()
        """It serves for the first time, or never will."""
        self.remembered: asyncio.Future[None] | None = None


class Crew:
    """So many workers. `start`, then `stop`.

    `command` starts one, but for its place, which is the last argument. `folder` is theirs alone: whoever can
    write there can do what the admin token allows. It stays as long as any of them runs.
    """

    def __init__(
        self,
        count: int,
        command: Sequence[str],
        folder: CrewFolder,
        policies: Callable[[], Awaitable[bytes | None]],
    ) -> None:
        """`policies`: those that workers go by, for one that joins them; `None` where none answers."""
        self._policies = policies
        self._command = tuple(command)
        self._lock = folder.lock
        self._folder = folder.path
        self._workers = [_Worker(number, folder.path) for number in range(count)]
        self._sockets: tuple[socket.socket, ...] = ()
        self.stopping = False
        """Whether all are to end."""
        self._tasks = TaskOwner()
        self.restarts = 0
        """Workers that took the place of one that had ended unasked."""

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def port(self) -> int:
        """The data port, once started."""
        return max(worker.port for worker in self._workers)

    def admins(self) -> dict[int, Path]:
        """Where each worker that serves is to be asked, by its number."""
        return {worker.number: worker.admin for worker in self._workers if worker.ready.is_set()}

    def listeners(self) -> list[int]:
        """The file numbers of the sockets that workers accept from."""
        return [each.fileno() for each in self._sockets]

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start all and wait until they serve. The sockets are the crew's from now on.

        Raises `HomingError` where one ends before it does; its own words are on standard error.
        """
        self._sockets = tuple(sockets)
        for worker in self._workers:
            await self._spawn(worker, self._folder / RECALLED)
            self._tasks.spawn(self._watch(worker), name=f"worker {worker.number}")
        for worker in self._workers:
            await worker.begun.wait()
            if not worker.ready.is_set():
                raise HomingError(f"worker {worker.number} ended before it served; see above")

    async def stop(self, grace_s: float, *, succeeded: bool = False) -> None:
        """End all, giving their turns so many seconds. Called once more it gives them no more time than it
        says then. May be called after a failed start."""
        self.stopping = True
        await self._tasks.close()
        for each in self._sockets:
            # Or clients would connect to what nobody accepts from.
            each.close()
        self._sockets = ()
        message = msgspec.json.encode(Stop(grace_s, succeeded))
        for worker in self._workers:
            if worker.link is not None:
                worker.link.send(Kind.STOP, message)
        await asyncio.gather(*(_gone(worker, grace_s + _FAREWELL_S) for worker in self._workers))

    def tell_all(self, signal_number: int) -> None:
        """Send a signal to each that serves: one that is about to might die of it."""
        for worker in self._workers:
            if worker.ready.is_set() and worker.process is not None:
                with suppress(ProcessLookupError):
                    worker.process.send_signal(signal_number)

    # --- the `Keeper` of what they know -------------------------------------------------------------

    async def remember(self) -> bytes:
        """What they know: of one of them, since they tell one another. Raises `SnapshotError`."""
        if self.stopping:
            return await asyncio.to_thread(self._left)
        for worker in self._workers:
            if await self._remembers(worker):
                raw = await asyncio.to_thread(snapshot.read, worker.left)
                if raw is not None:
                    return raw
        raise SnapshotError("is kept by workers, and none of them answers")

    async def recall(self, raw: bytes) -> None:
        """Let those that are to be started know. Raises `SnapshotError`."""
        await asyncio.to_thread(snapshot.write, self._folder / RECALLED, raw)

    def _left(self) -> bytes:
        """What the one that ended last has left behind, which has heard of all the others' turns."""
        left = [worker.left for worker in self._workers if worker.left.exists()]
        raw = snapshot.read(max(left, key=lambda path: path.stat().st_mtime_ns)) if left else None
        if raw is None:
            raise SnapshotError("was left behind by no worker")
        return raw

    async def _remembers(self, worker: _Worker) -> bool:
        """Whether it has written down what it knows."""
        if worker.link is None or not worker.ready.is_set():
            return False
        if worker.remembered is None:
            worker.remembered = asyncio.get_running_loop().create_future()
            worker.link.send(Kind.REMEMBER)
        try:
            async with asyncio.timeout(_REMEMBER_S):
                await asyncio.shield(worker.remembered)
        except (TimeoutError, ConnectionError):
            return False
        return True

    # --- one worker's life --------------------------------------------------------------------------

    async def _spawn(self, worker: _Worker, recall_from: Path) -> None:
        ours, theirs = socket.socketpair()
        admin = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, admin:
            worker.admin.unlink(missing_ok=True)
            admin.bind(str(worker.admin))
            admin.listen(64)
            inherited = [*self.listeners(), admin.fileno(), theirs.fileno(), self._lock]
            place = Place(
                worker.number,
                len(self._workers),
                tuple(self.listeners()),
                admin.fileno(),
                theirs.fileno(),
                self._lock,
                str(recall_from),
                str(worker.left),
                str(self._folder / _POLICIES),
            )
            worker.ready.clear()
            worker.process = await asyncio.create_subprocess_exec(
                *self._command,
                place.text(),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                # A signal from the keyboard is for the parent, who sees to the workers.
                start_new_session=True,
            )
        link = Link(partial(self._heard, worker), partial(self._lost, worker))
        worker.link = link
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)

    async def _watch(self, worker: _Worker) -> None:
        """Keep one in this place until all are to end."""
        loop = asyncio.get_running_loop()
        pause_s = _AGAIN_S
        while True:
            assert worker.process is not None
            began = loop.time()
            status = await worker.process.wait()
            if not worker.begun.is_set():
                worker.begun.set()
                return
            worker.ready.clear()
            if loop.time() - began > _LASTED_S:
                pause_s = _AGAIN_S
            _log.error("worker %d ended (status %d); another one takes its place", worker.number, status)
            self.restarts += 1
            await asyncio.sleep(pause_s)
            pause_s = min(_AGAIN_MOST_S, 2.0 * pause_s)
            policies = await self._policies()
            if policies is not None:
                await asyncio.to_thread((self._folder / _POLICIES).write_bytes, policies)
            await self._spawn(worker, await self._known(worker))

    async def _known(self, but: _Worker) -> Path:
        """A file with what the others know."""
        for worker in self._workers:
            if worker is not but and await self._remembers(worker):
                return worker.left
        return self._folder / RECALLED

    def _heard(self, worker: _Worker, kind: Kind, message: bytes) -> None:
        if kind in HEARSAY:
            for other in self._workers:
                if other is not worker and other.link is not None:
                    other.link.send(kind, message)
        elif kind is Kind.READY:
            if worker.begun.is_set():
                _log.info("worker %d serves", worker.number)
            worker.port = int(message)
            worker.ready.set()
            worker.begun.set()
        elif kind is Kind.REMEMBER and worker.remembered is not None:
            worker.remembered.set_result(None)
            worker.remembered = None

    def _lost(self, worker: _Worker) -> None:
        if worker.remembered is not None:
            worker.remembered.set_exception(ConnectionError("the worker has ended"))
            worker.remembered.exception()
            worker.remembered = None


async def _gone(worker: _Worker, within_s: float) -> None:
    """Wait until it has ended, and see to it."""
    process = worker.process
    if process is None:
        return
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        _log.error("worker %d does not end, and is killed", worker.number)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if worker.link is not None:
        worker.link.close()
