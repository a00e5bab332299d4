import pytest

from router.base.ids import ReplicaId
from router.core.decide import Pulls, Source
from router.core.prices import Prices
from router.core.ring import Ring
from router.core.strategies.params import PricedParams
from router.core.strategies.priced import Priced


@pytest.fixture
def choose(turn, rng):
    def run(fleet, *, params=None, session="s", opening_share=None):
        strategy = Priced() if params is None else Priced(params)
        choice = strategy.choose(turn(session, opening_share=opening_share), fleet, rng)
        return choice.candidate.replica, choice.reason

    return run


class TestANewSession:
    def test_goes_to_its_owner_whatever_others_have_cached_or_in_flight(
        self, candidate, view, choose, owned_by
    ):
        fleet = view(candidate("a", cached_tokens=900), candidate("b", in_flight=30), candidate("c"))
        assert choose(fleet, session=owned_by(fleet.ring, "b")) == ("b", "owner on the ring")

    @pytest.mark.parametrize(
        ("owner_tokens", "expected"),
        [
            (100_000, ("b", "owner on the ring")),  # mean 50,000 and 50,000 more
            (100_002, ("a", "next on the ring")),
        ],
    )
    def test_passes_over_an_owner_above_both_bounds_of_the_working_set(
        self, candidate, view, choose, owned_by, owner_tokens, expected
    ):
        fleet = view(candidate("a"), candidate("b", working_set_tokens=owner_tokens))
        assert choose(fleet, session=owned_by(fleet.ring, "b")) == expected

    def test_allows_a_tenth_above_the_mean_of_large_working_sets(self, candidate, view, choose, owned_by):
        fleet = view(candidate("a", working_set_tokens=900_000), candidate("b", working_set_tokens=1_100_000))
        assert choose(fleet, session=owned_by(fleet.ring, "b")) == ("b", "owner on the ring")
        fuller = view(
            candidate("a", working_set_tokens=890_000), candidate("b", working_set_tokens=1_110_000)
        )
        assert choose(fuller, session=owned_by(fuller.ring, "b")) == ("a", "next on the ring")

    def test_measures_working_sets_against_capacity(self, candidate, view, choose, owned_by):
        fleet = view(
            candidate("a", working_set_tokens=500_000, capacity_tokens=1_000_000),
            candidate("b", working_set_tokens=1_500_000, capacity_tokens=3_000_000),
        )
        assert choose(fleet, session=owned_by(fleet.ring, "b")) == ("b", "owner on the ring")

    def test_counts_prompts_on_their_way_to_the_owner(self, candidate, view, choose, owned_by):
        fleet = view(candidate("a"), candidate("b", pending_tokens=120_000))
        assert choose(fleet, session=owned_by(fleet.ring, "b")) == ("a", "next on the ring")

    def test_is_not_drawn_to_a_replica_that_is_empty_because_it_fails(
        self, candidate, view, choose, owned_by
    ):
        fleet = view(
            candidate("a", working_set_tokens=900_000),
            candidate("b", working_set_tokens=900_000),
            candidate("c", recent_failures=2.0),
        )
        assert choose(fleet, session=owned_by(fleet.ring, "a")) == ("a", "owner on the ring")

    def test_takes_its_bounds_from_the_parameters(self, candidate, view, choose, owned_by):
        fleet = view(candidate("a"), candidate("b", working_set_tokens=1000))
        tight = PricedParams(relative=1.0, absolute=100)
        assert choose(fleet, params=tight, session=owned_by(fleet.ring, "b"))[0] == "a"
        with pytest.raises(ValueError, match="absolute is"):
            PricedParams(absolute=-1)

    def test_without_an_id_or_prompt_goes_to_the_least_loaded(self, candidate, view, choose):
        fleet = view(candidate("a", in_flight=1), candidate("b"))
        assert choose(fleet, session=None) == ("b", "no session, least loaded")

    def test_goes_to_the_emptiest_where_no_candidate_is_on_the_ring(self, candidate, view, choose):
        fleet = view(candidate("a", working_set_tokens=1), candidate("b"), ring=Ring([ReplicaId("z")], 16))
        assert choose(fleet) == ("b", "none on the ring, emptiest")


