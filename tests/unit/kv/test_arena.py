"""The arena: a slot has one owner at a time, a stale handle is refused, and the dead leave nothing."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.pages import TREE

from router.kv import arena as arena_module
from router.kv.arena import (
    LATE_WRITER_S,
    Arena,
    ArenaFault,
    ArenaOwner,
    Handle,
    StaleHandle,
    arena_path,
    pack_handles,
    remove_leftovers,
    unpack_handles,
)


@pytest.fixture
def owner(tmp_path):
    owner = ArenaOwner(arena_path(tmp_path, "a"), slots=4, part_bytes=1000, parts=2)
    yield owner
    owner.close()


def test_what_one_mapping_writes_the_other_reads(owner):
    worker = Arena.attach(str(owner.path), owner.arena.identity)
    handle = owner.allocate()
    worker.part(handle, 0)[:] = b"a" * 1000
    worker.part(handle, 1)[:] = b"b" * 1000
    assert bytes(owner.arena.block(handle)) == b"a" * 1000 + b"b" * 1000
    assert (worker.slots, worker.part_bytes, worker.parts, worker.block_bytes) == (4, 1000, 2, 2000)
    worker.close()


def mapped(path):
    """Bytes of the file that this process has mapped, over all its mappings."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line[:1].isupper():
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
def test_a_slot_is_mapped_whole_before_it_is_copied_to(tmp_path):
    whole = 1 << 20
    owner = ArenaOwner(tmp_path / "large", slots=4, part_bytes=whole)
    other = Arena.attach(str(owner.path), owner.arena.identity)
    first, second = owner.allocate(), owner.allocate()
    before = mapped(owner.path)
    # The head was read, and the system maps some of what is around it as well.
    around = 1 << 16
    other.part(first, 0)
    assert before + whole - around <= mapped(owner.path) <= before + whole
    other.part(first, 0)
    other.part(second, 0)
    assert before + 2 * whole - around <= mapped(owner.path) <= before + 2 * whole
    other.close()
    owner.close()


def test_where_the_system_cannot_do_that_a_part_is_had_all_the_same(owner, monkeypatch):
    monkeypatch.setattr(arena_module, "_POPULATE_WRITE", 9999)
    other = Arena.attach(str(owner.path), owner.arena.identity)
    handle = owner.allocate()
    other.part(handle, 0)[:3] = b"abc"
    assert bytes(owner.arena.block(handle)[:3]) == b"abc"
    other.close()


def test_slots_do_not_overlap(owner):
    handles = [owner.allocate() for _ in range(4)]
    for number, handle in enumerate(handles):
        owner.arena.block(handle)[:] = bytes([number]) * 2000
    assert [set(owner.arena.block(handle)) for handle in handles] == [{0}, {1}, {2}, {3}]
    assert owner.allocate() is None


def test_a_released_handle_is_stale_at_once_and_for_good(owner):
    handle = owner.allocate()
    owner.release(handle)
    again = owner.allocate()
    assert again.slot == handle.slot
    for use in (owner.arena.block, owner.retain, owner.release, lambda stale: owner.arena.part(stale, 0)):
        with pytest.raises(StaleHandle):
            use(handle)
    assert owner.arena.is_current(again)
    assert not owner.arena.is_current(handle)
    assert not owner.arena.is_current(Handle(4, 1))
    assert (owner.references(handle), owner.references(again)) == (0, 1)


def test_the_last_reference_frees_the_slot(owner):
    handle = owner.allocate()
    owner.retain(handle)
    owner.release(handle)
    assert owner.arena.is_current(handle)
    owner.release(handle)
    assert owner.free == 4


def test_a_slot_that_somebody_lost_may_write_to_rests_first(owner):
    handles = [owner.allocate() for _ in range(4)]
    owner.release_late(handles[0], now=10.0)
    owner.sweep(10.0 + LATE_WRITER_S - 0.01)
    assert owner.allocate() is None
    owner.sweep(10.0 + LATE_WRITER_S)
    assert owner.allocate().slot == handles[0].slot


def test_a_rank_beyond_the_last_has_no_part(owner):
    with pytest.raises(IndexError, match="rank 2 of 2"):
        owner.arena.part(owner.allocate(), 2)


def test_the_file_goes_with_its_owner(tmp_path):
    owner = ArenaOwner(arena_path(tmp_path, "a"), slots=1, part_bytes=8)
    worker = Arena.attach(str(owner.path), owner.arena.identity)
    handle = owner.allocate()
    owner.arena.block(handle)[:] = b"contents"
    owner.close()
    assert not owner.path.exists()
    assert bytes(worker.block(handle)) == b"contents", "a mapping outlives its owner"
    worker.close()


def test_a_living_agents_arena_is_not_taken(owner):
    with pytest.raises(ArenaFault, match="belongs to an agent that runs"):
        ArenaOwner(owner.path, slots=1, part_bytes=8)
    assert remove_leftovers(owner.path.parent) == []
    assert owner.path.exists()


