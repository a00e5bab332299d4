"""Where prompts are cut, and that a cut stays where it is."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.request import Chain
from router.simulator.replay.segments import Segmenter


def test_a_prompt_is_cut_after_its_lead_and_every_1024_tokens_from_there():
    chain = Segmenter(0, lead_blocks=20, block_tokens=64).cut(range(100, 145), 0, 45 * 64 + 5)
    assert chain.hashes == (115, 119, 135, 144)
    assert chain.ends == (16 * 256, 20 * 256, 36 * 256, (45 * 64 + 5) * 4)
    assert chain.opening == 3, "the lead's two, and the first of the message after it"


def test_a_prompt_that_grows_keeps_its_segments_and_gets_new_ones():
    segmenter = Segmenter(0, 0, 64)
    first = segmenter.cut([1, 2, 3], 0, 200)
    second = segmenter.cut([1, 2, 3, 4], 3, 290)
    assert (first.hashes, first.ends) == ((3,), (800,))
    assert (second.hashes, second.ends) == ((3, 4), (800, 1160)), "the first turn's end is still a cut"


def test_a_prompt_that_changed_is_cut_anew_from_the_last_segment_that_is_whole():
    segmenter = Segmenter(0, 0, 64)
    segmenter.cut([1, 2], 0, 130)
    segmenter.cut([1, 2, 3, 4], 2, 260)
    assert segmenter.cut([1, 2, 3, 9], 3, 256) == Chain((2, 9), (520, 1024), 1)


def test_a_prompt_of_less_than_a_block_is_one_segment_of_its_session():
    assert Segmenter(77, 0, 64).cut([], 0, 10) == Chain((77,), (40,), 1)


def test_a_prompt_that_grows_by_less_than_a_block_keeps_its_last_segment():
    segmenter = Segmenter(0, 0, 64)
    segmenter.cut([1], 0, 70)
    assert segmenter.cut([1], 1, 90) == Chain((1,), (360,), 1)


def test_blocks_of_512_tokens_are_cut_in_twos():
    assert Segmenter(0, 0, 512).cut([1, 2, 3], 0, 1600) == Chain((2, 3), (4096, 6400), 1)


@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 63)), min_size=1, max_size=8),
)
def test_ends_rise_to_the_prompts_length_and_hashes_are_those_of_blocks(lead, turns):
    segmenter = Segmenter(-1, lead, 64)
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
        assert chain.hashes[-1] == (blocks[-1] if blocks else -1)
        places = [blocks.index(block) for block in chain.hashes] if blocks else []
        assert places == sorted(places)
        assert 1 <= chain.opening <= len(chain.hashes)
