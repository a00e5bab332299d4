"""The block cache against a dictionary of blocks, and each rule of its own."""

from collections import OrderedDict

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


def test_a_block_computed_twice_at_once_is_kept_once() -> None:
    cache = BlockCache(8)
    first, second = cache.acquire(chain(1, 2), 2), cache.acquire(chain(1, 2), 2)
    assert cache.grow(first, 2, 2)
    assert cache.grow(second, 2, 0)
    assert cache.used == 4
    assert cache.grow(second, 2, 2)
    assert cache.used == 2
    cache.release(first)
    assert cache.used == 2
    cache.release(second)
    assert cache.used == 0


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
    """The same rules, a dictionary entry a block: slow and plain."""

    def __init__(self, total: int, host: int) -> None:
        self.total, self.host_total = total, host
        self.holders: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.host: OrderedDict[int, None] = OrderedDict()
        self.plain = 0

    @property
    def free(self) -> int:
        return self.total - self.plain - sum(1 for count in self.holders.values() if count > 0)

    def match(self, hashes: list[int]) -> tuple[int, int]:
        device = 0
        while device < len(hashes) and hashes[device] in self.holders:
            device += 1
        host = device
        while host < len(hashes) and hashes[host] in self.host:
            host += 1
        return device, host - device

    def hold(self, block: int) -> None:
        self.holders[block] = self.holders.get(block, 0) + 1
        self.idle.pop(block, None)

    def take(self, wanted: int) -> None:
        while self.total - self.plain - len(self.holders) < wanted:
            block, _ = self.idle.popitem(last=False)
            del self.holders[block]
            if self.host_total:
                self.host[block] = None
                self.host.move_to_end(block)
                if len(self.host) > self.host_total:
                    self.host.popitem(last=False)
        self.plain += wanted

    def drop(self, held: list[int], plain: int) -> None:
        self.plain -= plain
        for block in reversed(held):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.idle[block] = None


@settings(max_examples=300, deadline=None)
@given(data=st.data(), total=st.integers(3, 14), host=st.sampled_from([0, 3, 9]))
def test_the_cache_agrees_with_a_dictionary_of_blocks(data: st.DataObject, total: int, host: int) -> None:
    cache, plain = BlockCache(total, host), Blocks(total, host)
    live: list[tuple[Lease, list[int], list[int]]] = []  # lease, its chain, blocks held there
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["open", "grow", "grow", "close"]))
        if action == "open":
            hashes = chain(*data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=7)))
            match = cache.match(hashes, len(hashes))
            assert (match.device, match.host) == plain.match(hashes)
            assert match.idle == sum(1 for block in hashes[: match.device] if plain.holders[block] == 0)
            lease = cache.acquire(hashes, len(hashes))
            held = hashes[: match.device]
            for block in held:
                plain.hold(block)
            if match.host:
                room = match.host <= plain.free
                assert cache.reload(lease, match.host) == room
                if room:
                    plain.take(match.host)
                    for block in hashes[match.device : match.device + match.host]:
                        plain.host.pop(block, None)
                        plain.hold(block)
                        held.append(block)
                    plain.plain -= match.host
            live.append((lease, hashes, held))
        elif live and action == "grow":
            lease, hashes, held = live[data.draw(st.integers(0, len(live) - 1))]
            target = lease.blocks + data.draw(st.integers(0, 4))
            full = data.draw(st.integers(0, target))
            wanted = target - lease.blocks
            fits = wanted <= plain.free
            assert cache.grow(lease, target, full) == fits
            if fits:
                plain.take(wanted)
                for block in hashes[len(held) : full]:
                    plain.host.pop(block, None)
                    plain.hold(block)
                    held.append(block)
                    plain.plain -= 1
        elif live:
            lease, _, held = live.pop(data.draw(st.integers(0, len(live) - 1)))
            plain.drop(held, lease.plain)
            cache.release(lease)
        assert cache.free == plain.free
        assert cache.used + cache.free == total
        assert cache.cached == len(plain.holders)
        assert list(cache._host) == list(plain.host)
        assert all(run.holders >= 0 for run in cache._runs.values())
    for lease, _, _ in live:
        cache.release(lease)
    assert cache.free == total
