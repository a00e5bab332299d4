"""How much two chains share."""

from hypothesis import given
from hypothesis import strategies as st

from router.simulator.chains import shared_blocks


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 5), st.integers(0, 30))
def test_the_shared_blocks_are_the_leading_equal_ones(common, own, other, at, short):
    # Chained: what follows a difference differs.
    run = [*range(common), *range(100, 100 + own)]
    hashes = [*range(-at, 0), *range(common), *range(200, 200 + other)]
    limit = max(at + 1, len(hashes) - short)
    assert shared_blocks(run, hashes, at, limit) == min(common, limit - at)
