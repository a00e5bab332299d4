import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from router.base.errors import HomingError
from router.controlplane.crew_folder import PREFIX, CrewFolder, leave


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def killed() -> Path:
    """The folder of a router all of whose processes were killed: the system closes their files."""
    made = CrewFolder.make()
    (made.path / "admin-0").write_text("x")
    os.close(made.lock)
    return made.path


def test_it_is_for_its_owner_alone_and_gone_when_all_is_over() -> None:
    made = CrewFolder.make()
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert not os.get_inheritable(made.lock)
    made.remove()
    made.remove()
    assert not made.path.exists()


def test_the_next_start_removes_what_is_nobodys_and_nothing_else(folder: Path) -> None:
    running = CrewFolder.make()
    outlived = CrewFolder.make()
    # A worker goes on where its parent has ended.
    worker = os.dup(outlived.lock)
    os.close(outlived.lock)
    dead = killed()
    other = folder / f"{PREFIX}of-somebody"
    other.mkdir()
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("")
    (folder / f"{PREFIX}link").symlink_to(elsewhere)
    (folder / f"{PREFIX}file").write_text("")
    made = CrewFolder.make()
    try:
        assert not dead.exists()
        assert all(path.exists() for path in (running.path, outlived.path, made.path, other))
        assert (elsewhere / "lock").exists()
    finally:
        os.close(worker)
        running.remove()
        made.remove()


def test_another_users_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = killed()
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)
    CrewFolder.make().remove()
    assert dead.exists()


def test_the_last_worker_of_a_parent_that_was_killed_removes_it() -> None:
    made = CrewFolder.make()
    first, second = os.dup(made.lock), os.dup(made.lock)
    leave(made.path, first)
    assert made.path.exists()
    os.close(made.lock)
    leave(made.path, second)
    assert not made.path.exists()


def test_a_worker_that_ends_before_its_parent_leaves_it() -> None:
    made = CrewFolder.make()
    leave(made.path, os.dup(made.lock))
    assert made.path.exists()
    made.remove()


def test_one_that_another_start_takes_for_left_behind_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, taken = fcntl.flock, []

    def late(number: int, operation: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink().parent
        taken.append(path)
        if len(taken) == 1:
            raise BlockingIOError
        if len(taken) == 2:
            # Swept and gone, just before it was locked.
            shutil.rmtree(path)
        lock(number, operation)

    monkeypatch.setattr("fcntl.flock", late)
    made = CrewFolder.make()
    assert [made.path] == taken[2:]
    assert (made.path / "lock").exists()
    made.remove()


def test_where_there_is_no_room_it_says_so(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "not there"))
    with pytest.raises(HomingError, match="TMPDIR"):
        CrewFolder.make()
