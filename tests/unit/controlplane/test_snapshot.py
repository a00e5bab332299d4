"""Memories as bytes and in files: what is read is what was written, or refused with the reason."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.controlplane.snapshot import SnapshotError, decode, encode, read, write
from router.core.memory import Memory, ReplicaMemory, ResponseMemory, SessionMemory, ShelfMemory

SHELF = ShelfMemory(b"\x01" * 16, b"\x02" * 16, b"\x02" * 8, b"\x00" * 8)
MEMORY = Memory(
    (
        ReplicaMemory("a", "http://a:1", 1000.5, 3, True, SHELF, None),
        ReplicaMemory("b", "http://b:1", None, 4, False, SHELF, SHELF),
    ),
    (SessionMemory("k", "m", "acme", "a", 3, 700, 2**64 - 1, 20, 4, 1, 90.5, 1.5, "x-session-id"),),
    (ResponseMemory("resp", "acme", "a", 3, None, "m", 5),),
    (("m", 0.25),),
)


def test_a_memory_is_read_as_it_was_written():
    found = decode(encode(MEMORY, b"secret", wall=lambda: 500.0), b"secret")
    assert found.memory == MEMORY
    assert found.passed_s(lambda: 530.0) == 30.0
    assert found.passed_s(lambda: 400.0) == 0.0, "a clock that was set back"


def test_what_another_secret_made_is_refused():
    with pytest.raises(SnapshotError, match="another secret"):
        decode(encode(MEMORY, b"secret"), b"other")


@given(st.integers(min_value=0), st.integers(0, 255))
def test_a_byte_that_is_another_or_missing_is_noticed(at, byte):
    raw = encode(MEMORY, b"s", wall=lambda: 1.0)
    at %= len(raw)
    for damaged in (raw[:at], raw[:at] + bytes([byte]) + raw[at + 1 :]):
        if damaged != raw:
            with pytest.raises(SnapshotError):
                decode(damaged, b"s")


def test_a_sealed_body_of_another_shape_is_refused():
    from router.controlplane import snapshot

    body = msgspec.msgpack.encode({"taken_at": 1.0, "memory": [[["a"]]]})
    with pytest.raises(SnapshotError, match="cannot be read"):
        decode(snapshot._MAGIC + snapshot._seal(b"s", body) + body, b"s")


def test_a_file_is_replaced_whole_and_for_its_owner_only(tmp_path):
    path = tmp_path / "snapshot"
    assert read(path) is None
    write(path, b"one")
    write(path, b"two")
    assert read(path) == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_or_read_says_why(tmp_path):
    with pytest.raises(SnapshotError, match=r"cannot be written to .*: No such file"):
        write(tmp_path / "no" / "snapshot", b"x")
    with pytest.raises(SnapshotError, match="cannot be read: Is a directory"):
        read(tmp_path)
    assert list(tmp_path.iterdir()) == []
