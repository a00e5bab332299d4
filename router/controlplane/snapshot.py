"""An engine's memory as bytes, and in a file. Knows neither engines nor whether the memory still holds.

Bound to the secret that session keys are made with: under another one, no session would be known again.
"""

import hmac
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from router.base.system import system_words
from router.core.memory import Memory

_MAGIC: Final = b"homing snapshot 2\n"
_MAX_BYTES: Final = 1 << 30
_DIGEST: Final = 32


class SnapshotError(Exception):
    """Bytes that are no memory of ours; the message completes `the snapshot `."""


class Snapshot(msgspec.Struct):
    """A memory and when it was taken."""

    taken_at: float
    """Unix seconds."""
    memory: Memory

    def passed_s(self, wall: Callable[[], float] = time.time) -> float:
        """Seconds since it was taken, by clocks that may have been set meanwhile: never negative."""
        return max(0.0, wall() - self.taken_at)


def encode(memory: Memory, secret: bytes, *, wall: Callable[[], float] = time.time) -> bytes:
    """The memory as bytes."""
    body = msgspec.msgpack.encode(Snapshot(wall(), memory))
    return _MAGIC + _seal(secret, body) + body


def decode(raw: bytes, secret: bytes) -> Snapshot:
    """What `encode` made. Raises `SnapshotError`."""
    start = len(_MAGIC) + _DIGEST
    if raw[: len(_MAGIC)] != _MAGIC:
        raise SnapshotError("is of another version, or none")
    body = raw[start:]
    if not hmac.compare_digest(raw[len(_MAGIC) : start], _seal(secret, body)):
        raise SnapshotError("is damaged, or was taken with another secret")
    try:
        return msgspec.msgpack.decode(body, type=Snapshot)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SnapshotError(f"cannot be read: {error}") from error


def write(path: Path, raw: bytes) -> None:
    """Put a snapshot in the place of the one before, whole or not at all. Raises `SnapshotError`."""
    beside = path.with_name(f"{path.name}.new")
    try:
        # It names tenants and says what they share.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise SnapshotError(f"cannot be written to '{path}': {system_words(error)}") from error


def read(path: Path) -> bytes | None:
    """A snapshot's bytes; `None` where there is none. Raises `SnapshotError`."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SnapshotError(f"'{path}' is larger than {_MAX_BYTES >> 30} GiB")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"'{path}' cannot be read: {system_words(error)}") from error


def _seal(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(sha256(b"snapshot\0" + secret).digest(), body, "sha256")
