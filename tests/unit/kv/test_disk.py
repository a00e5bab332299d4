"""The disk tier: what is read is what was written, or nothing; and what a crash left is cleared away."""

import errno
import os

import pytest
from support.kv import NAMESPACE, chain, content

from router.kv import disk as disk_module
from router.kv import messages as m
from router.kv.checksum import checksum
from router.kv.disk import DiskFault, DiskTier
from router.kv.keys import ROOT


@pytest.fixture
def tier(tmp_path):
    return DiskTier(tmp_path / "blocks", 1 << 20)


def block(name="x", size=500, tenant="t"):
    (hash_,) = chain(name, 1)
    data = content(hash_, size)
    head = m.BlockHead(NAMESPACE.space, tenant, hash_, ROOT, checksum(data), "session", "s")
    return head, memoryview(data)


def files(tmp_path):
    return sorted(path for path in (tmp_path / "blocks").rglob("*") if path.is_file())


def test_a_block_comes_back(tier):
    head, data = block()
    tier.write(head, data)
    assert tier.read(m.key_of(head)) == (head, data)


def test_keys_do_not_share_a_file(tier, tmp_path):
    one, other = block(), block(tenant="u")
    tier.write(*one)
    tier.write(*other)
    assert len(files(tmp_path)) == 2
    tier.remove(m.key_of(one[0]))
    tier.remove(m.key_of(one[0]))
    assert tier.read(m.key_of(other[0]))[0] == other[0]
    with pytest.raises(DiskFault):
        tier.read(m.key_of(one[0]))


@pytest.mark.parametrize("at", [0, 4, 30, 60, -1])
def test_a_changed_byte_is_found_out_and_the_file_set_aside(tier, tmp_path, at):
    head, data = block()
    tier.write(head, data)
    (path,) = files(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DiskFault):
        tier.read(m.key_of(head))
    assert files(tmp_path) == [tmp_path / "blocks/damaged" / path.name]


@pytest.mark.parametrize("length", [0, 10, 40, 300])
def test_a_file_that_a_crash_cut_short_is_no_block(tier, tmp_path, length):
    head, data = block()
    tier.write(head, data)
    (path,) = files(tmp_path)
    os.truncate(path, length)
    assert list(tier.scan()) == []
    assert files(tmp_path) == []


def test_a_file_under_another_name_is_no_block(tier, tmp_path):
    one, other = block("x"), block("y")
    tier.write(*one)
    (path,) = files(tmp_path)
    tier.write(*other)
    (second,) = [found for found in files(tmp_path) if found != path]
    second.write_bytes(path.read_bytes())
    with pytest.raises(DiskFault, match="another key"):
        tier.read(m.key_of(other[0]))
    second.write_bytes(path.read_bytes())
    assert [found.head for found in tier.scan()] == [one[0]]


def test_what_was_left_is_found(tier, tmp_path):
    head, data = block()
    tier.write(head, data)
    (path,) = files(tmp_path)
    path.with_suffix(".new").write_bytes(b"half")
    (path.parent / "stray.txt").write_bytes(b"?")
    found = list(DiskTier(tmp_path / "blocks", 1 << 20).scan())
    assert [(one.head, one.size) for one in found] == [(head, 500)]
    assert files(tmp_path) == [path]


def test_a_block_beyond_the_limit_is_not_taken_up(tier, tmp_path):
    tier.write(*block(size=5000))
    assert list(DiskTier(tmp_path / "blocks", 4999).scan()) == []


def test_a_full_disk_leaves_nothing_half_written(tier, tmp_path, monkeypatch):
    real, calls = os.write, []

    def write(descriptor, data):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:20])

    monkeypatch.setattr(disk_module.os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        tier.write(*block())
    assert files(tmp_path) == []


def test_few_damaged_files_are_kept(tier, tmp_path):
    for number in range(20):
        head, data = block(f"x{number}")
        tier.write(head, data)
        tier._path(m.key_of(head)).write_bytes(b"")
        with pytest.raises(DiskFault):
            tier.read(m.key_of(head))
    assert len(files(tmp_path)) == 16