def test_leftovers_of_a_process_that_was_killed_are_removed(tmp_path):
    script = f"""
import os, signal, sys
from pathlib import Path
from router.kv.arena import ArenaOwner, arena_path
owner = ArenaOwner(arena_path(Path({str(tmp_path)!r}), "dead"), slots=2, part_bytes=8)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False, cwd=TREE)
    path = arena_path(tmp_path, "dead")
    assert path.exists()
    assert remove_leftovers(tmp_path) == [path]
    subprocess.run([sys.executable, "-c", script], check=False, cwd=TREE)
    assert path.exists()
    owner = ArenaOwner(path, slots=1, part_bytes=16)
    assert owner.arena.slots == 1
    owner.close()
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_so_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor, _at, _size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(arena_module.os, "posix_fallocate", full)
    with pytest.raises(
        ArenaFault, match=r"no room for an arena of 16 MiB in .*: No space left on device"
    ) as caught:
        ArenaOwner(arena_path(tmp_path, "a"), slots=16, part_bytes=1 << 20)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [{"slots": 0, "part_bytes": 1}, {"slots": 1, "part_bytes": 0}])
def test_an_arena_of_nothing_is_refused(tmp_path, size):
    with pytest.raises(ArenaFault, match="at least one slot"):
        ArenaOwner(tmp_path / "a", **size)


def test_only_the_arena_that_was_meant_is_mapped(owner, tmp_path):
    with pytest.raises(ArenaFault, match="another agent"):
        Arena.attach(str(owner.path), bytes(16))
    with pytest.raises(ArenaFault, match="No such file"):
        Arena.attach(str(tmp_path / "none"), bytes(16))
    (tmp_path / "text").write_bytes(b"x" * 9000)
    with pytest.raises(ArenaFault, match="no arena of this version"):
        Arena.attach(str(tmp_path / "text"), bytes(16))
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(ArenaFault, match="the file is no arena"):
        Arena.attach(str(tmp_path / "short"), bytes(16))


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ArenaFault, match=r"cannot make '.*/none/a': No such file"):
        ArenaOwner(tmp_path / "none/a", slots=1, part_bytes=8)


def test_closing_waits_for_those_who_hold_a_piece(owner):
    worker = Arena.attach(str(owner.path), owner.arena.identity)
    piece = worker.part(owner.allocate(), 0)
    worker.close()
    piece[0] = 1


def test_what_is_held_when_the_owner_closes_is_given_back_afterwards(tmp_path):
    owner = ArenaOwner(arena_path(tmp_path, "a"), slots=4, part_bytes=1000)
    lent, late = owner.allocate(), owner.allocate()
    owner.arena.block(lent)[:] = b"a" * 1000
    owner.release_late(late, now=10.0)
    owner.close()
    assert not owner.path.exists()
    assert owner.allocate() is None
    assert bytes(owner.arena.block(lent)) == b"a" * 1000
    owner.retain(lent)
    owner.release(lent)
    owner.release(lent)
    assert owner.free == 4
    with pytest.raises(ValueError, match="released memoryview"):
        bytes(owner.arena.buffer)


def test_a_handle_of_the_arena_before_means_nothing_in_the_next(tmp_path):
    first = ArenaOwner(arena_path(tmp_path, "a"), slots=1, part_bytes=8)
    before = first.allocate()
    first.close()
    second = ArenaOwner(arena_path(tmp_path, "a"), slots=1, part_bytes=8)
    assert second.allocate().slot == before.slot
    assert not second.arena.is_current(before)
    second.close()


def test_the_mapping_is_one_buffer(owner):
    assert owner.arena.buffer.nbytes == owner.path.stat().st_size


def test_handles_travel_packed():
    handles = [Handle(1, 2), Handle(2**32 - 1, 2**64 - 1)]
    assert unpack_handles(pack_handles(handles)) == handles
    with pytest.raises(ValueError, match="13 bytes of handles"):
        unpack_handles(bytes(13))


class Slots(RuleBasedStateMachine):
    """Any order of taking and letting go agrees with a dict of counts."""

    def __init__(self):
        super().__init__()
        folder = Path(mkdtemp())
        self.owner = ArenaOwner(arena_path(folder, "a"), slots=3, part_bytes=8)
        self.held: dict[Handle, int] = {}
        self.gone: list[Handle] = []

    @rule()
    def allocate(self):
        handle = self.owner.allocate()
        assert (handle is None) == (len(self.held) == 3)
        if handle is not None:
            assert handle not in self.held
            assert handle not in self.gone
            self.held[handle] = 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def retain(self, data):
        handle = data.draw(st.sampled_from(sorted(self.held)))
        self.owner.retain(handle)
        self.held[handle] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        handle = data.draw(st.sampled_from(sorted(self.held)))
        self.owner.release(handle)
        self.held[handle] -= 1
        if not self.held[handle]:
            del self.held[handle]
            self.gone.append(handle)

    @invariant()
    def counts_agree(self):
        assert self.owner.free == 3 - len(self.held)
        for handle, count in self.held.items():
            assert self.owner.references(handle) == count
        assert not any(self.owner.arena.is_current(handle) for handle in self.gone)

    def teardown(self):
        self.owner.close()
        self.owner.path.parent.rmdir()


TestSlots = Slots.TestCase