class TestALaterTurn:
    def test_goes_home_though_home_is_fuller_and_another_has_as_much(self, candidate, view, choose):
        fleet = view(
            candidate("a", cached_tokens=900, in_flight=2, working_set_tokens=900_000),
            candidate("b", cached_tokens=900),
            home="a",
        )
        assert choose(fleet) == ("a", "home")

    def test_leaves_home_where_waiting_there_takes_longer_than_computing_elsewhere(
        self, candidate, view, choose
    ):
        def fleet(wait_s):
            return view(candidate("a", cached_tokens=900, wait_s=wait_s), candidate("b"), home="a")

        # 900 tokens at 8,000 a second are 112 ms, and leaving costs 50.
        assert choose(fleet(0.15)) == ("a", "home")
        assert choose(fleet(0.18)) == ("b", "cheaper than home by 17 ms")

    def test_stays_the_longer_the_more_leaving_costs(self, candidate, view, choose):
        fleet = view(candidate("a", cached_tokens=900, wait_s=0.5), candidate("b"), home="a")
        assert choose(fleet)[0] == "b"
        assert choose(fleet, params=PricedParams(prices=Prices(move_s=0.5)))[0] == "a"

    def test_stays_where_what_it_would_leave_behind_keeps_the_place_of_what_is_wanted(
        self, candidate, view, choose
    ):
        def fleet(living, elsewhere=0):
            home = candidate(
                "a", cached_tokens=800, wait_s=0.4, working_set_tokens=living, reach_tokens=10_000
            )
            return view(home, candidate("b", cached_tokens=elsewhere), home="a")

        # Computing and leaving take 162 ms elsewhere; waiting, computing and displacing 463 at home. To
        # compute what lies there would take 100.
        strict = PricedParams(prices=Prices(displacement=4.0))
        assert choose(fleet(10_000))[0] == "b"
        assert choose(fleet(10_000), params=strict)[0] == "a"
        assert choose(fleet(10_000, elsewhere=700), params=strict)[0] == "b"
        assert choose(fleet(5_000), params=strict)[0] == "b"

    def test_counts_what_the_turns_elsewhere_lose_by_it(self, candidate, view, choose):
        fleet = view(candidate("a", cached_tokens=900, wait_s=0.3), candidate("b", in_flight=2), home="a")
        assert choose(fleet)[0] == "a"
        assert choose(fleet, params=PricedParams(prices=Prices(crowd=0.0)))[0] == "b"

    def test_does_not_go_to_a_replica_that_fails_however_idle(self, candidate, view, choose):
        fleet = view(
            candidate("a", cached_tokens=900, wait_s=5.0), candidate("b", recent_failures=1.0), home="a"
        )
        assert choose(fleet) == ("a", "home")

    def test_does_not_go_to_a_replica_over_a_limit(self, candidate, view, choose):
        fleet = view(
            candidate("a", cached_tokens=900, wait_s=5.0), candidate("b", over="in flight"), home="a"
        )
        assert choose(fleet) == ("a", "home")

    def test_leaves_a_home_that_is_over_a_limit_for_the_replica_with_most_of_it(
        self, candidate, view, choose
    ):
        fleet = view(
            candidate("a", cached_tokens=900, over="in flight"),
            candidate("b", cached_tokens=600),
            candidate("c", cached_tokens=700),
            home="a",
        )
        assert choose(fleet, opening_share=0.1) == ("c", "home over a limit, most cached")

    def test_is_placed_again_where_nobody_else_holds_more_than_half(self, candidate, view, choose, owned_by):
        ring = Ring([ReplicaId(n) for n in "abc"], 16)
        fleet = view(candidate("b", cached_tokens=500), candidate("c"), home="a", ring=ring)
        assert choose(fleet, session=owned_by(ring, "c")) == ("c", "home not available, owner on the ring")

    def test_does_not_follow_a_shared_opening_however_long(self, candidate, view, choose, owned_by):
        ring = Ring([ReplicaId(n) for n in "abc"], 16)
        fleet = view(candidate("b", cached_tokens=900), candidate("c"), home="a", ring=ring)
        key = owned_by(ring, "c")
        assert choose(fleet, session=key, opening_share=0.9)[0] == "c"
        assert choose(fleet, session=key, opening_share=0.8)[0] == "b"

    def test_takes_the_less_loaded_of_equal_holders(self, candidate, view, choose):
        fleet = view(
            candidate("b", cached_tokens=900, in_flight=3),
            candidate("c", cached_tokens=900, in_flight=1),
            home="a",
        )
        assert choose(fleet) == ("c", "home not available, most cached")

    def test_goes_home_where_all_are_over_their_limits(self, candidate, view, choose):
        fleet = view(candidate("a", over="in flight"), candidate("b", over="in flight"), home="a")
        assert choose(fleet) == ("a", "home, all over their limits")


