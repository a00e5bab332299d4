"""The shelf: what the store gives up frees its slot, what is lent stays, what has changed is set aside."""

import pytest
from support.kv import NAMESPACE, chain, content

from router.kv.arena import ArenaOwner, arena_path
from router.kv.checksum import checksum
from router.kv.keys import ROOT, BlockKey
from router.kv.lending import lend_block
from router.kv.shelf import Shelf
from router.kv.store import Appended, StorePolicy, Zone

SIZE = 64


@pytest.fixture
def gone():
    return []


@pytest.fixture
def shelf(tmp_path, gone):
    owner = ArenaOwner(arena_path(tmp_path, "a"), slots=4, part_bytes=SIZE)
    shelf = Shelf(owner, StorePolicy(capacity_bytes=4 * SIZE, tenant_share=0.75), gone.extend)
    yield shelf
    shelf.close()


def put(shelf, hash_, *, after=ROOT, tenant="t", now=0.0):
    handle = shelf.slot(now, hard=True, tenant=tenant)
    data = content(hash_, SIZE)
    shelf.owner.arena.block(handle)[:] = data
    outcome = shelf.keep(
        BlockKey(NAMESPACE.space, tenant, hash_),
        after,
        handle,
        checksum(data),
        zone=Zone.SESSION,
        session="",
        now=now,
    )
    shelf.owner.release(handle)
    return outcome


def test_a_block_that_is_kept_keeps_its_slot(shelf):
    (hash_,) = chain("x", 1)
    assert put(shelf, hash_) is Appended.STORED
    (block,) = shelf.store
    assert bytes(shelf.bytes_of(block)) == content(hash_, SIZE)
    assert (shelf.owner.free, shelf.room) == (3, 4)


@pytest.mark.parametrize("again", [Appended.SAME, Appended.ORPHAN])
def test_a_block_that_is_not_kept_gives_its_slot_back(shelf, again):
    one, two, three = chain("x", 3)
    put(shelf, one)
    outcome = put(shelf, one) if again is Appended.SAME else put(shelf, three, after=two)
    assert outcome is again
    assert shelf.owner.free == 3


def test_a_full_shelf_gives_up_the_oldest(shelf, gone):
    hashes = [chain(name, 1)[0] for name in "abcde"]
    for now, hash_ in enumerate(hashes):
        assert put(shelf, hash_, tenant=f"t{now}", now=float(now)) is Appended.STORED
    assert [block.key.hash for block in gone] == hashes[:1]


def test_a_tenant_beyond_its_share_gives_up_its_own(shelf, gone):
    put(shelf, chain("other", 1)[0], tenant="other")
    for now, name in enumerate("abcd"):
        assert put(shelf, chain(name, 1)[0], now=float(now)) is Appended.STORED
    assert [block.key.hash for block in gone] == chain("a", 1)


def test_what_is_lent_stays_as_it_is(shelf):
    (hash_,) = chain("x", 1)
    put(shelf, hash_)
    (block,) = shelf.store
    lent = lend_block(shelf, block)
    shelf.drop(shelf.store.clear())
    for number in range(3):
        put(shelf, chain(f"y{number}", 1)[0])
    assert shelf.owner.free == 0
    assert bytes(lent.payload) == content(hash_, SIZE)
    lent.give_back()
    assert shelf.owner.free == 1


def test_a_slot_whose_bytes_have_changed_is_not_used_again(shelf, gone):
    (hash_,) = chain("x", 1)
    put(shelf, hash_)
    (block,) = shelf.store
    assert shelf.is_sound(block)
    shelf.bytes_of(block)[5] ^= 1
    assert not shelf.is_sound(block)
    assert (len(shelf.store), shelf.set_aside, shelf.owner.free) == (0, 1, 3)
    assert gone == [block]


def test_trimming_goes_down_to_the_water_mark(shelf):
    for now, name in enumerate("abcd"):
        put(shelf, chain(name, 1)[0], tenant=name, now=float(now))
    shelf.trim(1e6)
    assert len(shelf.store) == 2
