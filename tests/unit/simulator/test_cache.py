"""The block cache against a pool of single blocks, and each rule of its own."""

from collections import OrderedDict
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from router.simulator.cache import BlockCache, Lease, Match


def chain(*steps: int) -> list[int]:
    """Block hashes over `steps`: equal only where all before is equal."""
    hashes: list[int] = []
    parent = 7
    for step in steps:
        parent = hash((parent, step))
        hashes.append(parent)
    return hashes


def filled(cache: BlockCache, hashes: list[int]) -> Lease:
    lease = cache.acquire(hashes, len(hashes))
    assert cache.grow(lease, len(hashes), len(hashes))
    return lease


def test_nothing_is_cached_at_first() -> None:
    assert BlockCache(8).match(chain(1, 2), 2) == Match(0, 0, 0)


def test_what_a_request_left_is_hit_up_to_where_prompts_part() -> None:
    cache = BlockCache(8)
    cache.release(filled(cache, chain(1, 2, 3, 4)))
    assert cache.match(chain(1, 2, 3, 4, 5), 5) == Match(4, 4, 0)
    assert cache.match(chain(1, 2, 9, 4), 4) == Match(2, 2, 0)
    assert cache.match(chain(9, 2, 3, 4), 4) == Match(0, 0, 0)


def test_the_limit_cuts_a_hit() -> None:
    cache = BlockCache(8)
    cache.release(filled(cache, chain(1, 2, 3)))
    assert cache.match(chain(1, 2, 3), 2).device == 2
    lease = cache.acquire(chain(1, 2, 3), 2)
    assert (lease.hashed, cache.used) == (2, 2)


def test_blocks_in_use_cannot_be_taken() -> None:
    cache = BlockCache(4)
    held = filled(cache, chain(1, 2, 3))
    other = cache.acquire(chain(8, 9), 2)
    assert not cache.grow(other, 2, 2)
    assert other.blocks == 0
    cache.release(held)
    assert cache.grow(other, 2, 2)


def test_the_tail_goes_before_the_head() -> None:
    cache = BlockCache(4)
    cache.release(filled(cache, chain(1, 2, 3, 4)))
    filled(cache, chain(9))
    assert cache.match(chain(1, 2, 3, 4), 4).device == 3


def test_the_least_recently_freed_goes_first() -> None:
    cache = BlockCache(4)
    cache.release(filled(cache, chain(1, 2)))
    cache.release(filled(cache, chain(3, 4)))
    cache.release(cache.acquire(chain(1, 2), 2))
    filled(cache, chain(9, 8))
    assert cache.match(chain(1, 2), 2).device == 2
    assert cache.match(chain(3, 4), 2).device == 0


def test_a_block_without_a_hash_is_never_hit_and_comes_back_free() -> None:
    cache = BlockCache(4)
    lease = cache.acquire(chain(1, 2), 2)
    assert cache.grow(lease, 2, 1)
    assert (lease.hashed, lease.plain) == (1, 1)
    cache.release(lease)
    assert cache.match(chain(1, 2), 2).device == 1
    assert cache.free == 4


def test_requests_that_compute_a_block_at_once_have_a_copy_each() -> None:
    cache = BlockCache(8)
    first, second = cache.acquire(chain(1, 2), 2), cache.acquire(chain(1, 2), 2)
    assert cache.grow(first, 2, 2)
    assert cache.grow(second, 2, 2)
    assert (cache.used, cache.cached) == (4, 2)
    cache.release(second)
    assert cache.match(chain(1, 2), 2) == Match(2, 0, 0)  # the older copy, which is held
    cache.release(first)
    assert cache.match(chain(1, 2), 2) == Match(2, 2, 0)
    assert cache.free == 8


def test_a_copy_serves_when_the_older_one_is_gone() -> None:
    cache = BlockCache(6)
    first, second = cache.acquire(chain(1, 2, 3), 3), cache.acquire(chain(1, 2, 3), 3)
    assert cache.grow(first, 3, 3)
    assert cache.grow(second, 3, 3)
    cache.release(first)
    other = filled(cache, chain(8, 9))  # takes the older copies of 3 and 2
    assert cache.match(chain(1, 2, 3), 3) == Match(3, 1, 0)
    third = cache.acquire(chain(1, 2, 3), 3)
    cache.release(second)
    assert cache.match(chain(1, 2, 3), 3) == Match(3, 0, 0)
    for lease in (other, third):
        cache.release(lease)
    assert (cache.used, cache.cached) == (0, 5)


def test_a_released_lease_releases_nothing_more() -> None:
    cache = BlockCache(4)
    lease = filled(cache, chain(1, 2))
    cache.release(lease)
    cache.release(lease)
    assert cache.free == 4


def test_what_the_device_evicts_lies_on_the_host_until_it_is_pushed_out_there() -> None:
    cache = BlockCache(3, host_blocks=2)
    cache.release(filled(cache, chain(1, 2, 3)))
    cache.release(filled(cache, chain(8, 9)))
    assert cache.match(chain(1, 2, 3), 3) == Match(1, 1, 2)
    cache.release(filled(cache, chain(5, 6, 7)))  # pushes 1, and 8 and 9, out to a host that holds two
    assert cache.match(chain(1, 2, 3), 3).device == 0
    assert cache.host_used == 2


