"""Shared memory that holds KV blocks: slots, generations and references.

The agent owns it (`ArenaOwner`); an engine's workers map it (`Arena`) and copy blocks in and out. Only the
owner counts references, on behalf of everybody; the others see a slot's generation and thereby whether their
handle still means what it meant. Knows nothing of keys.

    offset  content
         0  magic, slots, bytes of a rank's part, parts of a block, bytes from slot to slot, identity
      4096  generations, 8 bytes a slot
       ...  slots, from a multiple of 4096 on
"""

import errno
import fcntl
import mmap
import os
import secrets
import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

_MAGIC: Final = b"HMARENA1"
_HEAD: Final = struct.Struct("<8sQQQQ16s")
_PAGE: Final = 4096
_HANDLE: Final = struct.Struct("<IQ")
_STEP: Final = 64 << 20
_POPULATE_WRITE: Final = 23  # Linux 5.14; Python has no name for it
_SUFFIX: Final = ".homing-arena"

LATE_WRITER_S: Final = 5.0
"""How long a slot stays unused after the process that may be writing to it was lost."""


class Handle(NamedTuple):
    """A slot, and which of its contents is meant."""

    slot: int
    generation: int


class StaleHandle(LookupError):
    """The slot has been given to another block since."""


class ArenaFault(OSError):
    """The arena cannot be made or mapped. The text says why and what to do."""

    def __str__(self) -> str:
        return str(self.strerror)


def pack_handles(handles: Iterable[Handle]) -> bytes:
    """Handles end to end, 12 bytes each."""
    return b"".join(_HANDLE.pack(*handle) for handle in handles)


def unpack_handles(packed: bytes) -> list[Handle]:
    """What `pack_handles` packed. Raises `ValueError` where a piece is left over."""
    if len(packed) % _HANDLE.size:
        raise ValueError(f"{len(packed)} bytes of handles are no multiple of {_HANDLE.size}")
    return [Handle(*found) for found in _HANDLE.iter_unpack(packed)]


class Arena:
    """A mapped arena: what a worker sees of it. Holds no file open."""

    __slots__ = (
        "_generations",
        "_map",
        "_met",
        "_start",
        "_stride",
        "_view",
        "identity",
        "part_bytes",
        "parts",
        "slots",
    )

    def __init__(self, descriptor: int) -> None:
        """Raises `ArenaFault`. The descriptor may be closed afterwards."""
        size = os.fstat(descriptor).st_size
        if size < _PAGE:
            raise ArenaFault(errno.EINVAL, "the file is no arena")
        self._map = mmap.mmap(descriptor, size)
        self._view = memoryview(self._map)
        head: tuple[bytes, int, int, int, int, bytes] = _HEAD.unpack_from(self._view)
        magic, self.slots, self.part_bytes, self.parts, self._stride, self.identity = head
        if magic != _MAGIC or size != _size(self.slots, self._stride):
            raise ArenaFault(errno.EINVAL, "the file is no arena of this version")
        self._start = _start(self.slots)
        self._generations = self._view[_PAGE : _PAGE + 8 * self.slots].cast("Q")
        self._met = bytearray(self.slots)
        """Slots whose pages this process has mapped."""

    @classmethod
    def attach(cls, path: str, identity: bytes) -> Self:
        """Map the arena at `path`. Raises `ArenaFault`, also where it is not the one that was meant."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaFault(error.errno or 0, f"cannot open the arena '{path}': {error.strerror}") from error
        try:
            found = cls(descriptor)
        finally:
            os.close(descriptor)
        if found.identity != identity:
            found.close()
            raise ArenaFault(errno.ESTALE, f"'{path}' is the arena of another agent")
        return found

    @property
    def buffer(self) -> memoryview:
        """The whole mapping, to register it with a device."""
        return self._view

    @property
    def block_bytes(self) -> int:
        """All parts of a block."""
        return self.part_bytes * self.parts

    def is_current(self, handle: Handle) -> bool:
        """Whether the slot still holds what the handle was given for."""
        slot, generation = handle
        return slot < self.slots and bool(self._generations[slot] == generation)

    def part(self, handle: Handle, rank: int) -> memoryview:
        """One rank's bytes of a block, writable. Raises `StaleHandle`."""
        if not 0 <= rank < self.parts:
            raise IndexError(f"rank {rank} of {self.parts}")
        place = self._at(handle)
        if not self._met[handle.slot]:
            # At once: page by page costs several times as much, in the middle of a copy.
            self._met[handle.slot] = 1
            with suppress(OSError, ValueError):
                self._map.madvise(_POPULATE_WRITE, place, self._stride)
        start = place + rank * self.part_bytes
        return self._view[start : start + self.part_bytes]

    def block(self, handle: Handle) -> memoryview:
        """All of a block's bytes, writable. Raises `StaleHandle`."""
        start = self._at(handle)
        return self._view[start : start + self.part_bytes * self.parts]

    def populate(self) -> None:
        """Map every page now: one that a transfer meets for the first time costs as much as its copy."""
        with suppress(OSError, ValueError):  # older systems cannot; then pages are mapped one by one
            self._map.madvise(_POPULATE_WRITE)

    def close(self) -> None:
        """Unmap it, as soon as nobody holds a piece of it."""
        with suppress(BufferError):
            self._generations.release()
            self._view.release()
            self._map.close()

    def _at(self, handle: Handle) -> int:
        if not self.is_current(handle):
            raise StaleHandle(f"slot {handle.slot} is not at generation {handle.generation}")
        return self._start + handle.slot * self._stride


