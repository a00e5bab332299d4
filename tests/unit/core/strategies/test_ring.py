from router.base.ids import ReplicaId, SessionKey
from router.core.ring import Ring
from router.core.strategies.ring import RingOnly


def test_a_session_goes_to_its_owner_whatever_the_load(candidate, view, turn, owned_by, rng):
    fleet = view(candidate("a"), candidate("b", in_flight=500), candidate("c", cached_tokens=900))
    choice = RingOnly().choose(turn(owned_by(fleet.ring, "b")), fleet, rng)
    assert (choice.candidate.replica, choice.reason, choice.prices) == ("b", "owner on the ring", None)


def test_the_sessions_of_an_owner_that_is_no_candidate_go_to_their_next_and_not_all_to_one(
    candidate, view, turn, rng
):
    names = [ReplicaId(n) for n in "abcd"]
    ring = Ring(names, 160)
    fleet = view(*[candidate(n) for n in "bcd"], ring=ring)
    keys = [SessionKey(f"k{i}") for i in range(400)]
    orphans = [k for k in keys if next(ring.order(k)) == "a"]
    choices = {k: RingOnly().choose(turn(k), fleet, rng) for k in orphans}
    assert {c.reason for c in choices.values()} == {"next on the ring"}
    for key, choice in choices.items():
        assert choice.candidate.replica == list(ring.order(key))[1]
    assert {c.candidate.replica for c in choices.values()} == {"b", "c", "d"}


def test_an_owner_over_a_limit_is_passed_over(candidate, view, turn, owned_by, rng):
    fleet = view(candidate("a"), candidate("b", over="in flight"))
    choice = RingOnly().choose(turn(owned_by(fleet.ring, "b")), fleet, rng)
    assert (choice.candidate.replica, choice.reason) == ("a", "next on the ring")


def test_with_all_over_their_limits_the_owner_is_kept(candidate, view, turn, owned_by, rng):
    fleet = view(candidate("a", over="in flight"), candidate("b", over="in flight"))
    choice = RingOnly().choose(turn(owned_by(fleet.ring, "b")), fleet, rng)
    assert (choice.candidate.replica, choice.reason) == ("b", "owner on the ring, all over their limits")


def test_without_a_session_the_least_loaded_is_taken(candidate, view, turn, rng):
    fleet = view(candidate("a", in_flight=1), candidate("b"))
    choice = RingOnly().choose(turn(None), fleet, rng)
    assert (choice.candidate.replica, choice.reason) == ("b", "no session, least loaded")


def test_without_a_candidate_on_the_ring_the_least_loaded_is_taken(candidate, view, turn, rng):
    fleet = view(candidate("a", in_flight=1), candidate("b"), ring=Ring([ReplicaId("z")], 16))
    choice = RingOnly().choose(turn(), fleet, rng)
    assert (choice.candidate.replica, choice.reason) == ("b", "none on the ring, least loaded")
