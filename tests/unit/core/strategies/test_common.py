import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.base.ids import ReplicaId, SessionKey
from router.core.estimate.prefill import Curve
from router.core.request import Chain
from router.core.ring import Ring
from router.core.strategies.common import (
    beside_kin,
    bounded_owner,
    ceiling,
    emptiest,
    find,
    footprints,
    is_own,
    least_loaded,
    load,
    opening_tokens,
    within_limits,
)


def test_only_candidates_within_limits_are_eligible_and_the_reason_adds_nothing(candidate):
    a, b = candidate("a", over="in flight"), candidate("b")
    assert within_limits((a, b)) == ([b], "")


def test_limits_are_ignored_when_every_candidate_is_over_one_and_the_reason_says_so(candidate):
    both = (candidate("a", over="in flight"), candidate("b", over="kv usage"))
    assert within_limits(both) == (both, ", all over their limits")


def test_a_candidate_is_found_by_name(candidate):
    both = (candidate("a"), candidate("b"))
    assert find(both, ReplicaId("b")) is both[1]
    assert find(both, ReplicaId("c")) is None


def test_load_counts_our_turns_those_of_others_and_eight_for_a_failure_of_this_instant(candidate):
    assert load(candidate("a", in_flight=3, foreign=2.0, recent_failures=1.0)) == 13


def test_load_takes_unknown_foreign_requests_as_none(candidate):
    assert load(candidate("a", in_flight=3, foreign=None)) == 3


def test_the_tail_of_an_old_failure_weighs_nothing(candidate):
    # A count that halves every ten seconds is still above zero an hour later.
    assert load(candidate("a", recent_failures=2.0**-360)) == 0
    assert load(candidate("a", recent_failures=0.124)) == 0
    assert load(candidate("a", recent_failures=0.125)) == 1


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([10, 20, 30], 28.0),  # mean 20: 8 more is above 1.25 times
        ([100, 200, 300], 250.0),  # mean 200: 1.25 times is above 8 more
    ],
)
def test_the_ceiling_is_the_looser_of_the_relative_and_the_absolute_bound(figures, expected):
    assert ceiling(figures, 1.25, 8) == expected


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
@example([0.1] * 6)
def test_the_least_figure_is_never_above_the_ceiling(figures):
    assert min(figures) <= ceiling(figures, 1.0, 0.0)


class TestLeastLoaded:
    def test_takes_the_least_load(self, candidate, view, turn):
        fleet = view(candidate("a", in_flight=2), candidate("b", in_flight=1, working_set_tokens=9))
        assert least_loaded(turn(), fleet, fleet.candidates).replica == "b"

    def test_breaks_ties_by_working_set_then_by_placement(self, candidate, view, turn):
        fleet = view(
            candidate("a", working_set_tokens=5),
            candidate("b", working_set_tokens=4, placed_at=2.0),
            candidate("c", working_set_tokens=4, placed_at=1.0),
        )
        assert least_loaded(turn(), fleet, fleet.candidates).replica == "c"

    def test_lets_full_ties_take_turns(self, candidate, view, turn):
        fleet = view(candidate("a"), candidate("b"), candidate("c"))
        picked = [least_loaded(turn(), fleet.replace(serial=n), fleet.candidates).replica for n in range(4)]
        assert picked == ["a", "b", "c", "a"]

    def test_without_a_session_idle_replicas_take_turns_whatever_lives_there(self, candidate, view, turn):
        fleet = view(candidate("a", working_set_tokens=5), candidate("b"), candidate("c", in_flight=1))
        picked = {
            least_loaded(turn(None), fleet.replace(serial=n), fleet.candidates).replica for n in range(3)
        }
        assert picked == {"a", "b"}


