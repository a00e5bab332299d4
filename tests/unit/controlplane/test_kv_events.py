"""KV events as bytes: both shapes that vLLM has given them, and what is none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import SessionKey
from router.controlplane.kv_events import EventsError, apply
from router.core.residency import MAX_AT_ONCE, Residency

S = SessionKey("s")
LONG = (7).to_bytes(32, "big")


class Cache:
    def __init__(self) -> None:
        self.residency = Residency()
        self.clears = 0

    def say(self, *events: object) -> int:
        raw = msgspec.msgpack.encode([1.5, list(events), 0])
        return sum(not step.placed for step in apply(raw, self.residency, self.clear))

    def clear(self) -> None:
        self.clears += 1


@pytest.fixture
def cache():
    return Cache()


def stored(hashes, parent=None, **more):
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": [1] * 64,
        "block_size": 64, "lora_id": None, "medium": "GPU", "lora_name": None, "session_id": "s", **more,
    }  # fmt: skip


def test_maps_name_sessions_and_unknown_keys_are_passed_over(cache):
    assert cache.say(stored([1, 2], extra_keys=[None, ["x"]], group_idx=0, later=1), stored([3], 2)) == 0
    assert cache.residency.tokens(S) == 192
    cache.say({"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU", "group_idx": 0})
    assert cache.residency.tokens(S) == 128
    cache.say({"type": "AllBlocksCleared"})
    assert (cache.clears, len(cache.residency)) == (1, 0)


def test_arrays_are_read_too_and_name_nobody(cache):
    cache.say(["BlockStored", [1, 2], None, [5] * 32, 16, None, "GPU"], ["BlockStored", [3], 2, [], 16])
    assert len(cache.residency) == 3
    cache.say(["BlockRemoved", [3], "GPU"])
    assert len(cache.residency) == 2
    cache.say(["AllBlocksCleared"])
    assert (cache.clears, len(cache.residency)) == (1, 0)


def test_long_hashes_count_by_their_last_bytes(cache):
    cache.say(stored([LONG]), stored([8], 7))
    assert cache.residency.tokens(S) == 128
    cache.say({"type": "BlockRemoved", "block_hashes": [LONG]})
    assert cache.residency.tokens(S) == 0


def test_blocks_of_other_groups_are_left_out(cache):
    cache.say(stored([1], group_idx=0), stored([1], group_idx=1))
    cache.say({"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1})
    assert cache.residency.tokens(S) == 64


def test_events_that_cannot_be_placed_are_counted(cache):
    assert cache.say(stored([1]), stored([9], 8), stored([2], 1)) == 1


def test_a_kind_that_is_not_known_says_nothing(cache):
    assert cache.say({"type": "BlockMoved", "what": 1}, stored([1]), ["BlockMoved", 3]) == 0
    assert cache.residency.tokens(S) == 64


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockStored"},
        stored("abc"),
        stored([1], block_size="x"),
        stored([1], block_size=0),
        stored([1], session_id="s" * 2000),
        stored(list(range(MAX_AT_ONCE + 1))),
        {"type": "BlockRemoved", "block_hashes": list(range(MAX_AT_ONCE + 1))},
        ["BlockRemoved", list(range(MAX_AT_ONCE + 1))],
        5,
        None,
        [],
        {"a": 1},
        ["BlockStored"],
    ],
)
def test_what_is_no_event_is_refused(cache, event):
    with pytest.raises(EventsError):
        cache.say(event)


@given(st.binary(max_size=200))
def test_bytes_that_are_none_are_refused(raw):
    try:
        list(apply(raw, Residency(), lambda: None))
    except EventsError:
        return
    assert msgspec.msgpack.decode(raw)[1] is not None
