"""The folder that a router of several processes keeps while any of them runs, and that none leaves behind.

Its parent and its workers share one lock, which the system lets go with the last of them, however they end.
Whoever finds the lock free removes the folder: the last worker of a parent that was killed, or, where all
were killed, the next router that is started.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from router.base.errors import HomingError
from router.base.system import system_words

_log = logging.getLogger(__name__)

PREFIX: Final = "homing-crew-"
_LOCK: Final = "lock"


class CrewFolder:
    """One, made and locked. `remove` when all processes have ended."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """A file number, for workers to inherit."""

    @classmethod
    def make(cls) -> Self:
        """Make one that only this user can enter, and remove those that killed routers have left behind.

        Raises `HomingError`.
        """
        _sweep(Path(tempfile.gettempdir()))
        try:
            while True:
                path = Path(tempfile.mkdtemp(prefix=PREFIX))
                lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if (path / _LOCK).exists():
                        return cls(path, lock)
                # Another start has taken it for left behind: it was not locked yet.
                os.close(lock)
        except OSError as error:
            raise HomingError(
                f"cannot make a folder for the workers: {system_words(error)};"
                " set TMPDIR to where there is room"
            ) from error

    def remove(self) -> None:
        """May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def leave(path: Path, lock: int) -> None:
    """A worker ends. `lock`: as it was inherited."""
    os.close(lock)
    with _left_behind(path) as is_left:
        if is_left:
            shutil.rmtree(path, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"{PREFIX}*"):
        with _left_behind(path) as is_left:
            if is_left:
                shutil.rmtree(path, ignore_errors=True)
                _log.info("removed '%s', which a router that was killed had left behind", path)


@contextmanager
def _left_behind(path: Path) -> Iterator[bool]:
    """Whether it is ours and nobody's any more. While the block runs, nobody else finds that."""
    try:
        # Where everybody may write, a name proves nothing: never follow it elsewhere.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            yield False
            return
        try:
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            yield False
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
        finally:
            os.close(lock)
    finally:
        os.close(folder)
