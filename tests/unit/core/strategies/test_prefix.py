import pytest

from router.core.decide import Choice
from router.core.strategies.prefix import MostCached, Params


@pytest.fixture
def choose(turn, rng):
    def run(fleet, *, params=None, session="s", opening_share=None):
        strategy = MostCached() if params is None else MostCached(params)
        choice = strategy.choose(turn(session, opening_share=opening_share), fleet, rng)
        return choice.candidate.replica, choice.reason

    return run


def test_the_replica_with_most_of_the_prompt_is_taken_and_the_prices_are_missing_tokens(
    candidate, view, turn, rng
):
    fleet = view(candidate("a", cached_tokens=400), candidate("b", cached_tokens=1100), candidate("c"))
    choice = MostCached().choose(turn(), fleet, rng)
    assert choice == Choice(fleet.candidates[1], "most cached", (600, 0, 1000))


def test_a_holder_above_the_load_bound_yields_to_the_next_best(candidate, view, choose):
    fleet = view(
        candidate("a", cached_tokens=400), candidate("b", cached_tokens=900, in_flight=20), candidate("c")
    )
    assert choose(fleet) == ("a", "next best cached")


def test_a_holder_within_either_load_bound_is_kept(candidate, view, choose):
    fleet = view(candidate("a", in_flight=0), candidate("b", cached_tokens=900, in_flight=16))
    assert choose(fleet) == ("b", "most cached")


@pytest.mark.parametrize(("cached", "expected"), [(299, "b"), (300, "a")])
def test_a_match_below_the_share_is_not_followed(candidate, view, choose, cached, expected):
    fleet = view(candidate("a", cached_tokens=cached, working_set_tokens=10), candidate("b"), home="a")
    assert choose(fleet)[0] == expected


@pytest.mark.parametrize(("cached", "expected"), [(15, "b"), (16, "a")])
def test_a_match_of_less_than_a_block_is_not_followed(candidate, view, choose, cached, expected):
    fleet = view(
        candidate("a", cached_tokens=cached, working_set_tokens=10), candidate("b"), home="a", prompt=20
    )
    assert choose(fleet)[0] == expected


def test_without_a_match_the_emptiest_is_taken(candidate, view, choose):
    fleet = view(candidate("a", working_set_tokens=10), candidate("b", in_flight=2), candidate("c"))
    assert choose(fleet) == ("c", "little cached, emptiest")


def test_the_emptiest_is_not_taken_above_the_load_bound(candidate, view, choose):
    fleet = view(candidate("a", working_set_tokens=10), candidate("b", in_flight=17))
    assert choose(fleet) == ("a", "little cached, emptiest")


def test_equal_matches_are_placed_by_working_set(candidate, view, choose):
    fleet = view(
        candidate("a", cached_tokens=500, working_set_tokens=20),
        candidate("b", cached_tokens=500, working_set_tokens=10),
        candidate("c"),
    )
    assert choose(fleet) == ("b", "most cached")


def test_shared_kv_at_a_replica_above_its_part_draws_no_new_session(candidate, view, choose):
    # Mean 15,000: above both 1.25 times and 16,384 tokens more.
    fleet = view(candidate("a", cached_tokens=900, working_set_tokens=40_000), candidate("b"))
    assert choose(fleet, opening_share=1.0) == ("b", "little cached, emptiest")
    fleet = view(candidate("a", cached_tokens=900, working_set_tokens=30_000), candidate("b"))
    assert choose(fleet, opening_share=1.0) == ("a", "most cached")


def test_a_sessions_own_kv_is_followed_however_much_lives_there(candidate, view, choose):
    at_home = view(candidate("a", cached_tokens=900, working_set_tokens=900_000), candidate("b"), home="a")
    assert choose(at_home, opening_share=1.0) == ("a", "most cached")
    elsewhere = at_home.replace(home="gone")
    assert choose(elsewhere, opening_share=0.5) == ("a", "most cached")


def test_where_home_is_lost_and_only_the_opening_is_held_the_session_is_placed(candidate, view, choose):
    fleet = view(candidate("a", cached_tokens=900, working_set_tokens=900_000), candidate("b"), home="gone")
    assert choose(fleet, opening_share=0.9) == ("b", "little cached, emptiest")


def test_a_holder_over_a_limit_is_passed_over(candidate, view, choose):
    fleet = view(candidate("a", cached_tokens=900, over="kv usage"), candidate("b"), home="a")
    assert choose(fleet) == ("b", "little cached, emptiest")


def test_without_a_session_or_a_match_the_least_loaded_is_taken(candidate, view, choose):
    fleet = view(candidate("a", cached_tokens=299, in_flight=1), candidate("b"))
    assert choose(fleet, session=None) == ("b", "little cached, least loaded")


def test_with_a_share_and_length_of_zero_no_match_at_all_is_placed_by_working_set(candidate, view, choose):
    fleet = view(candidate("a", working_set_tokens=5), candidate("b"))
    assert choose(fleet, params=Params(min_share=0.0, min_tokens=0))[0] == "b"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"relative": 0.5}, "relative is"),
        ({"spread_tokens": -1.0}, "spread_tokens is"),
        ({"min_share": 1.5}, "min_share is"),
        ({"min_tokens": -1}, "min_tokens is"),
    ],
)
def test_parameters_out_of_range_are_refused(wrong, what):
    with pytest.raises(ValueError, match=what):
        Params(**wrong)


class TestWithoutASession:
    def test_a_match_is_followed_though_its_holder_is_the_fuller(self, candidate, view, choose):
        fleet = view(candidate("a"), candidate("b", cached_tokens=900, working_set_tokens=900_000))
        assert choose(fleet, session=None) == ("b", "most cached")

    def test_a_busy_holder_yields_to_the_next_best(self, candidate, view, choose):
        fleet = view(
            candidate("a", cached_tokens=400), candidate("b", cached_tokens=900, in_flight=20), candidate("c")
        )
        assert choose(fleet, session=None) == ("a", "next best cached")

    def test_equal_holders_take_turns(self, candidate, view, turn, rng):
        fleet = view(candidate("a"), candidate("b", cached_tokens=900), candidate("c", cached_tokens=900))
        picked = {
            MostCached().choose(turn(None), fleet.replace(serial=n), rng).candidate.replica for n in range(6)
        }
        assert picked == {"b", "c"}
