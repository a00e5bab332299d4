"""Hands the listening sockets and a snapshot from the router that runs to the one that takes its place.

They meet at a Unix socket that only their user can open. The sockets stay open throughout, so that every
connection is accepted by one or the other; the old router goes on until the new one says that it has them,
and if it never does, nothing has happened.
"""

import array
import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.base.errors import HomingError
from router.base.system import system_words
from router.base.tasks import TaskOwner

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_TAKEN: Final = b"taken\n"
_MAX_LINE: Final = 64 * 1024
_MAX_SOCKETS: Final = 64
_MAX_SNAPSHOT: Final = 1 << 30

_PIECE: Final = 1 << 20

# For one piece to arrive, and for the new router to look at its replicas before it says that it is there.
_MESSAGE_S: Final = 30.0
_READY_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What is handed over."""

    sockets: Mapping[str, Sequence[int]]
    """Listening sockets by what they are for, as file numbers."""
    snapshot: bytes


class Taken:
    """What was handed over. `confirm` once it is in use, or `close` to leave everything as it was."""

    def __init__(
        self, connection: socket.socket, sockets: dict[str, list[socket.socket]], snapshot: bytes
    ) -> None:
        self._connection = connection
        self.sockets = sockets
        self.snapshot = snapshot

    def confirm(self) -> None:
        """The old router may go. Raises `OSError` where it has gone by itself."""
        with self._connection:
            # A few bytes fit into an empty socket: this never waits.
            self._connection.sendall(_TAKEN)

    def close(self) -> None:
        """Give everything back."""
        self._connection.close()
        for each in self.sockets.values():
            for one in each:
                one.close()


class HandoverServer:
    """Waits for a successor.

    `offer` is called with the addresses that it wants, by what they are for; `taken` once it has taken over.
    """

    def __init__(
        self,
        path: Path,
        offer: Callable[[Mapping[str, str]], Awaitable[Offer]],
        taken: Callable[[], None],
    ) -> None:
        self._path = path
        self._offer = offer
        self._taken = taken
        self._tasks = TaskOwner()
        self._listener: socket.socket | None = None
        self._inode = 0
        self._busy = False

    def start(self) -> None:
        """Listen, in the place of whoever listened there before. Raises `HomingError`."""
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                beside.unlink()
            before = os.umask(0o177)
            try:
                listener.bind(str(beside))
            finally:
                os.umask(before)
            listener.listen(1)
            listener.setblocking(False)
            beside.replace(self._path)
            self._inode = self._path.stat().st_ino
        except (OSError, ValueError) as error:
            listener.close()
            raise HomingError(
                f"cannot listen on '{self._path}': {system_words(error)}; set another restart.handover"
            ) from error
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    async def close(self) -> None:
        """Stop waiting. May be called again."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                # A successor's own socket may lie there by now.
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()
        await self._tasks.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._busy or not _is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._busy = True
        self._tasks.spawn(self._serve(connection), name="hand over")

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                wanted = await _read_request(connection)
                await _give(connection, await self._offer(wanted))
                said = await _some(connection, len(_TAKEN), _READY_S)
            except (OSError, ValueError) as error:
                _log.warning("handing over failed, this router goes on: %s", system_words(error))
                return
            finally:
                self._busy = False
        if said == _TAKEN:
            self._taken()
        else:
            _log.warning("the successor went without taking over, this router goes on")


async def take_over(path: Path, wanted: Mapping[str, str]) -> Taken | None:
    """What the router that runs gives away of `wanted`, addresses by what they are for; `None`: none runs.

    Raises `HomingError` where one runs and does not answer as it should.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise HomingError(f"cannot reach '{path}' to take over: {system_words(error)}") from error
    try:
        return await _take(connection, wanted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        connection.close()
        raise HomingError(f"the router at '{path}' does not hand over: {system_words(error)}") from error
    except BaseException:
        connection.close()
        raise


async def _take(connection: socket.socket, wanted: Mapping[str, str]) -> Taken:
    await _send(connection, json.dumps({"version": _VERSION, "wanted": wanted}).encode() + b"\n")
    await _readable(connection)
    first, numbers, _, _ = socket.recv_fds(connection, _MAX_LINE, _MAX_SOCKETS)
    given = [socket.socket(fileno=number) for number in numbers]
    try:
        line, rest = await _line(connection, first)
        head = json.loads(line)
        if head["version"] != _VERSION or len(head["sockets"]) != len(given):
            raise ValueError("it is of another version")
        size = head["snapshot"]
        if not 0 <= size <= _MAX_SNAPSHOT:
            raise ValueError("its snapshot has no proper size")
        snapshot = rest + await _exactly(connection, size - len(rest))
        sockets: dict[str, list[socket.socket]] = {}
        for name, one in zip(head["sockets"], given, strict=True):
            sockets.setdefault(name, []).append(one)
        return Taken(connection, sockets, snapshot)
    except BaseException:
        for one in given:
            one.close()
        raise


async def _read_request(connection: socket.socket) -> dict[str, str]:
    line, _ = await _line(connection, b"")
    asked = json.loads(line)
    if not isinstance(asked, dict) or asked.get("version") != _VERSION:
        raise ValueError("the successor is of another version")
    wanted: dict[str, str] = asked["wanted"]
    return wanted


async def _give(connection: socket.socket, offer: Offer) -> None:
    names = [name for name, numbers in offer.sockets.items() for _ in numbers]
    numbers = [number for each in offer.sockets.values() for number in each]
    head: dict[str, Any] = {"version": _VERSION, "sockets": names, "snapshot": len(offer.snapshot)}
    line = json.dumps(head).encode() + b"\n"
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))] if numbers else []
    # The first thing that is sent on this connection, so there is room for some of it.
    sent = connection.sendmsg([line], passed)
    await _send(connection, line[sent:] + offer.snapshot)


# --- the connection: it blocks nobody, and whoever waits for it may be cancelled ---------------------


async def _send(connection: socket.socket, message: bytes) -> None:
    loop = asyncio.get_running_loop()
    for start in range(0, len(message), _PIECE):
        async with asyncio.timeout(_MESSAGE_S):
            await loop.sock_sendall(connection, message[start : start + _PIECE])


async def _some(connection: socket.socket, most: int, patience_s: float = _MESSAGE_S) -> bytes:
    """The next bytes; none at the end."""
    async with asyncio.timeout(patience_s):
        return await asyncio.get_running_loop().sock_recv(connection, most)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        async with asyncio.timeout(_MESSAGE_S):
            await readable.wait()
    finally:
        loop.remove_reader(connection.fileno())


async def _line(connection: socket.socket, begun: bytes) -> tuple[bytes, bytes]:
    """A line, and what came after it."""
    while b"\n" not in begun:
        if len(begun) > _MAX_LINE:
            raise ValueError("it says too much")
        more = await _some(connection, _MAX_LINE)
        if not more:
            raise ConnectionResetError("it broke off")
        begun += more
    line, _, rest = begun.partition(b"\n")
    return line, rest


async def _exactly(connection: socket.socket, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        more = await _some(connection, min(_PIECE, size - len(body)))
        if not more:
            raise ConnectionResetError("it broke off")
        body += more
    return bytes(body)


def _is_ours(connection: socket.socket) -> bool:
    """Whether the other end is of the same user, or root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the file's own permissions say so
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", raw)
    return user in (0, os.geteuid())
