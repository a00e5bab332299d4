from collections import Counter
from random import Random

from router.core.decide import Choice
from router.core.strategies.two_choices import TwoChoices


def test_of_two_replicas_the_less_loaded_is_always_taken(candidate, view, turn):
    fleet = view(candidate("a", in_flight=2), candidate("b", in_flight=1))
    for seed in range(50):
        choice = TwoChoices().choose(turn(), fleet, Random(seed))
        assert (choice.candidate.replica, choice.reason, choice.prices) == ("b", "less loaded of two", None)


def test_the_most_loaded_of_several_is_never_taken(candidate, view, turn, rng):
    fleet = view(*[candidate(n, in_flight=i) for i, n in enumerate("abcd")])
    picked = Counter(TwoChoices().choose(turn(), fleet, rng).candidate.replica for _ in range(1200))
    # Of the six pairs a wins three, b two, c one.
    assert picked["d"] == 0
    assert 500 < picked["a"] < 700
    assert 300 < picked["b"] < 500
    assert 100 < picked["c"] < 300


def test_equals_are_drawn_evenly(candidate, view, turn, rng):
    fleet = view(*[candidate(n) for n in "abc"])
    picked = Counter(TwoChoices().choose(turn(), fleet, rng).candidate.replica for _ in range(900))
    assert all(240 < picked[n] < 360 for n in "abc")


def test_one_replica_alone_is_taken(candidate, view, turn, rng):
    fleet = view(candidate("a"), candidate("b", over="in flight"))
    assert TwoChoices().choose(turn(), fleet, rng) == Choice(fleet.candidates[0], "the only one", None)