class TestFootprints:
    def test_count_what_lives_there_and_what_is_on_its_way(self, candidate):
        held = footprints([candidate("a", working_set_tokens=100, pending_tokens=20), candidate("b")])
        assert held == [120, 0]

    def test_are_scaled_by_capacity_where_all_report_one(self, candidate):
        small = candidate("a", working_set_tokens=100, capacity_tokens=500)
        large = candidate("b", working_set_tokens=300, capacity_tokens=1500)
        assert footprints([small, large]) == [200, 200]

    @pytest.mark.parametrize("unknown", [None, 0])
    def test_take_capacities_as_equal_where_one_is_unknown(self, candidate, unknown):
        told = candidate("a", working_set_tokens=100, capacity_tokens=500)
        silent = candidate("b", working_set_tokens=300, capacity_tokens=unknown)
        assert footprints([told, silent]) == [100, 300]

    def test_of_one_that_is_much_slower_count_as_many_times(self, candidate):
        fleet = [
            candidate("a", working_set_tokens=100, curve=Curve(0.01, 1e-4, 0.0, 1e-6)),
            candidate("b", working_set_tokens=100, curve=Curve(0.09, 1.4e-4, 0.0, 1e-6)),
            candidate("c", working_set_tokens=100, curve=Curve(0.01, 4e-4, 0.0, 1e-6)),
        ]
        assert footprints(fleet) == [100, 100, pytest.approx(400)]

    def test_a_failing_replica_counts_no_less_than_the_mean_of_the_sound(self, candidate):
        fleet = [
            candidate("a", working_set_tokens=100),
            candidate("b", recent_failures=3.0),
            candidate("c", working_set_tokens=300),
            candidate("d", working_set_tokens=900, recent_failures=3.0),
        ]
        assert footprints(fleet) == [100, 200, 300, 900]

    def test_a_failure_longer_ago_than_ten_seconds_is_forgiven(self, candidate):
        assert footprints([candidate("a", working_set_tokens=100), candidate("b", recent_failures=0.49)]) == [
            100,
            0,
        ]

    def test_stand_as_they_are_where_all_fail(self, candidate):
        fleet = [
            candidate("a", recent_failures=1.0),
            candidate("b", working_set_tokens=9, recent_failures=1.0),
        ]
        assert footprints(fleet) == [0, 9]


def test_the_emptiest_is_told_by_footprint_then_load_then_placement(candidate):
    full = candidate("a", working_set_tokens=10)
    busy = candidate("b", in_flight=1)
    recent = candidate("c", placed_at=2.0)
    rested = candidate("d", placed_at=1.0)
    assert emptiest([full, busy, recent, rested]) is rested
    assert emptiest([full, busy, recent]) is recent
    assert emptiest([full, busy]) is busy


class TestBoundedOwner:
    def test_is_the_owner_within_the_bound(self, candidate, view, owned_by):
        fleet = view(candidate("a"), candidate("b"))
        key = SessionKey(owned_by(fleet.ring, "b"))
        assert bounded_owner(key, fleet, fleet.candidates, [0, 8], 1.25, 8) == (
            fleet.candidates[1],
            "owner on the ring",
        )

    def test_is_the_next_where_the_owner_is_above_the_bound(self, candidate, view, owned_by):
        fleet = view(candidate("a"), candidate("b"))
        key = SessionKey(owned_by(fleet.ring, "b"))
        assert bounded_owner(key, fleet, fleet.candidates, [0, 17], 1.25, 8) == (
            fleet.candidates[0],
            "next on the ring",
        )

    def test_is_the_next_where_the_owner_is_no_candidate(self, candidate, view, owned_by):
        ring = Ring([ReplicaId("a"), ReplicaId("b")], 16)
        fleet = view(candidate("a"), ring=ring)
        key = SessionKey(owned_by(ring, "b"))
        assert bounded_owner(key, fleet, fleet.candidates, [0], 1.25, 8) == (
            fleet.candidates[0],
            "next on the ring",
        )

    def test_is_nobody_where_the_ring_knows_none_of_the_candidates(self, candidate, view):
        fleet = view(candidate("a"), ring=Ring([ReplicaId("z")], 16))
        assert bounded_owner(SessionKey("s"), fleet, fleet.candidates, [0], 1.25, 8) == (None, "")

    @given(
        figures=st.lists(st.floats(0, 1e12), min_size=1, max_size=6),
        key=st.text(max_size=8),
        relative=st.floats(1.0, 3.0),
        absolute=st.floats(0.0, 1e6),
    )
    @example(figures=[0.1] * 3, key="k", relative=1.0, absolute=0.0)
    def test_is_the_first_in_the_order_of_the_ring_within_the_bound(
        self, candidate, view, figures, key, relative, absolute
    ):
        fleet = view(*[candidate(f"r{n}") for n in range(len(figures))])
        chosen, reason = bounded_owner(SessionKey(key), fleet, fleet.candidates, figures, relative, absolute)
        mean = sum(figures) / len(figures)
        bound = max(relative * mean, mean + absolute, min(figures))
        within = {c.replica for c, figure in zip(fleet.candidates, figures, strict=True) if figure <= bound}
        order = list(fleet.ring.order(key))
        assert chosen.replica == next(replica for replica in order if replica in within)
        assert reason == ("owner on the ring" if chosen.replica == order[0] else "next on the ring")

    @given(st.lists(st.integers(1, 50), max_size=60))
    def test_leaves_nobody_more_than_one_placement_above_the_bound(self, candidate, view, sizes):
        fleet = view(*[candidate(f"r{n}") for n in range(5)])
        held = [0.0] * 5
        for number, size in enumerate(sizes):
            mean = sum(held) / 5
            chosen, _ = bounded_owner(
                SessionKey(f"session-{number}"), fleet, fleet.candidates, held, 1.25, 20.0
            )
            place = fleet.candidates.index(chosen)
            assert held[place] <= max(1.25 * mean, mean + 20.0) + 1e-9
            held[place] += size

    def test_leaves_who_is_no_candidate_out_of_the_mean(self, candidate, view, owned_by):
        ring = Ring([ReplicaId(n) for n in "abcd"], 16)
        fleet = view(candidate("b"), candidate("c"), candidate("d"), ring=ring)
        key = SessionKey(owned_by(ring, "b"))
        # Mean 5: with a fourth at nothing it would be less, and 5 too many.
        assert bounded_owner(key, fleet, fleet.candidates, [5, 5, 5], 1.0, 0.0)[0].replica == "b"


