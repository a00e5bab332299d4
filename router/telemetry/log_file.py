"""Lines for a file, written by a thread of its own: whoever has a line never waits for a disk.

Knows nothing of what the lines say. A file that was moved away is begun anew; one that was truncated is
gone on with. What cannot be written is counted, and the log says so once.
"""

import logging
import os
import stat
import sys
from collections import deque
from pathlib import Path
from threading import Event, Thread
from typing import Final

from router.base.system import system_words

_log = logging.getLogger(__name__)

STDOUT: Final = "-"

_FLUSH_EVERY_S: Final = 0.5

# What may wait for a disk that has stalled: seconds of a busy router's lines.
_MOST_WAITING: Final = 16 << 20

# A disk or a pipe that takes nothing must not hold up the end of the process.
_FAREWELL_S: Final = 2.0


class LogFile:
    """Appends lines. `start` before use, `close` after; lines that came before the start are kept."""

    def __init__(self, path: str, *, most_waiting: int = _MOST_WAITING) -> None:
        """`path` may be `-`, for standard output. Nothing is opened before the first flush."""
        self.path = path
        self._most_waiting = most_waiting
        self._lines: deque[bytes] = deque()
        # Each has one writer, so none needs a lock: the caller's thread, or the writing one.
        self._taken_in = 0
        self._turned_away = 0
        self._given_out = 0
        self._files = 0
        self._written = 0
        self._failed = 0
        self._file: int | None = None
        self._size = 0
        self._torn = False
        self._trouble = ""
        self._stop = Event()
        self._thread: Thread | None = None

    @property
    def begun(self) -> int:
        """Grows when what follows can no longer refer to what went before: a file was begun, lines were
        lost."""
        return self._files + self.lost

    @property
    def written(self) -> int:
        """Lines that the system took."""
        return self._written

    @property
    def lost(self) -> int:
        """Lines that were not written, nor will be."""
        return self._failed + self._turned_away

    def write(self, line: bytes) -> None:
        """One line, with its end. Never waits and never fails."""
        if self._taken_in - self._given_out > self._most_waiting:
            self._turned_away += 1
            return
        self._taken_in += len(line)
        self._lines.append(line)

    def start(self) -> None:
        """Begin to write. A file that cannot be opened is tried again with every flush."""
        try:
            self._open()
        except OSError as error:
            self._complain(error)
        self._thread = Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what there is, and end. May be called again, and without a start."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(_FAREWELL_S)

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_EVERY_S):
            self.flush()
        self.flush()
        if self._file is not None and self.path != STDOUT:
            os.close(self._file)

    def flush(self) -> None:
        """Write what there is. For the thread to call, and for tests that have none."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        data = b"".join(lines)
        try:
            self._put(data)
        except OSError as error:
            self._failed += len(lines)
            self._complain(error)
        else:
            self._written += len(lines)
            if self._trouble:
                self._trouble = ""
                _log.warning("the access log %s is written again; %d lines were lost", self.path, self.lost)
        self._given_out += len(data)

    def _complain(self, error: OSError) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if not self._trouble:
            self._trouble = system_words(error)
            _log.error("the access log %s cannot be written: %s; turns go on", self.path, self._trouble)

    def _put(self, data: bytes) -> None:
        file = self._open()
        if self._torn:
            # The last line may stand there in part: what follows is no part of it.
            data = b"\n" + data
        view = memoryview(data)
        while view:
            self._torn = True
            taken = os.write(file, view)
            self._size += taken
            view = view[taken:]
        self._torn = False

    def _open(self) -> int:
        """The file, begun anew if another or none has its name by now."""
        if self.path == STDOUT:
            return sys.stdout.fileno()
        if self._file is not None:
            opened = os.fstat(self._file)
            try:
                named = Path(self.path).stat()
            except FileNotFoundError:
                named = None
            if named is not None and (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino):
                if opened.st_size < self._size:
                    self._begin(opened.st_size)
                return self._file
            os.close(self._file)
            self._file = None
        # A pipe that nobody reads is an error with this flag, and without it an open that never returns.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.open(self.path, flags, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP)
        os.set_blocking(self._file, True)
        self._begin(os.fstat(self._file).st_size)
        return self._file

    def _begin(self, size: int) -> None:
        self._size = size
        # Whoever wrote there before may have been cut short. A blank line does no harm.
        self._torn = size > 0
        self._files += 1
