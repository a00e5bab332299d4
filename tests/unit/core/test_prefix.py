"""The prefix index: single behaviours, and any order of calls against a plain dictionary model."""

import tracemalloc
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.core import prefix
from router.core.hashing import hash64
from router.core.prefix import PrefixIndex

Chain = tuple[tuple[int, ...], tuple[int, ...]]

SIZES = {"a": 1, "b": 2, "c": 3, "d": 10, "R": 4}


def chain(path: str) -> Chain:
    """A chain with one segment a letter; equal beginnings have equal hashes, as in a real prompt."""
    hashes = accumulate(path, lambda so_far, letter: hash64(letter.encode(), so_far), initial=0)
    return tuple(hashes)[1:], tuple(accumulate(SIZES[letter] for letter in path))


def touch(index: PrefixIndex, shelf: int, path: str) -> None:
    index.touch(shelf, *chain(path))


def match(index: PrefixIndex, path: str) -> dict[int, int]:
    found = index.match(chain(path)[0])
    assert len(dict(found)) == len(found)
    return dict(found)


def held_bytes(index: PrefixIndex, shelf: int) -> int:
    return index._open[shelf].held_bytes


def test_an_empty_index_matches_nothing() -> None:
    index = PrefixIndex()
    assert match(index, "Rab") == {}
    index.open_shelf(None)
    assert match(index, "Rab") == {}
    assert match(index, "") == {}
    assert len(index) == 0


def test_each_shelf_matches_as_deep_as_it_holds_the_chain() -> None:
    index = PrefixIndex()
    one, two, three = (index.open_shelf(None) for _ in range(3))
    touch(index, one, "Rab")
    touch(index, two, "Rabcd")
    touch(index, three, "b")
    assert index.match(chain("Rabca")[0]) == [(one, 3), (two, 4)]
    assert match(index, "Rab") == {one: 3, two: 3}
    assert match(index, "Rc") == {one: 1, two: 1}
    assert match(index, "") == {}


def test_a_text_that_moved_does_not_match() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    touch(index, shelf, "Rab")
    assert match(index, "Rba") == {shelf: 1}
    assert match(index, "ab") == {}


def test_bytes_and_segments_are_counted_once_however_often_touched() -> None:
    index = PrefixIndex()
    one, two = index.open_shelf(None), index.open_shelf(None)
    touch(index, one, "Rab")
    touch(index, one, "Rab")
    touch(index, one, "Rac")
    touch(index, two, "Ra")
    touch(index, two, "")
    assert (held_bytes(index, one), index.segments(one)) == (4 + 1 + 2 + 3, 4)
    assert (held_bytes(index, two), index.segments(two)) == (4 + 1, 2)
    assert len(index) == 6


def test_a_full_shelf_loses_the_least_recent_chain_from_its_tail() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(4 + 1 + 2 + 3 + 3)
    touch(index, shelf, "Rab")
    touch(index, shelf, "Rcc")
    assert held_bytes(index, shelf) == 13
    touch(index, shelf, "Rca")  # 1 byte too many: b, the tail of the oldest, goes
    assert match(index, "Rab") == {shelf: 2}
    touch(index, shelf, "Rcb")  # 1 byte over: a goes
    assert match(index, "Rab") == {shelf: 1}
    assert match(index, "Rcc") == {shelf: 3}
    assert held_bytes(index, shelf) == 13


def test_a_chain_longer_than_the_shelf_is_cut_and_spares_what_it_need_not_push_out() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(12)
    touch(index, shelf, "abc")
    touch(index, shelf, "Rad")  # 15 bytes in all: R and a fit
    assert match(index, "Rad") == {shelf: 2}
    assert match(index, "abc") == {shelf: 3}
    touch(index, shelf, "Rabd")
    assert match(index, "Rabd") == {shelf: 3}


@pytest.mark.parametrize("capacity", [0, 3, 3.9])
def test_a_first_segment_larger_than_the_shelf_is_not_held_and_pushes_out_nothing(capacity: float) -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(capacity)
    touch(index, shelf, "ab")
    before = held_bytes(index, shelf)
    touch(index, shelf, "Rab")
    assert match(index, "Rab") == {}
    assert held_bytes(index, shelf) == before == (3 if capacity else 0)


def test_a_shelf_that_shrinks_evicts_and_one_that_grows_holds_more() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    touch(index, shelf, "Rabc")
    index.resize(shelf, 7)
    assert match(index, "Rabc") == {shelf: 3}
    index.resize(shelf, 6.5)
    assert match(index, "Rabc") == {shelf: 2}
    index.resize(shelf, None)
    touch(index, shelf, "Rabcd")
    assert match(index, "Rabcd") == {shelf: 5}