def test_a_reload_moves_blocks_from_host_to_device() -> None:
    cache = BlockCache(3, host_blocks=4)
    cache.release(filled(cache, chain(1, 2, 3)))
    cache.release(filled(cache, chain(8, 9)))
    lease = cache.acquire(chain(1, 2, 3), 3)
    assert cache.reload(lease, 2)
    assert (lease.hashed, cache.used) == (3, 3)
    assert cache.host_used == 2  # 8 and 9 made room
    cache.release(lease)
    assert cache.match(chain(1, 2, 3), 3) == Match(3, 3, 0)


def test_a_reload_without_room_changes_nothing() -> None:
    cache = BlockCache(3, host_blocks=4)
    cache.release(filled(cache, chain(1, 2, 3)))
    filled(cache, chain(8, 9))
    lease = cache.acquire(chain(1, 2, 3), 3)
    assert not cache.reload(lease, 2)
    assert (lease.hashed, cache.host_used) == (1, 2)


class Blocks:
    """The same rules on single blocks, as vLLM's pool has them: slow and plain."""

    def __init__(self, total: int, host: int) -> None:
        self.free = list(range(total))
        """The next to be taken first."""
        self.holders = [0] * total
        self.name: list[int | None] = [None] * total
        self.copies: dict[int, list[int]] = {}
        self.host_total = host
        self.host: OrderedDict[int, None] = OrderedDict()

    def match(self, hashes: list[int]) -> tuple[list[int], int]:
        device = list(takewhile(lambda copies: copies, (self.copies.get(name) for name in hashes)))
        host = takewhile(lambda name: name in self.host, hashes[len(device) :])
        return [copies[0] for copies in device if copies], len(list(host))

    def hold(self, block: int) -> None:
        if self.holders[block] == 0:
            self.free.remove(block)
        self.holders[block] += 1

    def take(self, wanted: int) -> list[int]:
        taken, self.free = self.free[:wanted], self.free[wanted:]
        for block in taken:
            self.holders[block] = 1
            name, self.name[block] = self.name[block], None
            if name is None:
                continue
            self.copies[name].remove(block)
            if not self.copies[name]:
                del self.copies[name]
                self.host[name] = None
        while len(self.host) > self.host_total:
            self.host.popitem(last=False)
        return taken

    def give(self, block: int, name: int) -> None:
        self.name[block] = name
        self.copies.setdefault(name, []).append(block)
        self.host.pop(name, None)

    def drop(self, held: list[int]) -> None:
        for block in held:
            self.holders[block] -= 1
        idle = [block for block in reversed(held) if self.holders[block] == 0]
        named = [block for block in idle if self.name[block] is not None]
        self.free = [block for block in idle if self.name[block] is None] + self.free + named


@settings(max_examples=400, deadline=None)
@given(data=st.data(), total=st.integers(3, 14), host=st.sampled_from([0, 3, 9]))
def test_the_cache_agrees_with_a_pool_of_blocks(data: st.DataObject, total: int, host: int) -> None:
    cache, plain = BlockCache(total, host), Blocks(total, host)
    live: list[tuple[Lease, list[int], list[int], int]] = []  # lease, its chain, its blocks, those named
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["open", "grow", "grow", "close"]))
        if action == "open":
            hashes = chain(*data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=7)))
            limit = data.draw(st.integers(1, len(hashes)))
            match = cache.match(hashes, limit)
            held, on_host = plain.match(hashes[:limit])
            assert match == Match(len(held), sum(plain.holders[block] == 0 for block in held), on_host)
            lease = cache.acquire(hashes, limit)
            for block in held:
                plain.hold(block)
            if on_host:
                room = on_host <= len(plain.free)
                assert cache.reload(lease, on_host) == room
                if room:
                    names = hashes[len(held) : len(held) + on_host]
                    fresh = plain.take(on_host)
                    for block, name in zip(fresh, names, strict=True):
                        plain.give(block, name)
                    held += fresh
            live.append((lease, hashes, held, len(held)))
        elif live and action == "grow":
            at = data.draw(st.integers(0, len(live) - 1))
            lease, hashes, held, named = live[at]
            target = lease.blocks + data.draw(st.integers(0, 4))
            full = data.draw(st.integers(0, target))
            wanted = target - lease.blocks
            fits = wanted <= len(plain.free)
            assert cache.grow(lease, target, full) == fits
            if fits:
                held += plain.take(wanted)
                for number in range(named, min(full, len(hashes))):
                    plain.give(held[number], hashes[number])
                live[at] = (lease, hashes, held, max(named, min(full, len(hashes))))
        elif live:
            lease, _, held, _ = live.pop(data.draw(st.integers(0, len(live) - 1)))
            plain.drop(held)
            cache.release(lease)
        assert cache.free == len(plain.free)
        assert cache.used + cache.free == total
        assert cache.cached == len(plain.copies)
        assert list(cache._host) == list(plain.host)
        assert [lease.hashed for lease, *_ in live] == [named for *_, named in live]
    for lease, *_ in live:
        cache.release(lease)
    assert cache.free == total
    assert not any(run.leases for copies in cache._copies.values() for run in copies)
