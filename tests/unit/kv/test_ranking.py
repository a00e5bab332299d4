"""Ranking: the least worthy leaf first, whatever has changed since it was added."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv.ranking import Ranking, warmed


class Item:
    def __init__(self, name, worth):
        self.name, self.value, self.leaf = name, worth, True

    def worth(self):
        return self.value

    def is_leaf(self):
        return self.leaf


def ranking(worths):
    items = {name: Item(name, worth) for name, worth in worths.items()}
    ranked = Ranking(items.get)
    for item in items.values():
        ranked.add(item.name, item)
    return items, ranked


def drain(items, ranked, take=lambda _: True):
    order = []
    for item in ranked.cheapest(take):
        del items[item.name]
        order.append(item.name)
    return order


def test_the_least_worthy_comes_first():
    items, ranked = ranking({"a": 3.0, "b": 1.0, "c": 2.0})
    assert drain(items, ranked) == ["b", "c", "a"]


def test_what_has_grown_since_is_ranked_anew():
    items, ranked = ranking({"a": 1.0, "b": 2.0})
    items["a"].value = 5.0
    assert drain(items, ranked) == ["b", "a"]


def test_what_is_passed_over_is_there_the_next_time():
    items, ranked = ranking({"a": 1.0, "b": 2.0})
    assert drain(items, ranked, lambda item: item.name != "a") == ["b"]
    assert drain(items, ranked) == ["a"]


def test_what_is_gone_or_has_children_is_left_out():
    items, ranked = ranking({"a": 1.0, "b": 2.0, "c": 3.0})
    del items["a"]
    items["b"].leaf = False
    assert drain(items, ranked) == ["c"]


def test_stale_entries_are_forgotten():
    items, ranked = ranking({"a": 1.0})
    for _ in range(500):
        ranked.add("a", items["a"])
        ranked.compact(len(items))
    assert len(ranked) < 70
    assert drain(items, ranked) == ["a"]


def test_a_use_weighs_half_after_a_half_life():
    early = warmed(float("-inf"), 0.0, 10.0)
    late = warmed(float("-inf"), 10.0, 10.0)
    assert late - early == pytest.approx(1.0)
    twice = warmed(warmed(float("-inf"), 0.0, 10.0), 0.0, 10.0)
    assert twice == pytest.approx(late), "two uses a half-life ago are one use now"


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_uses_add_up_and_never_overflow(times):
    heat = float("-inf")
    for now in sorted(times):
        assert warmed(heat, now, 600.0) >= heat
        heat = warmed(heat, now, 600.0)
    assert heat <= max(times) / 600.0 + 6
