"""Where prompts are cut, and that a cut stays where it is."""

from hypothesis import example, given
from hypothesis import strategies as st

from router.core.hashing import hash64
from router.core.request import Chain
from router.simulator.replay.segments import Segmenter


def _names(*last_blocks: int) -> tuple[int, ...]:
    """The names of segments that end with these blocks: each is chained to the one before."""
    names: list[int] = []
    for block in last_blocks:
        names.append(hash64(block.to_bytes(8, "little"), names[-1] if names else 0))
    return tuple(names)


def test_a_prompt_is_cut_after_its_lead_and_every_1024_tokens_from_there():
    chain = Segmenter(0, lead_blocks=20, block_tokens=64).cut(range(100, 145), 0, 45 * 64 + 5)
    assert chain.hashes == _names(115, 119, 135, 144)
    assert chain.ends == (16 * 256, 20 * 256, 36 * 256, (45 * 64 + 5) * 4)
    assert chain.opening == 3, "the lead's two, and the first of the message after it"


def test_a_prompt_that_grows_keeps_its_segments_and_gets_new_ones():
    segmenter = Segmenter(0, 0, 64)
    first = segmenter.cut([1, 2, 3], 0, 200)
    second = segmenter.cut([1, 2, 3, 4], 3, 290)
    assert (first.hashes, first.ends) == (_names(3), (800,))
    assert (second.hashes, second.ends) == (_names(3, 4), (800, 1160)), "the first turn's end is still a cut"


def test_a_prompt_that_changed_is_cut_anew_from_the_last_segment_that_is_whole():
    segmenter = Segmenter(0, 0, 64)
    segmenter.cut([1, 2], 0, 130)
    segmenter.cut([1, 2, 3, 4], 2, 260)
    assert segmenter.cut([1, 2, 3, 9], 3, 256) == Chain(_names(2, 9), (520, 1024), 1)


def test_a_prompt_of_less_than_a_block_is_one_segment_of_its_session():
    assert Segmenter(77, 0, 64).cut([], 0, 10) == Chain((77,), (40,), 1)


def test_a_prompt_that_grows_by_less_than_a_block_keeps_its_last_segment():
    segmenter = Segmenter(0, 0, 64)
    segmenter.cut([1], 0, 70)
    assert segmenter.cut([1], 1, 90) == Chain(_names(1), (360,), 1)


def test_blocks_of_512_tokens_are_cut_in_twos():
    assert Segmenter(0, 0, 512).cut([1, 2, 3], 0, 1600) == Chain(_names(2, 3), (4096, 6400), 1)


@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 63)), min_size=1, max_size=8),
)
def test_ends_rise_to_the_prompts_length_and_no_two_segments_have_one_name(lead, turns):
    segmenter = Segmenter(7, lead, 64)
    blocks: list[int] = []
    fresh = iter(range(10**6))
    for keep, add, rest in turns:
        kept = min(keep, len(blocks))
        blocks = [*blocks[:kept], *(next(fresh) for _ in range(add))]
        tokens = len(blocks) * 64 + rest
        if not tokens:
            continue
        chain = segmenter.cut(blocks, kept, tokens)
        assert chain.ends[-1] == tokens * 4
        assert list(chain.ends) == sorted(set(chain.ends))
        assert len(set(chain.hashes)) == len(chain.hashes) == len(chain.ends)
        assert blocks or chain.hashes == (7,)
        assert 1 <= chain.opening <= len(chain.hashes)


@given(
    st.integers(0, 40),
    st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=5),
        min_size=2,
        max_size=3,
    ),
)
@example(20, [[(0, 10), (10, 30)], [(0, 40)]])  # the first one's first turn ends within what both share
def test_a_name_stands_for_all_the_segments_before_it_however_sessions_came_to_their_prompts(lead, sessions):
    before: dict[int, int | None] = {}
    for turns in sessions:
        segmenter = Segmenter(7, lead, 64)
        length = 0
        for keep, add in turns:
            kept = min(keep, length)
            length = kept + add
            if not length:
                continue
            # All prompts of all sessions are beginnings of one: what two share at any length is the same.
            names = segmenter.cut(range(length), kept, length * 64).hashes
            for name, previous in zip(names, (None, *names), strict=False):
                assert before.setdefault(name, previous) == previous
