"""The gateway of a replay takes what replicas have, in order and as fast as the network carries it."""

import pytest

from router.base.ids import ReplicaId, SessionKey
from router.simulator.cache import BlockCache
from router.simulator.replay.gateway import GATEWAY, Pool
from router.simulator.replay.network import Network
from router.simulator.settings import ReplicaSettings

A = ReplicaId("a")
SESSION = SessionKey("s")
SETTINGS = ReplicaSettings(block_size=64, kv_bytes_per_token=1_000_000)
BLOCK_S = 64e6 / 1e9
"""A block's time on a network of 8 Gb/s."""


def cache_of(*hashes: int, blocks: int = 1000) -> BlockCache:
    """A replica's that holds these."""
    cache = BlockCache(blocks)
    lease = cache.acquire(hashes, 0)
    assert cache.grow(lease, len(hashes), len(hashes))
    cache.release(lease)
    return cache


def let_pass(pool: Pool, network: Network, until: float) -> None:
    """Whatever ends by then is told to the pool, when it ends."""
    while (at := network.next_time()) is not None and at <= until:
        for arrival in network.advance(at):
            assert pool.has_sent(arrival)
            pool.arrived(arrival, at)


def test_blocks_come_in_order_some_at_a_time_and_are_told_by_session() -> None:
    network = Network(8.0)
    pool = Pool(SETTINGS, 64 * 1000, network)
    hashes = list(range(1, 101))
    pool.push(A, cache_of(*hashes), hashes, SESSION, 0.0)
    let_pass(pool, network, 40 * BLOCK_S)
    assert pool.lend(hashes, 100, 3.0) == 32
    first = pool.report(3.0)
    assert (first.complete, first.held, first.tokens) == (True, ((SESSION, 32 * 64),), 32 * 64)
    assert first.capacity_tokens == 64 * 1000
    let_pass(pool, network, 101 * BLOCK_S)
    assert pool.lend(hashes, 100, 7.0) == 100
    assert pool.lend(hashes, 70, 7.0) == 70
    second = pool.report(7.0)
    assert (second.complete, second.held, second.gone) == (False, ((SESSION, 6400),), ())
    assert network.next_time() is None


def test_what_is_here_is_not_sent_again_and_what_the_replica_has_not_yet_comes_later() -> None:
    network = Network(8.0)
    pool = Pool(SETTINGS, 64 * 1000, network)
    hashes = list(range(1, 21))
    pool.push(A, cache_of(*hashes[:10]), hashes, SESSION, 0.0)
    let_pass(pool, network, 100.0)
    assert pool.lend(hashes, 20, 100.0) == 10
    pool.push(A, cache_of(*hashes), hashes, SESSION, 100.0)
    assert network.next_time() == pytest.approx(100.0 + 10 * BLOCK_S)
    let_pass(pool, network, 200.0)
    assert pool.lend(hashes, 20, 200.0) == 20
    pool.push(A, cache_of(*hashes), hashes, SESSION, 200.0)
    assert network.next_time() is None


def test_of_a_replica_that_is_gone_what_has_come_is_kept_and_no_more_is_sent() -> None:
    network = Network(8.0)
    pool = Pool(SETTINGS, 64 * 1000, network)
    hashes = list(range(1, 101))
    pool.push(A, cache_of(*hashes), hashes, SESSION, 0.0)
    pool.push(A, cache_of(*range(201, 301)), list(range(201, 301)), SessionKey("t"), 0.0)
    at = 10.5 * BLOCK_S
    pool.lost(A)
    network.cut(A, at)
    for arrival in network.advance(at):
        pool.arrived(arrival, at)
    assert pool.lend(hashes, 100, at) == 10
    assert network.next_time() is None


def test_one_without_room_takes_what_fits_and_each_second_makes_room_ahead_of_need() -> None:
    network = Network(800.0)
    pool = Pool(SETTINGS, 64 * 40, network)
    hashes = list(range(1, 101))
    pool.push(A, cache_of(*hashes), hashes, SESSION, 0.0)
    let_pass(pool, network, 100.0)
    assert pool.lend(hashes, 100, 100.0) == 40
    assert network.next_time() is None, "what finds no room is not sent again and again"
    told = pool.report(1000.0)
    # A gateway keeps to its high-water mark, from the tails of what was used longest ago.
    assert told.held == ((SESSION, 28 * 64),)
    assert told.tokens == 28 * 64


def test_a_push_that_brings_nothing_in_time_is_given_up() -> None:
    network = Network(0.01)
    pool = Pool(SETTINGS, 64 * 1000, network)
    pool.push(A, cache_of(1, 2, 3), [1, 2, 3], SESSION, 0.0)
    let_pass(pool, network, 100.0)
    assert pool.lend([1, 2, 3], 3, 100.0) == 0
    assert network.next_time() is None


def test_it_has_a_place_of_its_own_on_the_network() -> None:
    network = Network(8.0)
    pool = Pool(SETTINGS, 64 * 1000, network)
    pool.push(A, cache_of(*range(1, 33)), list(range(1, 33)), SESSION, 0.0)
    network.start("a pull", GATEWAY, ReplicaId("b"), 32 * 64e6, 0.0, 100.0)
    # One is sent and one received: they share nothing.
    assert network.next_time() == pytest.approx(32 * BLOCK_S)
    pulls = [arrival for arrival in network.advance(10.0) if not pool.has_sent(arrival)]
    assert [arrival.name for arrival in pulls] == ["a pull"]
