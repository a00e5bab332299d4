"""Reads a trace file: gzip or plain, in one of three formats, all told by the content and not by the name.

Of a trace, every faulty line is reported with its number, in one error. An access log was written by a router
that lived through full disks and rotations: what of it cannot be used is said, and the rest is replayed.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from router.base.errors import HomingError, SettingsError
from router.simulator.replay import access, mooncake, shared
from router.simulator.replay.trace import Trace

T = TypeVar("T")

_GZIP: Final = b"\x1f\x8b"

# A file of the wrong kind is at fault on every line, and a person reads the first few.
_FAULTS_SHOWN: Final = 20


class _Shape(msgspec.Struct):
    """What tells the formats apart. Empty where a field is absent."""

    requests: msgspec.Raw = msgspec.Raw()
    hash_ids: msgspec.Raw = msgspec.Raw()
    homing: msgspec.Raw = msgspec.Raw()


class _Faults:
    """Collects what is wrong with single lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: list[str] = []

    def read(self, decode: Callable[[bytes], T], number: int, line: bytes) -> T | None:
        """What `decode` makes of a line; `None`, and a fault noted, where it refuses it."""
        try:
            return decode(line)
        except (ValueError, msgspec.MsgspecError) as error:
            self._lines.append(f"{self._name}:{number}: {error}")
            return None

    def settle(self) -> None:
        """Raise `SettingsError` if there were any."""
        if self._lines:
            more = len(self._lines) - _FAULTS_SHOWN
            raise SettingsError(self._lines[:_FAULTS_SHOWN] + ([f"… and {more} more"] if more > 0 else []))


def read_trace(path: Path) -> Trace:
    """A trace of any of the formats.

    Raises `HomingError` where the file cannot be read or is no trace, `SettingsError` with a line for each
    line of it that is no good.
    """
    name = str(path)
    faults = _Faults(name)
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise HomingError(f"{name}: the file is empty")
    shape = faults.read(msgspec.json.Decoder(_Shape).decode, *first)
    faults.settle()
    if shape is None or not (shape.requests or shape.hash_ids or shape.homing):
        raise HomingError(
            f"{name}:{first[0]}: neither a session (`requests`), nor a request of Mooncake's (`hash_ids`),"
            " nor a line of an access log (`homing`)"
        )
    if shape.homing:
        return _read_access_log(path, _chain(first, lines))
    if shape.requests:
        sessions = shared.SessionReader()
        for number, line in _chain(first, lines):
            faults.read(sessions.take, number, line)
        faults.settle()
        return Trace(path.name, sessions.block_tokens, tuple(sessions.sessions), timed=False)
    requests = []
    for number, line in _chain(first, lines):
        request = faults.read(mooncake.decode, number, line)
        if request is not None:
            requests.append(request)
    faults.settle()
    return Trace(path.name, mooncake.BLOCK_TOKENS, mooncake.sessions(requests), timed=True)


def _read_access_log(path: Path, lines: Iterator[tuple[int, bytes]]) -> Trace:
    reader = access.AccessReader()
    for number, line in lines:
        try:
            reader.take(number, line)
        except ValueError as error:
            raise HomingError(f"{path}:{number}: {error}") from error
    sessions, notes = reader.sessions(), reader.notes()
    if not sessions:
        raise HomingError(f"{path}: no line of this access log can be replayed: {'; '.join(notes)}")
    return Trace(path.name, access.BLOCK_TOKENS, sessions, timed=True, notes=notes)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    try:
        with path.open("rb") as raw:
            opened = gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(_GZIP) else raw
            for number, line in enumerate(opened, 1):
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HomingError(f"{path}: damaged gzip file: {error}") from error
    except OSError as error:
        raise HomingError(f"{path}: {error.strerror}") from error


def _chain(first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield first
    yield from rest
