"""A command's process: its standard streams, its log, its event loop, the signals that stop it."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TextIO, TypeVar

T = TypeVar("T")


def open_standard_streams() -> None:
    """Put the null device where standard output or error is closed. Else the next file or connection that is
    opened takes its number, and gets whatever the process writes there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "the lowest number that is free is taken"
            setattr(sys, name, os.fdopen(opened, "r" if name == "stdin" else "w", closefd=False))


def say(line: str, stream: TextIO | None = None) -> None:
    """Print a line, to standard output unless told otherwise. That nobody can read it must not stop a router:
    the stream may be closed, or on a disk that is full."""
    with suppress(OSError, ValueError):
        print(line, file=stream if stream is not None else sys.stdout, flush=True)


def log_to_stderr(level: str, who: str = "") -> None:
    """Log what is of this level or above; `who` says so in every line."""
    logging.basicConfig(level=level.upper(), format=f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s")
    # A log that cannot be written, on a full disk say, must not be reported in the same place.
    logging.raiseExceptions = False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop where it is installed, else on asyncio."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # Windows, or a Python without a wheel of it
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def stop_event() -> asyncio.Event:
    """Set by SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
