"""Who is in the fleet, in which role, and on which ring."""

import pytest

from router.base.ids import ReplicaId
from router.core.claims import Pins
from router.core.fleet import ModelCard, ReplicaSpec, Role
from router.core.health import ProbePassed
from router.core.learned import Learned
from router.core.member import Member
from router.core.members import Members
from router.core.residency import Residency
from router.core.session import WorkingSet
from tests.support.turns import A, B, C

P, D = ReplicaId("p"), ReplicaId("d")


def member(name: ReplicaId, role: Role = Role.BOTH, *, two_way: bool = False, epoch: int = 0) -> Member:
    spec = ReplicaSpec(name, f"http://{name}:8000", role=role, two_way=two_way)
    made = Member(spec, 0, epoch, WorkingSet(), Learned(8000.0), Pins())
    made.observe(ProbePassed(False), 0.0)
    return made


def fleet(*members: Member, vnodes: tuple[int, ...] = (160,)) -> Members:
    made = Members(vnodes)
    made.arrange(members)
    return made


def test_an_empty_fleet_has_empty_rings() -> None:
    of = Members((40, 160))
    assert (of.ordered, of.answering, of.prefills) == ((), (), ())
    assert list(of.ring(40).order("s")) == list(of.ring(160).order("s")) == []


def test_each_is_found_by_name_and_all_are_in_the_order_of_their_names() -> None:
    b, a = member(B), member(A)
    of = fleet(b, a)
    assert of.ordered == (a, b)
    assert tuple(of.values()) == (b, a)
    assert of.get(A) is of[A] is a
    assert of.get(C) is None
    assert (A in of, C in of) == (True, False)
    with pytest.raises(KeyError):
        of[C]


def test_roles_say_who_answers_who_prefills_and_who_fetches() -> None:
    two_way = ReplicaId("w")
    of = fleet(
        member(A),
        member(P, Role.PREFILL),
        member(two_way, Role.PREFILL, two_way=True),
        member(D, Role.DECODE),
    )
    assert [each.id for each in of.answering] == [A, D]
    assert [each.id for each in of.prefills] == [P, two_way]
    assert (of.decodes, of.two_way) == ({D}, {two_way})
    assert set(of.prefill_ring.order("s")) == {P, two_way}
    assert set(of.ring(160).order("s")) == {A, D}


def test_who_leaves_owns_nothing_and_rings_are_those_asked_for() -> None:
    leaves = member(A)
    leaves.leaving = True
    of = fleet(leaves, member(B))
    assert list(of.ring(160).order("s")) == [B]
    of.set_rings((40,))
    assert len(of.ring(40)) == 1
    with pytest.raises(KeyError):
        of.ring(160)
    of.arrange((member(B), member(C)))
    assert len(of.ring(40)) == 2


def test_one_that_left_came_back_or_began_another_life_is_not_the_one_that_was() -> None:
    was = member(A)
    of = fleet(was)
    assert of.has(was, 0)
    assert not of.has(was, 1)
    of.arrange((member(A, epoch=0),))
    assert not of.has(was, 0)


def test_open_is_who_is_there_and_takes_turns() -> None:
    one, other = member(A), member(B)
    of = fleet(one)
    assert (of.is_open(one), of.is_open(other)) == (True, False)
    one.drained = True
    one.settle()
    assert not of.is_open(one)


def test_idle_is_who_answers_with_nothing_to_prefill() -> None:
    one = member(A)
    of = fleet(one, member(P, Role.PREFILL))
    assert of.has_idle()
    one.pending_tokens = 5
    assert not of.has_idle()


def test_peers_share_a_model_and_followed_are_those_with_events() -> None:
    one, two, other = member(A), member(B), member(C)
    for each, model in ((one, "m"), (two, "m"), (other, "n")):
        each.cards = (ModelCard(model, b"{}"),)
        each.models = frozenset({model})
    of = fleet(one, two, other)
    assert of.peers(one) == [one, two]
    assert of.followed == 0
    two.residency = Residency()
    of.count_followed()
    assert of.followed == 1