class ArenaOwner:
    """The arena's only bookkeeper. A slot is free, or has a generation and at least one reference."""

    __slots__ = ("_closed", "_descriptor", "_free", "_late", "_references", "arena", "path")

    def __init__(self, path: Path, *, slots: int, part_bytes: int, parts: int = 1) -> None:
        """Make the file at `path` and take its memory. Raises `ArenaFault`.

        What a process that died left there is removed; a living one's is refused. Takes about a second for
        4 GiB: the memory is claimed here, since a full file system would kill whoever touched it later.
        """
        if slots < 1 or part_bytes < 1 or parts < 1:
            raise ArenaFault(errno.EINVAL, "an arena needs at least one slot and one byte")
        _remove_dead(path)
        stride = -(-part_bytes * parts // _PAGE) * _PAGE
        # It gets its name once it is locked and complete, so that nobody takes it for a dead one's.
        growing = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            self._descriptor = os.open(growing, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ArenaFault(error.errno or 0, f"cannot make '{path}': {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _claim(self._descriptor, _size(slots, stride), path)
            head = _HEAD.pack(_MAGIC, slots, part_bytes, parts, stride, secrets.token_bytes(16))
            os.pwrite(self._descriptor, head, 0)
            # Handles of an arena that was here before mean nothing in this one, whoever still has them.
            os.pwrite(self._descriptor, struct.pack("<Q", secrets.randbits(62)) * slots, _PAGE)
            self.arena = Arena(self._descriptor)
            self.arena.populate()
            growing.rename(path)
        except BaseException:
            growing.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise
        self.path = path
        self._free = list(range(slots - 1, -1, -1))
        self._references = [0] * slots
        self._late: deque[tuple[float, Handle]] = deque()
        self._closed = False

    @property
    def free(self) -> int:
        """Slots that can be had at once."""
        return len(self._free)

    def allocate(self) -> Handle | None:
        """A slot with one reference; `None` where none is free, or the arena is closed."""
        if self._closed or not self._free:
            return None
        slot = self._free.pop()
        self._references[slot] = 1
        return Handle(slot, self._renew(slot))

    def retain(self, handle: Handle) -> None:
        """One reference more. Raises `StaleHandle`."""
        self._check(handle)
        self._references[handle.slot] += 1

    def release(self, handle: Handle) -> None:
        """One reference fewer; the last one frees the slot. Raises `StaleHandle`."""
        self._check(handle)
        self._references[handle.slot] -= 1
        if not self._references[handle.slot]:
            self._renew(handle.slot)
            self._free.append(handle.slot)
            self._unmap_if_over()

    def release_late(self, handle: Handle, now: float) -> None:
        """Release it `LATE_WRITER_S` from now: somebody who was lost may still be writing to it."""
        self._check(handle)
        self._late.append((now + LATE_WRITER_S, handle))

    def sweep(self, now: float) -> None:
        """Release what `release_late` put off until `now`."""
        while self._late and self._late[0][0] <= now:
            self.release(self._late.popleft()[1])

    def references(self, handle: Handle) -> int:
        """How many hold it; 0 where the handle is stale."""
        return self._references[handle.slot] if self.arena.is_current(handle) else 0

    def close(self) -> None:
        """Give the memory back once the last process that mapped it lets go: this one does with the last
        reference to a slot, since what is lent may be given back later. Nothing is allocated any more."""
        with suppress(OSError):
            if os.fstat(self._descriptor).st_ino == self.path.stat().st_ino:
                self.path.unlink()
        os.close(self._descriptor)
        self._closed = True
        # Whoever writes late writes to a mapping of its own.
        self.sweep(float("inf"))
        self._unmap_if_over()

    def _unmap_if_over(self) -> None:
        if self._closed and len(self._free) == self.arena.slots:
            self.arena.close()

    def _renew(self, slot: int) -> int:
        generation = int(self.arena._generations[slot]) + 1
        self.arena._generations[slot] = generation
        return generation

    def _check(self, handle: Handle) -> None:
        if not self.arena.is_current(handle) or not self._references[handle.slot]:
            raise StaleHandle(f"slot {handle.slot} is not at generation {handle.generation}")


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove the arenas in `folder` whose owner is dead; return them."""
    removed: list[Path] = []
    for path in sorted(folder.glob(f"*{_SUFFIX}*")) + sorted(folder.glob(f".*{_SUFFIX}.*")):
        with suppress(OSError):
            _remove_dead(path)
            if not path.exists():
                removed.append(path)
    return removed


def arena_path(folder: Path, name: str) -> Path:
    """Where the agent of that name keeps its arena."""
    return folder / f"{name}{_SUFFIX}"


def _remove_dead(path: Path) -> None:
    """Unlink a file that nobody has locked. Raises `ArenaFault` where somebody has."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArenaFault(error.errno or 0, f"cannot open '{path}': {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        raise ArenaFault(errno.EBUSY, f"'{path}' belongs to an agent that runs; give each its name") from None
    finally:
        os.close(descriptor)


def _claim(descriptor: int, size: int, path: Path) -> None:
    try:
        for at in range(0, size, _STEP):
            os.posix_fallocate(descriptor, at, min(_STEP, size - at))
    except OSError as error:
        reason = f"no room for an arena of {size >> 20} MiB in '{path.parent}': {error.strerror}"
        raise ArenaFault(
            error.errno or 0, f"{reason}; make it smaller, or the shared memory larger"
        ) from error


def _start(slots: int) -> int:
    return _PAGE + -(-8 * slots // _PAGE) * _PAGE


def _size(slots: int, stride: int) -> int:
    return _start(slots) + slots * stride
