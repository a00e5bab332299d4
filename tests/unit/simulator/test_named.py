"""Blocks by name behave as a real store's: prefixes only, room made for them, the newest told apart."""

import pytest

from router.kv.config import KeepingConfig
from router.kv.store import SessionName, Zone
from router.simulator.named import NamedBlocks
from router.simulator.settings import ReplicaSettings

SETTINGS = ReplicaSettings(block_size=16, kv_bytes_per_token=100)


def named(blocks: int = 100) -> NamedBlocks:
    return NamedBlocks(SETTINGS, KeepingConfig(), blocks * 1600)


def test_what_was_not_held_before_is_told_with_its_zone() -> None:
    of = named()
    keys = [of.key("t", at) for at in range(1, 6)]
    assert of.keep(keys[:3], "s", 1, 0.0) == [
        (keys[0], Zone.SYSTEM),
        (keys[1], Zone.SESSION),
        (keys[2], Zone.SESSION),
    ]
    assert of.keep(keys, "s", 1, 1.0) == [(keys[3], Zone.SESSION), (keys[4], Zone.SESSION)]
    assert [block.key for block in of.store.chain(SessionName(of.namespace.space, "t", "s"))] == keys
    assert of.keep(keys, "s", 1, 2.0) == []


@pytest.mark.parametrize("held", range(6))
def test_how_many_are_held_of_a_prompt(held: int) -> None:
    of = named()
    of.keep([of.key("t", at) for at in range(1, held + 1)], "s", 0, 0.0)
    hashes = list(range(1, 6))
    assert of.length("t", hashes, 5) == min(held, 5)
    assert of.length("t", hashes, 2) == min(held, 2)
    assert of.length("another", hashes, 5) == 0


def test_a_part_goes_behind_what_is_held_and_nowhere_else() -> None:
    of = named()
    keys = [of.key("t", at) for at in range(1, 5)]
    of.keep(keys[:2], "s", 0, 0.0)
    assert of.keep(keys[3:], "s", 0, 0.0, above=keys[2].hash) == [], "its parent is not here"
    assert [key for key, _ in of.keep(keys[2:], "s", 0, 0.0, above=keys[1].hash)] == keys[2:]


def test_the_less_worthy_make_room_but_not_the_one_above() -> None:
    of = named(4)
    old = [of.key("t", at) for at in range(1, 5)]
    of.keep(old, "old", 0, 0.0)
    new = [of.key("t", 100 + at) for at in range(6)]
    assert [key for key, _ in of.keep(new, "new", 0, 1000.0)] == new[:4]
    assert of.length("t", list(range(1, 5)), 4) == 0
    assert of.store.used_bytes == 4 * of.block_bytes