def test_the_opening_is_measured_in_tokens(turn):
    assert opening_tokens(turn(opening_share=0.25), 800) == 200


def test_a_prompt_without_segments_has_no_opening(turn):
    assert opening_tokens(turn(), 800) == 0


def test_an_empty_text_has_no_opening(turn):
    assert opening_tokens(turn().replace(chain=Chain((1,), (0,), 1)), 0) == 0


def test_kv_is_the_sessions_own_at_home_and_wherever_more_than_the_opening_lies(candidate):
    assert is_own(candidate("a"), ReplicaId("a"), 200.0)
    assert is_own(candidate("b", cached_tokens=202), ReplicaId("a"), 200.0)
    assert not is_own(candidate("b", cached_tokens=201), ReplicaId("a"), 200.0)


class TestBesideKin:
    """Much of a session's beginning lies on some replicas only."""

    @pytest.fixture
    def find_kin(self, turn):
        def run(fleet, *, figures=None, bound=100.0, opening_share=0.5):
            held = figures or [0.0] * len(fleet.candidates)
            found = beside_kin(turn(opening_share=opening_share), fleet, fleet.candidates, held, bound)
            return found and (found[0].replica, found[1])

        return run

    def test_a_sub_agent_is_drawn_by_whatever_is_worth_it(self, candidate, view, find_kin):
        parent = ReplicaId("c")
        for tokens, expected in ((511, None), (512, ("b", "beside its parent"))):
            fleet = view(candidate("a"), candidate("b", cached_tokens=tokens), candidate("c"), prompt=9000)
            assert find_kin(fleet.replace(parent=parent)) == expected

    def test_a_fork_is_drawn_by_its_opening_and_by_no_less(self, candidate, view, find_kin):
        for tokens, expected in ((4498, None), (4500, ("b", "where its opening lies"))):
            fleet = view(candidate("a"), candidate("b", cached_tokens=tokens), prompt=9000)
            assert find_kin(fleet) == expected

    def test_a_short_opening_draws_nobody(self, candidate, view, find_kin):
        for tokens, expected in ((2047, None), (2048, ("b", "where its opening lies"))):
            fleet = view(candidate("a"), candidate("b", cached_tokens=tokens), prompt=2100)
            assert find_kin(fleet) == expected

    def test_what_all_have_draws_nobody(self, candidate, view, find_kin):
        fleet = view(candidate("a", cached_tokens=8500), candidate("b", cached_tokens=9000), prompt=9000)
        assert find_kin(fleet) is None

    def test_who_is_above_the_bound_or_busy_is_passed_over(self, candidate, view, find_kin):
        fleet = view(candidate("a"), candidate("b", cached_tokens=9000), candidate("c"), prompt=9000)
        assert find_kin(fleet, figures=[0.0, 101.0, 0.0]) is None
        assert find_kin(fleet, figures=[0.0, 100.0, 0.0])[0] == "b"
        busy = candidate("b", cached_tokens=9000, in_flight=13)
        assert find_kin(view(candidate("a"), busy, candidate("c"), prompt=9000)) is None

    def test_whoever_has_more_to_do_first_than_it_would_spare_is_passed_over(self, candidate, view, find_kin):
        for waiting, drawn in ((9500, True), (9501, False)):
            holder = candidate("b", cached_tokens=9000, pending_tokens=500, ahead_tokens=waiting - 500)
            fleet = view(candidate("a", pending_tokens=500), holder, prompt=9500)
            assert (find_kin(fleet) is not None) is drawn

    def test_of_several_that_hold_most_the_first_on_the_ring_is_taken(self, candidate, view, turn, find_kin):
        most = [candidate(name, cached_tokens=tokens) for name, tokens in (("a", 9000), ("b", 8200))]
        fleet = view(*most, candidate("c", cached_tokens=8000), candidate("d"), prompt=9000)
        first = next(r for r in fleet.ring.order(turn().session) if r in ("a", "b"))
        assert find_kin(fleet)[0] == first

    def test_a_holder_that_is_not_on_the_ring_is_better_than_none(self, candidate, view, find_kin):
        fleet = view(candidate("a"), candidate("b", cached_tokens=9000), prompt=9000)
        assert find_kin(fleet.replace(ring=Ring([ReplicaId("a")], 16)))[0] == "b"
