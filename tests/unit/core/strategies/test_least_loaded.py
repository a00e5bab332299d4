from router.core.decide import Choice
from router.core.strategies.least_loaded import LeastLoaded


def test_the_least_loaded_is_taken_and_the_prices_are_loads(candidate, view, turn, rng):
    fleet = view(candidate("a", in_flight=2), candidate("b", foreign=1.0), candidate("c", in_flight=3))
    assert LeastLoaded().choose(turn(), fleet, rng) == Choice(fleet.candidates[1], "least loaded", (2, 1, 3))


def test_requests_of_others_count(candidate, view, turn, rng):
    fleet = view(candidate("a", in_flight=1, foreign=9.0), candidate("b", in_flight=2, foreign=0.0))
    assert LeastLoaded().choose(turn(), fleet, rng).candidate.replica == "b"


def test_a_replica_that_refuses_at_once_does_not_look_idle(candidate, view, turn, rng):
    fleet = view(candidate("a", recent_failures=2.0), candidate("b", in_flight=12))
    assert LeastLoaded().choose(turn(), fleet, rng).candidate.replica == "b"


def test_a_replica_over_a_limit_is_passed_over_though_least_loaded(candidate, view, turn, rng):
    fleet = view(candidate("a", over="kv usage"), candidate("b", in_flight=5))
    assert LeastLoaded().choose(turn(), fleet, rng).candidate.replica == "b"