def test_a_closed_shelf_matches_nothing_and_its_number_starts_empty() -> None:
    index = PrefixIndex()
    one, two = index.open_shelf(None), index.open_shelf(None)
    assert (one, two) == (0, 1)
    touch(index, one, "Rab")
    touch(index, two, "Ra")
    index.close_shelf(one)
    assert match(index, "Rab") == {two: 2}
    assert len(index) == 2
    again = index.open_shelf(None)
    assert again == one
    assert match(index, "Rab") == {two: 2}
    assert (held_bytes(index, again), index.segments(again)) == (0, 0)


def test_a_shelf_that_is_not_open_is_an_error() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    index.close_shelf(shelf)
    for call in (
        lambda: touch(index, shelf, "R"),
        lambda: index.resize(shelf, 1),
        lambda: index.close_shelf(shelf),
        lambda: index.segments(shelf),
    ):
        with pytest.raises(KeyError):
            call()


def test_a_large_shelf_is_dropped_bit_by_bit_and_its_number_kept_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefix, "_SPREAD", 2)
    index = PrefixIndex()
    large, other = index.open_shelf(None), index.open_shelf(None)
    touch(index, large, "Rabcabcabc")
    touch(index, other, "R")
    index.close_shelf(large)  # drops 2 of 10
    assert match(index, "Rabc") == {other: 1}
    assert len(index) == 1
    assert index.open_shelf(None) == 2
    for _ in range(3):  # 2 a touch
        touch(index, other, "R")
    assert index.open_shelf(None) == 3
    touch(index, other, "R")
    assert index.open_shelf(None) == large
    assert match(index, "Rabc") == {other: 1}


def test_a_large_shelf_shrinks_bit_by_bit_even_while_it_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "_SPREAD", 2)
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    touch(index, shelf, "Raaaaaaaaaaaaaaa")
    index.resize(shelf, 10)
    held = [index.segments(shelf)]
    for path in ("Rb", "Rba", "Rbb", "Rbba", "Rbbb"):
        touch(index, shelf, path)
        held.append(index.segments(shelf))
    assert held == [14, 12, 10, 8, 6, 4]
    assert held_bytes(index, shelf) == 10
    assert match(index, "Rbbb") == {shelf: 4}


def test_the_bound_on_segments_takes_from_the_largest_shelf() -> None:
    index = PrefixIndex(max_segments=6)
    small, large = index.open_shelf(None), index.open_shelf(None)
    touch(index, small, "Ra")
    touch(index, large, "Rabc")
    touch(index, small, "Rab")
    assert len(index) == 6
    assert match(index, "Rabc") == {small: 3, large: 3}


def test_the_bound_on_segments_takes_from_closed_shelves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "_SPREAD", 0)
    index = PrefixIndex(max_segments=6)
    closed, kept = index.open_shelf(None), index.open_shelf(None)
    touch(index, closed, "Rab")
    index.close_shelf(closed)
    touch(index, kept, "Rabcab")
    assert match(index, "Rabcab") == {kept: 6}
    touch(index, kept, "Rabcabc")
    assert match(index, "Rabcabc") == {kept: 6}


# --- runs


def segments_of(run: Any) -> list[tuple[int, int]]:
    """A run's segments with their sizes, in order."""
    assert (run.more is None) == (run.sizes is None)
    return [(run.first, run.size), *zip(run.more or (), run.sizes or (), strict=True)]


def runs(index: PrefixIndex, shelf: int) -> list[int]:
    """Lengths of the runs, least recent first."""
    return [run.length() for run in index._open[shelf].listed()]


def test_a_conversation_is_one_run_however_many_turns_it_has() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    for turn in range(1, 40):
        touch(index, shelf, "R" + "a" * turn)
    assert runs(index, shelf) == [40]


def test_what_two_conversations_share_is_a_run_of_its_own() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    touch(index, shelf, "Raab")
    touch(index, shelf, "Raacc")
    assert runs(index, shelf) == [1, 2, 3]
    touch(index, shelf, "Raabb")
    assert runs(index, shelf) == [2, 2, 3]


def test_a_compaction_leaves_the_rest_where_it_was_and_what_grows_anew_makes_no_more_runs() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    touch(index, shelf, "Raaaaaa")
    touch(index, shelf, "d")
    touch(index, shelf, "Ra")
    assert runs(index, shelf) == [5, 1, 2]
    for turn in range(2, 6):
        touch(index, shelf, "R" + "a" * turn)
    assert runs(index, shelf) == [1, 1, 6]
    touch(index, shelf, "Raaaaaabc")
    assert runs(index, shelf) == [1, 9]


