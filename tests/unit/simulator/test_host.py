"""The host tier: what comes, goes and is found. That it agrees with a plain LRU is in `test_cache.py`."""

from router.simulator.host import HostCache


def host(blocks: int, *runs: list[int]) -> HostCache:
    made = HostCache(blocks)
    for run in runs:
        made.put(run)
    return made


def test_the_least_recently_put_goes_first_and_of_one_run_the_tail() -> None:
    full = host(5, [1, 2, 3], [10, 11])
    assert list(full) == [3, 2, 1, 11, 10]
    full.put([20])
    assert (list(full), full.used) == ([2, 1, 11, 10, 20], 5)
    full.put([30, 31, 32])
    assert list(full) == [10, 20, 32, 31, 30]
    assert full.match([1, 2], 0, 2) == 0


def test_a_run_longer_than_the_tier_keeps_its_beginning() -> None:
    assert list(host(2, [9], [1, 2, 3, 4])) == [2, 1]


def test_a_tier_of_no_blocks_keeps_nothing() -> None:
    assert list(host(0, [1])) == []


def test_runs_that_follow_one_another_are_found_as_one() -> None:
    tier = host(9, [4, 5], [2, 3])
    assert tier.match([1, 2, 3, 4, 5, 6], 1, 6) == 4
    assert tier.match([1, 2, 3, 4, 5, 6], 1, 4) == 3
    assert tier.match([1, 2, 3, 4, 5, 6], 0, 6) == 0, "the device lacks the first, and so does the host"


def test_a_branch_off_the_middle_of_a_run_is_found() -> None:
    tier = host(9, [30, 31], [1, 2, 3])
    assert tier.match([1, 2, 30, 31], 0, 4) == 4


def test_what_the_device_has_is_forgotten_and_the_rest_keeps_its_place() -> None:
    tier = host(9, [3, 4, 5], [1, 2], [9])
    tier.forget([1, 2, 3, 4, 8], 0, 5)
    assert (list(tier), tier.used) == ([5, 9], 2)
    assert tier.match([5], 0, 1) == 1
    assert tier.match([3], 0, 1) == 0
