"""Blocks in files: one each, as a frame with its payload, so that a damaged one shows.

Blocking calls; the gateway makes them from threads. Files are written under another name first. Nothing is
synced: a file that a crash left incomplete is found out by its checksums and removed. Keeps no index.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from router.kv import messages as m
from router.kv.checksum import checksum
from router.kv.keys import BlockKey
from router.kv.wire import HEAD_BYTES, Limits, Type, WireFault, decode_head, encode, verify

_SUFFIX: Final = ".kv"
_NEW: Final = ".new"
_ASIDE: Final = "damaged"
_ASIDE_FILES: Final = 16
"""Damaged files that are kept to be looked at."""


class DiskFault(Exception):
    """A block that cannot be read as it was written. Its file has been set aside."""


class Found(NamedTuple):
    """A file that was there at start."""

    head: m.BlockHead
    size: int
    """Bytes of the block."""


class DiskTier:
    """A folder of blocks, this process's alone."""

    def __init__(self, folder: Path, max_block: int) -> None:
        """Raises `OSError` where the folder can be neither found nor made."""
        self._folder = folder
        self._limits = Limits(m.MAX_META, max_block)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / _ASIDE).mkdir(mode=0o700, exist_ok=True)

    def write(self, head: m.BlockHead, payload: memoryview) -> None:
        """Keep a block. Raises `OSError`, after removing what was written of it."""
        path = self._path(_key(head))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        growing = path.with_suffix(_NEW)
        frame = encode(Type.PUT, 0, m.pack(head), payload_bytes=payload.nbytes, checksum=checksum)
        try:
            descriptor = os.open(growing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(descriptor, [memoryview(frame), payload])
            finally:
                os.close(descriptor)
            growing.rename(path)
        except OSError:
            with suppress(OSError):
                growing.unlink(missing_ok=True)
            raise

    def read(self, key: BlockKey) -> tuple[m.BlockHead, memoryview]:
        """The block. Raises `DiskFault`."""
        path = self._path(key)
        try:
            whole = memoryview(path.read_bytes())
            head, start = self._head(whole[: HEAD_BYTES + self._limits.meta], whole.nbytes)
            payload = whole[start:]
            if _key(head) != key:
                raise WireFault("the block of another key")
            if checksum(payload) != head.payload_checksum:
                raise WireFault("other bytes than were written")
        except (OSError, WireFault) as error:
            self._set_aside(path)
            raise DiskFault(str(error)) from None
        return head, payload

    def remove(self, key: BlockKey) -> None:
        """Let go of a block."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def remove_all(self, keys: Iterable[BlockKey]) -> None:
        """Let go of blocks."""
        for key in keys:
            self.remove(key)

    def scan(self) -> Iterator[Found]:
        """What an earlier life left. Files that are not whole are removed; contents are checked when read."""
        for path in sorted(self._folder.glob("??/*")):
            found = None
            if path.suffix == _SUFFIX:
                with suppress(OSError, WireFault), path.open("rb") as file:
                    size = path.stat().st_size
                    head, start = self._head(memoryview(file.read(HEAD_BYTES + (64 << 10))), size)
                    if path == self._path(_key(head)):
                        found = Found(head, size - start)
            if found is None:
                with suppress(OSError):
                    path.unlink()
            else:
                yield found

    def _head(self, beginning: memoryview, size: int) -> tuple[m.BlockHead, int]:
        """What a file says of itself, and where its payload starts. Raises `WireFault`."""
        if beginning.nbytes < HEAD_BYTES:
            raise WireFault("too short")
        raw = bytes(beginning[:HEAD_BYTES])
        head = decode_head(raw, self._limits, summed=True)
        start = HEAD_BYTES + head.meta_bytes
        if head.type is not Type.PUT or size != start + head.payload_bytes or beginning.nbytes < start:
            raise WireFault("not a whole block")
        meta = bytes(beginning[HEAD_BYTES:start])
        verify(head, raw, meta, checksum)
        return m.unpack(m.BlockHead, meta), start

    def _path(self, key: BlockKey) -> Path:
        parts = (key.space, key.tenant.encode(), key.hash)
        text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        name = hashlib.blake2b(text, digest_size=20).hexdigest()
        return self._folder / name[:2] / f"{name}{_SUFFIX}"

    def _set_aside(self, path: Path) -> None:
        aside = self._folder / _ASIDE
        with suppress(OSError):
            if sum(1 for _ in aside.iterdir()) < _ASIDE_FILES:
                path.rename(aside / path.name)
            else:
                path.unlink(missing_ok=True)


def _key(head: m.BlockHead) -> BlockKey:
    return m.key_of(head)


def _write_all(descriptor: int, pieces: list[memoryview]) -> None:
    for piece in pieces:
        while piece.nbytes:
            piece = piece[os.write(descriptor, piece) :]