def test_a_branch_that_is_gone_lets_the_other_one_grow_in_its_run() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(None)
    touch(index, shelf, "Rab")
    touch(index, shelf, "Rac")
    index.resize(shelf, 8)
    assert runs(index, shelf) == [1, 2]
    touch(index, shelf, "Rac")
    assert runs(index, shelf) == [3]


def test_chains_whose_hashes_collide_are_listed_up_to_there() -> None:
    index = PrefixIndex()
    shelf = index.open_shelf(100)
    index.touch(shelf, (1, 2, 3), (1, 2, 3))
    index.touch(shelf, (9, 2, 8), (1, 2, 3))  # 2 with another beginning
    assert index.match((1, 2, 3)) == [(shelf, 3)]
    assert index.match((9, 7)) == [(shelf, 1)]
    index.touch(shelf, (5, 6, 5, 7), (1, 2, 3, 4))  # one hash twice
    assert index.match((5, 6)) == [(shelf, 2)]
    index.touch(shelf, (4, 3), (1, 2))  # known by its end, and by nothing that leads there
    assert (held_bytes(index, shelf), index.segments(shelf)) == (7, 7)
    index.resize(shelf, 0)
    assert (held_bytes(index, shelf), len(index), index._masks) == (0, 0, {})


# --- any order of calls


@dataclass
class Model:
    """Shelf → its segments with their sizes, least recent first."""

    room: int
    shelves: dict[int, dict[int, int]] = field(default_factory=dict)
    capacity: dict[int, float] = field(default_factory=dict)

    def touch(self, shelf: int, hashes: tuple[int, ...], ends: tuple[int, ...]) -> None:
        held = self.shelves[shelf]
        fits = [
            pair for pair in zip(hashes, (0, *ends), ends, strict=False) if pair[2] <= self.capacity[shelf]
        ]
        for segment, start, end in reversed(fits):
            held[segment] = held.pop(segment, end - start)
        self.trim(shelf)
        while sum(map(len, self.shelves.values())) > self.room:
            excess = sum(map(len, self.shelves.values())) - self.room
            largest = max(self.shelves, key=lambda number: (len(self.shelves[number]), -number))
            for segment in list(self.shelves[largest])[:excess]:
                del self.shelves[largest][segment]

    def trim(self, shelf: int) -> None:
        held = self.shelves[shelf]
        while sum(held.values()) > self.capacity[shelf]:
            del held[next(iter(held))]

    def match(self, hashes: tuple[int, ...]) -> dict[int, int]:
        depths = {
            number: next((d for d, segment in enumerate(hashes) if segment not in held), len(hashes))
            for number, held in self.shelves.items()
        }
        return {number: depth for number, depth in depths.items() if depth}


paths = st.text("abcd", max_size=5).map(lambda tail: "R" + tail) | st.sampled_from(["", "ab", "Rabcabcab"])
capacities = st.none() | st.integers(0, 30) | st.just(17.5)
picks = st.integers(0, 3)
calls = st.one_of(
    st.tuples(st.just("touch"), picks, paths),
    st.tuples(st.just("touch"), picks, paths),
    st.tuples(st.just("open"), capacities),
    st.tuples(st.just("close"), picks),
    st.tuples(st.just("resize"), picks, capacities),
)
scripts = st.lists(calls, max_size=50).map(lambda steps: [("open", 20), ("open", None), *steps])


def check_invariants(index: PrefixIndex, seen: set[str]) -> None:
    """Reads the index's own tables: the invariants of the module, and the sums."""
    listed: dict[int, int] = {}
    shelves = [*index._open.values(), *index._retired]
    for shelf in shelves:
        runs = list(shelf.listed())
        assert all(len(segments_of(run)) == run.length() for run in runs)
        assert {run.first: run for run in runs} == shelf.runs
        assert all(run.children == sum(other.parent is run for other in runs) for run in runs)
        assert shelf.held_bytes == sum(size for run in runs for _, size in segments_of(run))
        assert shelf.segments == sum(run.length() for run in runs)
        recency = {}
        for run in runs:
            for segment, _ in reversed(segments_of(run)):
                recency[segment] = len(recency)
                listed[segment] = listed.get(segment, 0) | shelf.bit
        for path in seen:
            held = [segment in recency for segment in chain(path)[0]]
            assert held == sorted(held, reverse=True), "a segment is held without one that precedes it"
            ranks = [recency[segment] for segment in chain(path)[0] if segment in recency]
            assert ranks == sorted(ranks, reverse=True), "a segment is more recent than its descendants"
    assert listed == index._masks
    assert index._entries == sum(shelf.segments for shelf in shelves)
    assert index._open_bits == sum(shelf.bit for shelf in index._open.values())


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), max_size=30),
    st.sampled_from([None, 3, 7]),
    st.booleans(),
)
@settings(max_examples=300)
@example([[3, 0], [2], [3], [2, 3, 2], [3]], None, False)
def test_chains_that_have_hashes_in_common_which_they_ought_not_break_nothing(
    chains: list[list[int]], capacity: int | None, closed: bool
) -> None:
    index = PrefixIndex(max_segments=9)
    shelf = index.open_shelf(capacity)
    for hashes in map(tuple, chains):
        index.touch(shelf, hashes, tuple(range(1, len(hashes) + 1)))
        check_invariants(index, set())
        assert all(depth <= len(hashes) for _, depth in index.match(hashes))
    again = PrefixIndex()
    again.load(again.open_shelf(None), index.dump(shelf))
    check_invariants(again, set())
    assert len(again) == len(index)
    if closed:
        index.close_shelf(shelf)
    else:
        index.resize(shelf, 0)
    check_invariants(index, set())
    assert (len(index), index._masks) == (0, {})


