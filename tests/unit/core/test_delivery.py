"""What a replica delivers of what it was believed to hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.delivery import Delivery


def after(*reports: tuple[float, int]) -> Delivery:
    delivery = Delivery()
    for believed, delivered in reports:
        delivery.observe(believed, delivered)
    return delivery


def test_a_replica_is_believed_in_full_before_it_reports() -> None:
    assert (Delivery().trust, Delivery().share) == (1.0, 1.0)


@pytest.mark.parametrize("delivered", [2936, 3000, 3001, 90_000])
def test_what_is_delivered_but_for_a_few_blocks_changes_nothing(delivered: int) -> None:
    delivery = after(*[(3000, delivered)] * 50)
    assert (delivery.trust, delivery.share) == (1.0, 1.0)


def test_a_short_belief_says_nothing() -> None:
    delivery = after(*[(255.9, 0)] * 50)
    assert (delivery.trust, delivery.share) == (1.0, 1.0)


def test_an_engine_that_caches_nothing_is_soon_expected_to_deliver_nothing() -> None:
    trusts = [after(*[(3000, 0)] * count).trust for count in (1, 5, 10, 20, 40)]
    # 4/5, 4/9, 4/14, 4/20 and a little less, and so on by a twentieth each time.
    assert trusts == [0.75, 0.5, 0.25, 0.125, 0.0]


def test_one_lost_prompt_among_many_is_no_reason_to_distrust() -> None:
    assert after(*[(3000, 3000)] * 16, (3000, 0)).trust == 1.0


def test_trust_comes_back_slowly() -> None:
    delivery = after(*[(3000, 0)] * 200)
    assert delivery.trust == 0.0
    trusts = []
    for _ in range(60):
        delivery.observe(3000, 3000)
        trusts.append(delivery.trust)
    assert trusts == sorted(trusts)
    # 1 − 0.95ⁿ
    assert (trusts[0], trusts[12], trusts[26], trusts[-1]) == (0.0, 0.5, 0.75, 1.0)


def test_trust_follows_a_lasting_ratio_and_the_capacity_stays() -> None:
    # A reply whose reasoning is not sent again: always a quarter less than was believed.
    delivery = after(*[(4000, 3000)] * 60)
    assert (delivery.trust, delivery.share) == (0.75, 1.0)


def test_lost_prompts_shrink_what_is_counted_on_and_found_ones_grow_it_a_twentieth_as_fast() -> None:
    delivery = Delivery()
    assert delivery.observe(3000, 1499)
    assert delivery.share == pytest.approx(0.9)
    assert not delivery.observe(3000, 1500)
    assert delivery.share == pytest.approx(0.9 * 1.005)
    for _ in range(19):
        delivery.observe(3000, 3000)
    assert delivery.share == pytest.approx(0.9 * 1.005**20)
    for _ in range(5):
        delivery.observe(3000, 3000)
    assert delivery.share == 1.0


def test_an_eighth_of_the_capacity_is_always_counted_on() -> None:
    assert after(*[(3000, 0)] * 100).share == 0.125


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1_000_000)), max_size=80))
def test_whatever_is_reported_both_stay_in_their_ranges(reports: list[tuple[float, int]]) -> None:
    delivery = after(*reports)
    assert 0.0 <= delivery.trust <= 1.0
    assert (delivery.trust * 8).is_integer()
    assert 0.125 <= delivery.share <= 1.0
