import pytest

from router.base.ids import ReplicaId
from router.core.decide import Choice
from router.core.ring import Ring
from router.core.strategies.bounded_ring import BoundedRing, Params


@pytest.fixture
def key(candidate, view, owned_by):
    """A session that b owns, among a and b."""
    return owned_by(view(candidate("a"), candidate("b")).ring, "b")


def test_a_session_stays_with_its_owner_while_that_is_within_either_bound(candidate, view, turn, key, rng):
    fleet = view(candidate("a"), candidate("b", in_flight=16))  # mean 8: 8 more is allowed
    choice = BoundedRing().choose(turn(key), fleet, rng)
    assert (choice.candidate.replica, choice.reason) == ("b", "owner on the ring")
    assert choice.prices == (0, 16)


def test_an_owner_above_both_bounds_is_passed_over(candidate, view, turn, key, rng):
    fleet = view(candidate("a"), candidate("b", in_flight=17))
    choice = BoundedRing().choose(turn(key), fleet, rng)
    assert (choice.candidate.replica, choice.reason) == ("a", "next on the ring")


def test_a_session_is_back_with_its_owner_once_that_is_less_busy(candidate, view, turn, key, rng):
    strategy = BoundedRing()
    busy = view(candidate("a"), candidate("b", in_flight=40))
    assert strategy.choose(turn(key), busy, rng).candidate.replica == "a"
    calm = view(candidate("a", in_flight=3), candidate("b", in_flight=9), home="a")
    assert strategy.choose(turn(key), calm, rng).candidate.replica == "b"


def test_a_failing_replica_does_not_draw_the_sessions_of_busy_owners(candidate, view, turn, key, rng):
    fleet = view(candidate("a", recent_failures=4.0), candidate("b", in_flight=40))
    assert BoundedRing().choose(turn(key), fleet, rng).candidate.replica == "b"


def test_the_bounds_are_parameters(candidate, view, turn, key, rng):
    fleet = view(candidate("a"), candidate("b", in_flight=4))
    tight = BoundedRing(Params(relative=1.0, absolute=1))
    assert tight.choose(turn(key), fleet, rng).candidate.replica == "a"
    with pytest.raises(ValueError, match="relative is 0"):
        Params(relative=0.5)


def test_without_a_session_the_least_loaded_is_taken(candidate, view, turn, rng):
    fleet = view(candidate("a", in_flight=1), candidate("b"))
    choice = BoundedRing().choose(turn(None), fleet, rng)
    assert choice == Choice(fleet.candidates[1], "no session, least loaded", (1, 0))


def test_without_a_candidate_on_the_ring_the_least_loaded_is_taken(candidate, view, turn, rng):
    fleet = view(candidate("a", in_flight=1), candidate("b"), ring=Ring([ReplicaId("z")], 16))
    choice = BoundedRing().choose(turn(), fleet, rng)
    assert choice == Choice(fleet.candidates[1], "none on the ring, least loaded", (1, 0))