@given(scripts, st.sampled_from([8, 15, 1000]))
@settings(max_examples=150)
def test_agrees_with_a_dictionary_under_any_order_of_calls(script: list[tuple[Any, ...]], room: int) -> None:
    index, model = PrefixIndex(max_segments=room), Model(room)
    seen = {"R"}
    for step in script:
        shelves = sorted(model.shelves)
        if step[0] == "open":
            number = index.open_shelf(step[1])
            assert number == next(n for n in range(99) if n not in shelves)
            model.shelves[number] = {}
            model.capacity[number] = float("inf") if step[1] is None else step[1]
        elif shelves:
            number = shelves[step[1] % len(shelves)]
            match step:
                case ("touch", _, path):
                    seen.add(path)
                    touch(index, number, path)
                    model.touch(number, *chain(path))
                case ("close", _):
                    index.close_shelf(number)
                    del model.shelves[number]
                case ("resize", _, capacity):
                    index.resize(number, capacity)
                    model.capacity[number] = float("inf") if capacity is None else capacity
                    model.trim(number)
        check_invariants(index, seen)
        assert len(index) == sum(map(len, model.shelves.values()))
        for number, held in model.shelves.items():
            assert index.segments(number) == len(held)
            assert held_bytes(index, number) == sum(held.values())
        for path in seen:
            assert match(index, path) == model.match(chain(path)[0])
    for number, held in model.shelves.items():
        again = PrefixIndex()
        again.load(again.open_shelf(None), index.dump(number))
        check_invariants(again, seen)
        assert listing(again, 0) == listing(index, number) == list(held.items())


def listing(index: PrefixIndex, shelf: int) -> list[tuple[int, int]]:
    """Segments and their sizes, least recent first."""
    return [pair for run in index._open[shelf].listed() for pair in reversed(segments_of(run))]


@given(scripts, st.integers(0, 3))
@settings(max_examples=80)
def test_the_invariants_hold_while_large_shelves_drain(script: list[tuple[Any, ...]], spread: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "_SPREAD", spread)
        index = PrefixIndex(max_segments=12)
        opened: list[int] = []
        seen = {"R"}
        for step in script:
            if step[0] == "open":
                number = index.open_shelf(step[1])
                assert number not in opened
                opened.append(number)
                assert index.segments(number) == 0
                assert all(number not in match(index, path) for path in seen)
            elif opened:
                number = opened[step[1] % len(opened)]
                match step:
                    case ("touch", _, path):
                        seen.add(path)
                        touch(index, number, path)
                    case ("close", _):
                        index.close_shelf(number)
                        opened.remove(number)
                    case ("resize", _, capacity):
                        index.resize(number, capacity)
            check_invariants(index, seen)
            assert index._entries <= 12
            assert all(set(match(index, path)) <= set(opened) for path in seen)


# --- cost


def test_memory_is_bounded_and_a_large_shelf_takes_many_touches_to_drop() -> None:
    """A tenth of a million segments here; the whole million is in tests/bench/prefix_memory.py."""
    count, depth = 100_000, 50
    ends = tuple(range(1000, 1000 * (depth + 1), 1000))
    tracemalloc.start()
    try:
        index = PrefixIndex()
        shelf = index.open_shelf(None)
        for number in range(count // depth):
            hashes = tuple(hash64(b"segment", number * depth + position) for position in range(depth))
            index.touch(shelf, hashes, ends)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert index.segments(shelf) == count
    assert taken / count < 125

    index.close_shelf(shelf)
    assert index.match(hashes) == []
    other = index.open_shelf(None)
    touches = 0
    while index._retired:
        touch(index, other, "R")
        touches += 1
    assert touches == count // prefix._SPREAD
    assert len(index) == len(index._masks) == 1
