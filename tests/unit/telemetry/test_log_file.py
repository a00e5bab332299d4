"""A file of lines: written behind the writer's back, through rotations and full disks."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from router.telemetry.log_file import STDOUT, LogFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def put(log: LogFile, *lines: str) -> None:
    for line in lines:
        log.write(line.encode() + b"\n")
    log.flush()


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line]


def test_lines_are_appended_to_what_is_there(path: Path) -> None:
    path.write_text("old, cut sho")
    log = LogFile(str(path))
    put(log, "one", "two")
    put(log, "three")
    assert path.read_text() == "old, cut sho\none\ntwo\nthree\n"
    assert (log.written, log.lost, log.begun) == (3, 0, 1)


def test_a_new_file_has_no_blank_line_and_is_the_owners(path: Path) -> None:
    put(LogFile(str(path)), "one")
    assert path.read_text() == "one\n"
    assert path.stat().st_mode & 0o137 == 0


def test_a_file_that_was_moved_away_is_begun_anew(path: Path) -> None:
    log = LogFile(str(path))
    put(log, "one")
    path.rename(path.with_suffix(".1"))
    put(log, "two")
    path.unlink()
    put(log, "three")
    assert lines(path.with_suffix(".1")) == ["one"]
    assert lines(path) == ["three"]
    assert log.begun == 3


def test_a_file_that_was_copied_and_truncated_is_gone_on_with(path: Path) -> None:
    log = LogFile(str(path))
    put(log, "one", "two")
    shutil.copy(path, path.with_suffix(".1"))
    os.truncate(path, 0)
    put(log, "three")
    assert lines(path) == ["three"]
    assert b"\0" not in path.read_bytes()
    assert log.begun == 2


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogFile(str(path.parent / "missing" / "access.log"))
    log.start()
    log.close()
    put(log, "one", "two")
    put(log, "three")
    assert (log.written, log.lost, log.begun) == (0, 3, 3)
    assert caplog.text.count("cannot be written") == 1
    (path.parent / "missing").mkdir()
    put(log, "four")
    assert (log.written, log.lost, log.begun) == (1, 3, 4)
    assert "is written again; 3 lines were lost" in caplog.text
    assert lines(path.parent / "missing" / "access.log") == ["four"]


def test_a_full_disk_loses_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    log = LogFile("/dev/full")
    put(log, "one")
    assert (log.written, log.lost) == (0, 1)
    assert "No space left on device" in caplog.text


def test_a_line_that_was_cut_by_a_full_disk_does_not_run_into_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile(str(path))
    put(log, "one")
    real, calls = os.write, []

    def cut(file: int, data: memoryview) -> int:
        calls.append(1)
        if len(calls) == 1:
            return real(file, data[:2])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", cut)
    put(log, "two")
    monkeypatch.setattr(os, "write", real)
    put(log, "three")
    assert lines(path) == ["one", "tw", "three"]
    assert (log.written, log.lost) == (2, 1)


def test_what_waits_is_bounded(path: Path) -> None:
    log = LogFile(str(path), most_waiting=100)
    for _ in range(10):
        log.write(b"x" * 39 + b"\n")
    assert log.lost == 7
    log.flush()
    put(log, "y")
    assert (log.written, log.lost) == (4, 7)


def test_a_thread_writes_and_the_end_takes_all_along(path: Path) -> None:
    log = LogFile(str(path))
    log.start()
    for number in range(1000):
        log.write(b"%d\n" % number)
    log.close()
    log.close()
    assert lines(path) == [str(number) for number in range(1000)]


def test_standard_output_is_a_file_too(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = LogFile(STDOUT)
    log.start()
    log.write(b"one\n")
    log.close()
    assert capfdbinary.readouterr().out == b"one\n"


def test_a_pipe_that_nobody_reads_is_no_place_to_wait(path: Path) -> None:
    os.mkfifo(path)
    log = LogFile(str(path))
    put(log, "one")
    assert log.lost == 1
