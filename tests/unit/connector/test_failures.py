"""Blocks that failed are not offered again at once, and not for ever."""

from router.connector.failures import KEPT_S, Failures

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def test_a_prefix_is_sound_up_to_the_first_block_that_failed() -> None:
    failures = Failures()
    assert failures.sound("t", [A, B, C], 3, 0.0) == 3
    failures.add("t", [B], 0.0)
    assert failures.sound("t", [A, B, C], 3, 1.0) == 1
    assert failures.sound("t", [A, B, C], 1, 1.0) == 1
    assert failures.sound("t", [B], 1, 1.0) == 0


def test_another_tenants_block_of_the_same_hash_is_another_block() -> None:
    failures = Failures()
    failures.add("t", [A], 0.0)
    assert failures.sound("u", [A], 1, 0.0) == 1


def test_a_failure_is_forgotten_after_a_while_and_counts_from_the_last_time() -> None:
    failures = Failures()
    failures.add("t", [A], 0.0)
    failures.add("t", [A], 1.0)
    assert failures.sound("t", [A], 1, KEPT_S) == 0
    assert failures.sound("t", [A], 1, 1.0 + KEPT_S) == 1


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    failures = Failures()
    failures.add("t", [number.to_bytes(32) for number in range(5000)], 0.0)
    assert failures.sound("t", [(0).to_bytes(32)], 1, 0.0) == 1
    assert failures.sound("t", [(4999).to_bytes(32)], 1, 0.0) == 0
