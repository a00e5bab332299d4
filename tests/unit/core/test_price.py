"""The price of each way to have a turn, and the bill."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import ReplicaId
from router.core.decide import Candidate, Flight, Pulls, Source
from router.core.estimate.prefill import Curve
from router.core.price import (
    Pull,
    displaced_tokens,
    expected_s,
    lines,
    local_s,
    offer,
    pull_s,
    residue_s,
    residue_token_s,
)
from router.core.prices import Prices

A, B, C = (ReplicaId(name) for name in "abc")
CURVE = Curve(0.01, 1e-4, 1e-10, 5e-6)
PRICES = Prices()


def candidate(replica: ReplicaId = A, **given: Any) -> Candidate:
    plain = Candidate(replica, 0, 0, 0, 0, None, None, 0.0, 0.0, None)
    return plain.replace(**({"curve": CURVE} | given))


def pulls(**given: Any) -> Pulls:
    values: dict[str, Any] = {
        "sources": (Source(A, 50_000, 0, 0.9),),
        "targets": frozenset((A, B, C)),
        "inbound": {},
        "links": {(A, B): (0.02, 1e-10)},
        "seed": (0.01, 1e-9),
        "token_bytes": 100_000.0,
    }
    return Pulls(**(values | given))


counts = st.integers(0, 300_000)
times = st.floats(0, 1000)
candidates = st.builds(
    candidate,
    st.sampled_from((A, B, C)),
    cached_tokens=counts,
    host_tokens=counts,
    in_flight=st.integers(0, 300),
    foreign=st.none() | st.floats(0, 100),
    working_set_tokens=counts,
    reach_tokens=st.none() | counts,
    free_tokens=st.none() | st.floats(-1e6, 1e6),
    wait_s=times,
    slot_s=times,
    link_s=times,
    curve=st.builds(
        Curve,
        st.floats(0, 1),
        st.floats(1e-7, 1e-2),
        st.floats(0, 1e-7),
        st.floats(0, 1e-3),
        st.floats(0, 1),
    ),
)


def test_what_lies_on_the_host_comes_after_what_others_have_there_and_beside_the_wait() -> None:
    one = candidate(cached_tokens=60_000, host_tokens=20_000, link_s=0.3, wait_s=0.05)
    (line,) = lines((one,), 80_000, A, PRICES, None)
    assert (line.wait_ms, line.fetch_ms) == (pytest.approx(50.0), pytest.approx(300 + 100 - 50))
    # Those before it wait for places, too, beside it and not before it.
    (full,) = lines((one.replace(slot_s=0.2),), 80_000, A, PRICES, None)
    assert (full.wait_ms, full.fetch_ms) == (pytest.approx(200.0), pytest.approx(300 + 100 - 200))
    (late,) = lines((one.replace(wait_s=5.0),), 80_000, A, PRICES, None)
    assert (late.wait_ms, late.fetch_ms) == (pytest.approx(5000.0), 0.0)


@given(candidates, st.integers(1, 300_000), st.booleans(), st.floats(0, 5), st.floats(0, 5))
def test_the_bill_adds_up_to_the_price_that_is_decided_by(
    one: Candidate, prompt: int, at_home: bool, crowd: float, displacement: float
) -> None:
    prices = Prices(crowd=crowd, displacement=displacement)
    home = one.replica if at_home else ReplicaId("elsewhere")
    for line in lines((one,), prompt, home, prices, pulls()):
        terms = (line.wait_ms, line.fetch_ms, line.compute_ms, line.crowd_ms, line.displacement_ms)
        assert all(term >= 0.0 for term in terms)
        assert line.price_ms == pytest.approx(sum(terms) + line.move_ms + line.risk_ms)
        if line.way == "local":
            decided = local_s(one, prompt, prices, move=not at_home)
        else:
            pull = offer(one, prompt, prices, pulls())
            assert pull is not None
            decided = pull_s(one, prompt, prices, pull, move=not at_home)
        assert line.price_ms == pytest.approx(1000 * decided)


def test_each_term_of_a_local_turn() -> None:
    one = candidate(
        cached_tokens=60_000,
        host_tokens=20_000,
        in_flight=3,
        foreign=1.0,
        working_set_tokens=100_000,
        reach_tokens=110_000,
        wait_s=0.05,
        slot_s=2.0,
    )
    (line,) = lines((one,), 80_000, B, PRICES, None)
    work = 20_000 * (1e-4 + 1e-10 * 70_000)
    assert (line.replica, line.way, line.source, line.pulled_tokens) == (A, "local", None, 0)
    assert line.wait_ms == pytest.approx(2000.0)
    assert line.fetch_ms == pytest.approx(100.0)  # 20,000 × 5 µs, once there are blocks
    assert line.compute_ms == pytest.approx(10 + 1000 * work)
    assert line.crowd_ms == pytest.approx(4 * 1000 * work)
    assert line.displacement_ms == pytest.approx(2000.0 * 100 / 110)
    assert (line.move_ms, line.risk_ms) == (50.0, 0.0)


HOME = candidate(cached_tokens=60_000, in_flight=2, held=1, working_set_tokens=300_000, reach_tokens=400_000)


def test_a_session_that_leaves_pays_for_what_it_leaves_behind() -> None:
    bare, holder, home = lines(
        (candidate(B), candidate(C, cached_tokens=45_000), HOME), 80_000, A, PRICES, None
    )
    # Half of what home forgets is wanted, as its sessions fill three in four, and three turns there wait for
    # its computing.
    token_ms = 1000 * 1e-4 * 0.5 * 4
    assert bare.residue_ms == pytest.approx(60_000 * token_ms)
    assert holder.residue_ms == pytest.approx(15_000 * token_ms), "an older copy is wanted again"
    assert home.residue_ms == 0.0


def test_what_is_left_behind_costs_more_the_less_of_the_living_fits_and_is_bounded() -> None:
    priced = [
        residue_token_s(HOME.replace(working_set_tokens=living), PRICES)
        for living in (0, 200_000, 300_000, 400_000, 4_000_000)
    ]
    assert priced == pytest.approx([0.0, 0.0, 2e-4, 4e-4, 4e-4])


@pytest.mark.parametrize(
    ("home", "prices"),
    [
        (HOME.replace(reach_tokens=None), PRICES),
        (HOME.replace(working_set_tokens=200_000), PRICES),
        (HOME, Prices(displacement=0.0)),
    ],
    ids=["capacity unknown", "half of home is free of the living", "not by this policy"],
)
def test_leaving_costs_no_more_than_that_where_nobody_else_loses(home: Candidate, prices: Prices) -> None:
    assert residue_token_s(home, prices) == 0.0


def test_a_pull_leaves_as_much_behind() -> None:
    bill = lines((HOME, candidate(B)), 80_000, A, PRICES, pulls())
    assert [line.way for line in bill] == ["local", "local", "pull"]
    assert bill[1].residue_ms == bill[2].residue_ms > 0.0


@given(candidates, candidates, st.integers(1, 300_000), st.floats(0, 5))
def test_what_is_left_behind_is_in_the_bill_as_it_is_decided_by(
    home: Candidate, other: Candidate, prompt: int, displacement: float
) -> None:
    prices = Prices(displacement=displacement)
    home, other = home.replace(replica=A), other.replace(replica=B)
    residue = residue_s(other, home, residue_token_s(home, prices))
    bill = lines((home, other), prompt, A, prices, None)
    assert bill[0].residue_ms == 0.0
    assert bill[1].residue_ms == pytest.approx(1000 * residue)
    assert bill[1].price_ms == pytest.approx(1000 * (local_s(other, prompt, prices, move=True) + residue))


def test_reading_back_what_the_wait_for_prefills_outlasts_costs_nothing() -> None:
    one = candidate(cached_tokens=60_000, host_tokens=20_000, wait_s=0.3)
    assert lines((one,), 80_000, None, PRICES, None)[0].fetch_ms == 0.0


def test_a_session_that_nobody_holds_leaves_no_home() -> None:
    assert lines((candidate(),), 100, None, PRICES, None)[0].move_ms == 0.0


def test_the_last_token_is_always_computed() -> None:
    # An estimate of what is cached can exceed the prompt.
    assert local_s(candidate(cached_tokens=900), 500, PRICES, move=False) == pytest.approx(0.0101, rel=1e-3)


@given(candidates, st.integers(1000, 200_000))
def test_more_to_wait_for_more_missing_or_more_company_is_never_cheaper(one: Candidate, prompt: int) -> None:
    price = local_s(one, prompt, PRICES, move=False)
    for worse in (
        one.replace(wait_s=one.wait_s + 1),
        one.replace(slot_s=one.slot_s + 1),
        one.replace(in_flight=one.in_flight + 1),
        one.replace(working_set_tokens=one.working_set_tokens + 1000),
        one.replace(cached_tokens=max(0, one.cached_tokens - 500)),
    ):
        assert local_s(worse, prompt, PRICES, move=False) >= price - 1e-9
    assert local_s(one, prompt, PRICES, move=True) == pytest.approx(price + 0.05)


@pytest.mark.parametrize(
    ("living", "reach", "displaced"), [(0, None, 0), (0, 100, 0), (50, 100, 15), (200, 100, 30)]
)
def test_what_is_displaced_is_wanted_by_as_much_as_living_sessions_have_of_what_lies_there(
    living: int, reach: int | None, displaced: int
) -> None:
    assert displaced_tokens(candidate(working_set_tokens=living, reach_tokens=reach), 30) == displaced


def test_where_blocks_are_short_the_turn_keeps_its_share_of_them_from_all_that_wait() -> None:
    one = candidate(cached_tokens=59_999, capacity_tokens=600_000, waiting=6.0, holding_s=5.0)
    (line,) = lines((one,), 60_000, None, PRICES, None)
    assert line.crowd_ms == pytest.approx(6 * 5000 * 0.1)
    (half,) = lines((one,), 60_000, None, Prices(crowd=0.5), None)
    assert half.crowd_ms == pytest.approx(6 * 5000 * 0.05)


def test_a_turn_with_company_takes_what_its_steps_take() -> None:
    curve = CURVE.replace(shared_s=0.03)
    alone, beside = candidate(curve=curve), candidate(curve=curve, in_flight=1)
    assert expected_s(beside, 1000) == pytest.approx(expected_s(alone, 1000) + 0.03)


class TestPulls:
    def test_bring_what_the_source_has_and_the_target_has_not(self) -> None:
        pull = offer(candidate(B, cached_tokens=10_000), 80_000, PRICES, pulls())
        # 40,000 tokens of 100 kB at 10 GB/s.
        assert pull is not None
        assert (pull.source, pull.tokens, pull.chance) == (A, 40_000, 0.9)
        assert pull.seconds == pytest.approx(0.02 + 0.4)

    def test_share_both_ends(self) -> None:
        busy = pulls(sources=(Source(A, 50_000, 2, 0.9),), inbound={B: 1})
        pull = offer(candidate(B, cached_tokens=10_000), 80_000, PRICES, busy)
        assert pull is not None
        assert pull.seconds == pytest.approx(0.02 + 1.2)
        crowded = offer(candidate(B, cached_tokens=10_000), 80_000, PRICES, pulls(inbound={B: 4}))
        assert crowded is not None
        assert crowded.seconds == pytest.approx(0.02 + 2.0)

    def test_are_charged_with_what_other_pulls_on_their_path_lose(self) -> None:
        busy = pulls(sources=(Source(A, 50_000, 2, 1.0),))
        pull = offer(candidate(B, cached_tokens=10_000), 80_000, PRICES, busy)
        assert pull is not None
        assert pull.others_s == pytest.approx(2 * 0.4)
        (_, line) = lines((candidate(B, cached_tokens=10_000),), 80_000, A, PRICES, busy)
        assert line.crowd_ms == pytest.approx(800.0)

    def test_go_by_the_seed_between_strangers(self) -> None:
        pull = offer(candidate(C, cached_tokens=40_000), 80_000, PRICES, pulls())
        assert pull is not None
        assert pull.seconds == pytest.approx(0.01 + 1.0)

    def test_prefer_more_and_of_equals_the_less_busy(self) -> None:
        three = (Source(A, 50_000, 3, 0.9), Source(C, 50_000, 1, 0.9), Source(ReplicaId("d"), 40_000, 0, 0.9))
        pull = offer(candidate(B), 80_000, PRICES, pulls(sources=three))
        assert pull is not None
        assert pull.source == C

    def test_are_as_long_as_arrives_in_the_time_that_computing_takes_or_the_deadline(self) -> None:
        slow = pulls(links={(C, B): (0.0, 2e-9)}, seed=(0.0, 2e-9))
        # 5,000 tokens a second, computed in 0.4 s: the deadline of 2 s carries 10,000.
        pull = offer(candidate(B), 40_000, Prices(), slow)
        assert pull is not None
        saving = CURVE.work_s(40_000, 40_000)
        assert saving > 2.0
        assert pull.deadline_s == pytest.approx(saving)
        assert pull.tokens == int(saving / 2e-4)
        short = offer(candidate(B, cached_tokens=30_000), 40_000, Prices(), slow)
        assert short is not None
        assert (short.tokens, short.deadline_s) == (10_000 - 1, 2.0)

    def test_take_no_longer_than_the_policy_says_before_a_path_has_shown_what_it_carries(self) -> None:
        pull = offer(candidate(B), 40_000, Prices(), pulls(links={}, seed=(0.0, 2e-9)))
        assert pull is not None
        assert (pull.tokens, pull.deadline_s) == (10_000, 2.0)

    def test_wait_for_what_is_on_its_way_for_another_turn_instead_of_sending_again(self) -> None:
        coming = {B: Flight(C, 45_000, 0.3, 0.8)}
        pull = offer(
            candidate(B, cached_tokens=10_000), 80_000, PRICES, pulls(flights=coming, inbound={B: 1})
        )
        assert pull is not None
        assert (pull.source, pull.tokens, pull.seconds, pull.rides) == (C, 35_000, 0.3, True)
        assert (pull.chance, pull.others_s) == (0.8, 0.0)
        # It is there as well where nobody may be asked for more.
        assert offer(candidate(B), 80_000, PRICES, pulls(flights=coming, sources=())) is not None

    @pytest.mark.parametrize(
        ("lands", "cached"), [(20_000, 0), (45_000, 44_900)], ids=["less than half", "next to nothing"]
    )
    def test_send_for_their_own_where_what_is_on_its_way_is_little(self, lands: int, cached: int) -> None:
        coming = {B: Flight(C, lands, 0.3, 0.8)}
        pull = offer(candidate(B, cached_tokens=cached), 80_000, PRICES, pulls(flights=coming))
        assert pull is not None
        assert (pull.source, pull.rides) == (A, False)

    @pytest.mark.parametrize(
        "given",
        [
            {"targets": frozenset((A,))},
            {"sources": ()},
            {"sources": (Source(B, 50_000, 0, 0.9),)},
            {"sources": (Source(A, 511, 0, 0.9),)},
            {"seed": (9.0, 1.0), "links": {}},
        ],
        ids=["no agent there", "no source", "only itself", "too little", "too slow"],
    )
    def test_are_not_offered_where_there_is_nothing_to_gain(self, given: dict[str, Any]) -> None:
        assert offer(candidate(B), 80_000, PRICES, pulls(**given)) is None

    def test_need_half_as_much_room_again(self) -> None:
        assert offer(candidate(B, free_tokens=74_999.0), 80_000, PRICES, pulls()) is None
        assert offer(candidate(B, free_tokens=75_000.0), 80_000, PRICES, pulls()) is not None

    def test_overlap_with_waiting(self) -> None:
        pull = Pull(A, 40_000, 1.5, 2.0, 1.0)
        assert pull_s(candidate(B, wait_s=1.0), 80_000, PRICES, pull, move=False) == pytest.approx(
            pull_s(candidate(B), 80_000, PRICES, pull, move=False)
        )

    def test_are_charged_with_the_chance_that_they_fail(self) -> None:
        sure, risky = (Pull(A, 40_000, 0.5, 2.0, chance) for chance in (1.0, 0.75))
        one = candidate(B)
        failed = 2.0 + CURVE.seconds(80_000, 80_000)
        good = pull_s(one, 80_000, PRICES, sure, move=False)
        assert good == pytest.approx(0.5 + CURVE.seconds(40_000, 80_000))
        assert pull_s(one, 80_000, PRICES, risky, move=False) == pytest.approx(0.75 * good + 0.25 * failed)

    def test_stand_in_the_bill_beside_what_they_save(self) -> None:
        bill = lines((candidate(A, cached_tokens=50_000), candidate(B)), 80_000, A, PRICES, pulls())
        assert [(line.replica, line.way, line.source) for line in bill] == [
            (A, "local", None),
            (B, "local", None),
            (B, "pull", A),
        ]
        assert all(
            line.way == "local" for line in lines((candidate(B),), 80_000, A, Prices(pull=False), pulls())
        )


def test_what_is_expected_is_the_price_without_what_others_lose() -> None:
    one = candidate(in_flight=9, working_set_tokens=9, reach_tokens=3, wait_s=1.0)
    assert expected_s(one, 1000) == pytest.approx(1.0 + CURVE.seconds(1000, 1000))


def test_every_price_has_its_bounds_in_the_policy() -> None:
    assert {field.name for field in fields(Prices)} == {
        "move_s",
        "crowd",
        "displacement",
        "pull",
        "pull_least_tokens",
        "pull_deadline_s",
    }
