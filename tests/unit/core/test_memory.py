"""What holds of a replica that an engine remembers."""

import pytest

from router.base.ids import ReplicaId
from router.core.memory import ReplicaMemory, ShelfMemory, lives, why_cold

A = ReplicaId("a")


def kept_of(start_time: float | None, epoch: int = 1) -> ReplicaMemory:
    return ReplicaMemory(A, "http://a", start_time, epoch, False, ShelfMemory(b"", b"", b"", b""), None)


@pytest.mark.parametrize(
    ("kept", "url", "start", "why"),
    [
        (1000.0, "http://a", 1000.9, ""),
        (1000.0, "http://b", 1000.0, "is at http://b, and was at http://a"),
        (None, "http://a", 1000.0, "does not tell when it started, so nothing can be checked"),
        (1000.0, "http://a", None, "does not tell when it started, so nothing can be checked"),
        (1000.0, "http://a", 1001.1, "has restarted"),
    ],
)
def test_only_the_same_process_is_as_it_was(kept, url, start, why):
    assert why_cold(kept_of(kept), url, start) == why


def test_a_life_in_the_memory_is_found_again_in_the_one_of_today() -> None:
    assert lives([(kept_of(1000.0, epoch=7), 3)]) == {(A, 7): 3}
