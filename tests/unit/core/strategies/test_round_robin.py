from router.core.decide import Choice
from router.core.strategies.round_robin import RoundRobin


def picked(fleet, turn, rng, count):
    strategy = RoundRobin()
    return [strategy.choose(turn(), fleet.replace(serial=n), rng).candidate.replica for n in range(count)]


def test_replicas_take_turns_by_name(candidate, view, turn, rng):
    fleet = view(candidate("a"), candidate("b", in_flight=9), candidate("c"))
    assert picked(fleet, turn, rng, 5) == ["a", "b", "c", "a", "b"]


def test_a_replica_over_a_limit_loses_its_turn_to_the_others_alike(candidate, view, turn, rng):
    fleet = view(candidate("a"), candidate("b", over="in flight"), candidate("c"))
    assert picked(fleet, turn, rng, 4) == ["a", "c", "a", "c"]


def test_the_reason_says_so_and_nothing_is_priced(candidate, view, turn, rng):
    fleet = view(candidate("a"))
    assert RoundRobin().choose(turn(), fleet, rng) == Choice(fleet.candidates[0], "next in turn", None)