class TestPulling:
    @staticmethod
    def pulls(sources, byte_s=1e-9, **given):
        values = {
            "sources": tuple(Source(ReplicaId(name), tokens, 0, 1.0) for name, tokens in sources.items()),
            "targets": frozenset(ReplicaId(name) for name in "abc"),
            "inbound": {},
            "links": {},
            "seed": (0.01, byte_s),
            "token_bytes": 1000.0,
        }
        return Pulls(**(values | given))

    def test_a_turn_leaves_a_busy_home_with_its_kv(self, candidate, view, turn, rng):
        fleet = view(
            candidate("a", cached_tokens=90_000, wait_s=3.0), candidate("b"), home="a", prompt=100_000
        )
        strategy = Priced()
        assert strategy.choose(turn(), fleet, rng).candidate.replica == "a"
        choice = strategy.choose(turn(), fleet.replace(pulls=self.pulls({"a": 90_000})), rng)
        assert (choice.candidate.replica, choice.pull.source, choice.pull.tokens) == ("b", "a", 90_000)

    def test_a_pull_that_takes_longer_than_computing_is_not_made(self, candidate, view, turn, rng):
        fleet = view(
            candidate("a", cached_tokens=90_000, wait_s=3.0), candidate("b"), home="a", prompt=100_000
        )
        slow = fleet.replace(pulls=self.pulls({"a": 90_000}, byte_s=1e-6))
        choice = Priced().choose(turn(), slow, rng)
        assert (choice.candidate.replica, choice.pull) == ("a", None)

    def test_a_session_whose_home_is_drained_takes_its_kv_along(self, candidate, view, turn, rng, owned_by):
        ring = Ring([ReplicaId(n) for n in "abc"], 16)
        fleet = view(candidate("b"), candidate("c"), home="a", ring=ring, prompt=100_000)
        asked = turn(owned_by(ring, "c"))
        choice = Priced().choose(asked, fleet.replace(pulls=self.pulls({"a": 90_000})), rng)
        assert (choice.candidate.replica, choice.pull.source) == ("c", "a")

    def test_the_policy_may_do_without(self, candidate, view, turn, rng):
        fleet = view(candidate("b"), home="a", prompt=100_000).replace(pulls=self.pulls({"a": 90_000}))
        assert Priced(PricedParams(prices=Prices(pull=False))).choose(turn(), fleet, rng).pull is None


def test_the_bill_of_a_choice_can_be_made_from_it(candidate, view, turn, rng):
    choice = Priced().choose(turn(), view(candidate("a"), candidate("b"), home="a"), rng)
    assert choice.price_list == Prices()


class TestATurnWithoutASession:
    @pytest.mark.parametrize(
        ("cached", "expected"),
        [(500, ("a", "no session, least loaded")), (501, ("b", "no session, most cached"))],
    )
    def test_follows_what_is_more_than_half_of_its_prompt(self, candidate, view, choose, cached, expected):
        fleet = view(candidate("a"), candidate("b", cached_tokens=cached, in_flight=2))
        assert choose(fleet, session=None) == expected

    def test_does_not_follow_it_to_a_busy_replica(self, candidate, view, choose):
        fleet = view(candidate("a"), candidate("b", cached_tokens=900, in_flight=16), candidate("c"))
        assert choose(fleet, session=None) == ("a", "no session, least loaded")
        # Mean 5: 8 more are allowed.
        fleet = view(candidate("a"), candidate("b", cached_tokens=900, in_flight=12), candidate("c"))
        assert choose(fleet, session=None) == ("b", "no session, most cached")

    def test_takes_turns_among_equal_holders(self, candidate, view, turn, rng):
        fleet = view(candidate("a"), candidate("b", cached_tokens=900), candidate("c", cached_tokens=900))
        picked = {
            Priced().choose(turn(None), fleet.replace(serial=n), rng).candidate.replica for n in range(6)
        }
        assert picked == {"b", "c"}
