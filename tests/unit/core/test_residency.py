"""Residency from events: depth along the parent chain, whoever stored it, through evictions and branches."""

from hypothesis import given, settings
from hypothesis import strategies as st

from router.base.ids import SessionKey
from router.core import residency as module
from router.core.residency import Residency

A, B, C = SessionKey("a"), SessionKey("b"), SessionKey("c")


def store(of: Residency, hashes, parent=None, session=A, size=16) -> bool:
    return of.stored(list(hashes), parent, size, session)


def test_a_session_holds_what_it_has_stored():
    of = Residency()
    store(of, [1, 2, 3])
    store(of, [4], 3)
    assert of.tokens(A) == 64
    assert of.tokens(B) is None
    assert len(of) == 4


def test_one_that_shares_a_prefix_holds_it_through_the_first_storer():
    of = Residency()
    store(of, [1, 2, 3, 4, 5])
    store(of, [10, 11], 2, B)
    assert of.tokens(B) == 4 * 16
    of.removed([5, 4, 3])
    assert (of.tokens(A), of.tokens(B)) == (32, 64)
    of.removed([2])
    assert (of.tokens(A), of.tokens(B)) == (16, 16)
    of.removed([1])
    assert (of.tokens(A), of.tokens(B)) == (0, 0)


def test_evictions_from_the_end_shorten_and_storing_again_lengthens():
    of = Residency()
    store(of, [1, 2, 3])
    of.removed([3])
    of.removed([2])
    assert of.tokens(A) == 16
    store(of, [2, 3], 1)
    assert of.tokens(A) == 48


def test_what_another_session_stores_in_the_place_of_evicted_blocks_is_not_mine():
    of = Residency()
    store(of, [1, 2, 3])
    of.removed([3, 2])
    store(of, [20, 30, 40], 1, B)
    assert (of.tokens(A), of.tokens(B)) == (16, 64)


def test_blocks_behind_an_evicted_one_are_out_of_reach():
    of = Residency()
    store(of, [1, 2, 3, 4])
    of.removed([2])
    assert of.tokens(A) == 16
    of.removed([4, 3])
    assert (of.tokens(A), len(of)) == (16, 1)


def test_a_report_of_reused_blocks_gives_them_to_the_session_that_reused_them():
    of = Residency()
    store(of, [1, 2, 3, 4])
    store(of, [1, 2, 3], None, B)
    assert (of.tokens(B), len(of)) == (48, 4)
    store(of, [9], 3, B)
    assert of.tokens(B) == 64


def test_what_cannot_be_placed_is_not_known():
    of = Residency()
    store(of, [1, 2])
    assert not store(of, [7, 8], 6)
    assert of.tokens(A) is None
    of.removed([99])
    assert len(of) == 2


def test_nothing_is_there_after_a_clear():
    of = Residency()
    store(of, [1, 2])
    of.clear()
    assert (of.tokens(A), len(of)) == (None, 0)


def test_a_block_that_is_not_full_does_not_count():
    of = Residency()
    store(of, [1, 2])
    assert store(of, [3], 2, A, size=5)
    assert of.tokens(A) == 32


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_SESSIONS", 2)
    monkeypatch.setattr(module, "_MAX_BLOCKS", 5)
    of = Residency()
    for number, session in enumerate((A, B, C)):
        store(of, [number], None, session)
    assert (of.tokens(A), of.tokens(B), of.tokens(C)) == (None, 16, 16)
    store(of, range(10, 14), None, A)
    assert (len(of), of.tokens(B)) == (4, None)


def test_long_chains_are_known_and_evicted_from_their_ends_or_the_middle():
    of = Residency()
    store(of, range(3000))
    store(of, range(3000, 4000), 2999)
    assert of.tokens(A) == 4000 * 16
    of.removed(range(3999, 2998, -1))
    assert (of.tokens(A), len(of)) == (2999 * 16, 2999)
    of.removed([700])
    assert of.tokens(A) == 700 * 16


def test_a_chain_that_branches_without_end_is_not_followed_for_ever(monkeypatch):
    monkeypatch.setattr(module, "_MAX_RUNS_OF_A_CHAIN", 3)
    of = Residency()
    store(of, [0, 1])
    for depth in range(2):
        parent = 10 * depth
        assert store(of, [parent + 10, parent + 11], parent)
    assert of.tokens(A) == 4 * 16
    assert not store(of, [30, 31], 20)
    assert of.tokens(A) is None


class Plain:
    """The same in ten lines: every chain in full."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.chains: dict[SessionKey, list[int]] = {}

    def reach(self, session: SessionKey) -> int:
        chain = self.chains[session]
        return next((at for at, block in enumerate(chain) if block not in self.there), len(chain))


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.integers(0, 7), st.integers(0, 2), st.integers(0, 9)),
        max_size=40,
    )
)
def test_it_agrees_with_whole_chains(steps):
    """Prompts branch at a depth; some tail of the cache is evicted, deepest blocks first as engines do."""
    of, plain = Residency(), Plain()
    for session, length, branch, evicted in steps:
        chain = [depth + 1 if depth < 3 else 100 * (branch + 1) + depth + 1 for depth in range(length)]
        held = 0
        while held < length and chain[held] in plain.there:
            held += 1
        if held < length:
            store(of, chain[held:], chain[held - 1] if held else None, session)
            plain.there.update(chain)
            plain.chains[session] = chain
        for block in sorted(plain.there, key=lambda block: -(block % 100))[: evicted // 3]:
            of.removed([block])
            plain.there.discard(block)
        assert len(of) == len(plain.there)
        for known in plain.chains:
            assert of.tokens(known) <= 16 * plain.reach(known), (known, plain.chains[known])
        if held < length:
            assert of.tokens(session) == 16 * plain.reach(session)
