"""Each block is saved once, when it is full and certain, under the hash that is its own."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.connector.saves import NULL_BLOCK, Full, Saves
from router.kv.keys import BlockHash


def hashes(count: int) -> list[BlockHash]:
    return [BlockHash(bytes([number]) * 32) for number in range(count)]


def nothing_held(_tenant: str, _hash: bytes) -> bool:
    return False


def places(saves: Saves, computed: int, known: int, *, slots: int = 100) -> list[int]:
    """What is saved at a step with so many slots."""
    done: list[int] = []
    for full in saves.full("r", computed=computed, hashes=hashes(known), held=nothing_held):
        if len(done) == slots:
            break
        done.append(full.place)
    return done


def running(block_ids: Sequence[int]) -> Saves:
    saves = Saves()
    saves.arrive("r", "t")
    saves.replace("r", block_ids)
    return saves


def test_blocks_are_saved_as_they_fill_and_only_once() -> None:
    saves = running([5, 6])
    assert places(saves, 1, 2) == [0]
    saves.extend("r", [7, 8])
    assert places(saves, 3, 3) == [1, 2]
    assert places(saves, 3, 3) == []


def test_a_block_goes_with_the_engines_block_and_hash_at_its_place() -> None:
    saves = running([5, 6])
    full = list(saves.full("r", computed=2, hashes=hashes(2), held=nothing_held))
    assert full == [Full(0, 5, hashes(2)[0]), Full(1, 6, hashes(2)[1])]


def test_a_block_that_is_computed_but_whose_tokens_are_not_known_waits() -> None:
    saves = running([5, 6, 7])
    assert places(saves, 3, 1) == [0]
    assert places(saves, 3, 2) == [1]


def test_a_block_without_a_slot_is_tried_again_and_lost_when_the_request_ends() -> None:
    saves = running([5, 6, 7])
    assert places(saves, 3, 3, slots=1) == [0]
    assert places(saves, 3, 3, slots=1) == [1]
    assert saves.end("r") == 1
    assert len(saves) == 0


def test_what_the_agent_holds_is_not_saved_again() -> None:
    saves = running([5, 6, 7])
    held = hashes(2)[1]
    full = saves.full(
        "r", computed=3, hashes=hashes(3), held=lambda tenant, one: tenant == "t" and one == held
    )
    assert [one.place for one in full] == [0, 2]


def test_what_the_agent_brought_is_not_saved_again() -> None:
    saves = running([5, 6, 7])
    saves.loaded("r", range(1, 2))
    assert places(saves, 3, 3) == [0, 2]


def test_blocks_of_a_preempted_request_are_its_new_ones() -> None:
    saves = running([5, 6, 7])
    assert places(saves, 1, 3) == [0]
    saves.replace("r", [15, 16, 17])
    full = list(saves.full("r", computed=2, hashes=hashes(3), held=nothing_held))
    assert [one.block_id for one in full] == [16]
    assert saves.end("r") == 0


def test_a_block_out_of_the_window_is_left_out() -> None:
    saves = running([NULL_BLOCK, 6])
    assert places(saves, 2, 2) == [1]


def test_whose_blocks_they_are_can_be_told_later() -> None:
    saves = running([5])
    assert saves.tenant("r") == "t"
    saves.belongs("r", "u")
    assert saves.tenant("r") == "u"


def test_a_request_that_is_not_known_has_nothing() -> None:
    saves = Saves()
    saves.replace("r", [1])
    saves.extend("r", [1])
    saves.belongs("r", "t")
    assert places(saves, 1, 1) == []
    assert saves.tenant("r") is None
    assert saves.end("r") == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), max_size=20))
def test_every_full_block_is_saved_exactly_once_in_order(steps: list[tuple[int, int, int]]) -> None:
    saves = running([])
    blocks = computed = known = 0
    saved: list[int] = []
    for more, progress, slots in steps:
        saves.extend("r", range(blocks + 100, blocks + 100 + more))
        blocks += more
        computed = min(blocks, computed + progress)
        known = max(known, computed)
        saved += places(saves, computed, known, slots=slots)
    saved += places(saves, computed, known)
    assert saved == list(range(computed))
