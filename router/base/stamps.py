"""What tells that a file was replaced. Reads no contents."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Stamp(NamedTuple):
    """What changes when a file is replaced, or what a link leads to."""

    modified_ns: int
    inode: int
    size: int


Stamps = tuple[Stamp | None, ...]
"""Of some files in their order; `None` where there is no such file."""


def stamps_of(paths: Iterable[Path]) -> Stamps:
    """Equal as long as none of the files has been replaced."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return Stamp(found.st_mtime_ns, found.st_ino, found.st_size)
