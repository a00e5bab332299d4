"""What a command does with its process."""

import asyncio
import io
import os
import signal
import subprocess
import sys

import pytest

from router.process import run, say, stop_event


def in_a_process(script: str, **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], text=True, check=False, **streams)  # type: ignore[call-overload]


def test_a_closed_stream_is_the_null_device_and_its_number_nobody_elses() -> None:
    script = """
import os, sys
from router.process import open_standard_streams
open_standard_streams()
print("lost")
assert os.fstat(1).st_rdev == os.stat(os.devnull).st_rdev
assert os.open(os.devnull, os.O_RDONLY) > 2
"""
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_open_streams_stay_as_they_are() -> None:
    script = "from router.process import open_standard_streams as o; o(); print('kept')"
    assert in_a_process(script, capture_output=True).stdout == "kept\n"


def test_a_line_that_nobody_can_read_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    say("one")
    say("two", sys.stderr)
    closed = io.StringIO()
    closed.close()
    say("three", closed)
    assert tuple(capsys.readouterr()) == ("one\n", "two\n")


def test_the_log_says_who() -> None:
    script = """
import logging
from router.process import log_to_stderr
log_to_stderr("warning", "worker 3: ")
logging.getLogger("x").info("unheard")
logging.getLogger("x").warning("heard")
assert not logging.raiseExceptions
"""
    err = in_a_process(script, capture_output=True).stderr
    assert err.endswith("WARNING worker 3: x: heard\n")
    assert "unheard" not in err


def test_what_is_run_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert run(work()) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_event(number: signal.Signals) -> None:
    async def work() -> bool:
        stop = stop_event()
        os.kill(os.getpid(), number)
        return await stop.wait()

    assert run(work())
