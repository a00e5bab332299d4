"""A turn's prompt in a prefill replica's hands: counted once, uncounted once."""

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId
from router.core.claims import Pins
from router.core.decide import Decision, Kind
from router.core.fleet import ReplicaSpec, Role
from router.core.learned import Learned
from router.core.leg import Leg
from router.core.member import Member
from router.core.model import Model
from router.core.observe import Outcome, Usage
from router.core.pairing import Pairing, prices_of
from router.core.plan import PairRules
from router.core.request import EMPTY_CHAIN, Turn
from router.core.session import WorkingSet
from router.core.ticket import Ticket

P, D = ReplicaId("p"), ReplicaId("d")


class Books:
    def __init__(self) -> None:
        self.told: list[tuple[Outcome, float, Usage | None]] = []

    def accepted(self, ticket: Ticket, now: float) -> None: ...

    def ended(self, ticket: Ticket, outcome: Outcome, now: float, usage: Usage | None) -> None: ...

    def leg_ended(self, leg: Leg, outcome: Outcome, now: float, usage: Usage | None) -> None:
        self.told.append((outcome, now, usage))


@pytest.fixture
def books() -> Books:
    return Books()


def leg(books: Books, *, prompt: int = 100, cached: int = 40) -> Leg:
    turn = Turn("/v1/x", "m", OPEN_TENANT, None, "", EMPTY_CHAIN)
    pairing = Pairing(P, None, cached, 1.0, (), prompt, prices_of(PairRules()), None, frozenset({D}))
    decision = Decision(D, Kind.PAIR, "", "p", (), None, None, prompt, cached, 0, 10.0, pair=pairing)
    answers, prefills = (
        Member(ReplicaSpec(name, f"http://{name}:1", role=role), 0, 0, WorkingSet(), Learned(8000.0), Pins())
        for name, role in ((D, Role.DECODE), (P, Role.PREFILL))
    )
    of = Leg(books, Ticket(books, turn, decision, answers, Model("m"), 0), pairing, prefills, None, 0, 10.0)
    prefills.take(of, prompt, prompt, of.missing, 10.0)
    return of


def test_only_the_first_end_counts_and_gives_back_what_was_pending(books: Books) -> None:
    of = leg(books)
    assert of.member.pending_tokens == of.missing == 60
    usage = Usage(100, 1, 40)
    of.end(Outcome.COMPLETED, 11.0, usage)
    of.end(Outcome.CANCELLED, 12.0)
    assert books.told == [(Outcome.COMPLETED, 11.0, usage)]
    assert (of.member.pending_tokens, of.missing) == (0, 0)


def test_the_last_token_is_always_computed(books: Books) -> None:
    assert leg(books, prompt=100, cached=100).missing == 1


def test_a_leg_of_an_earlier_life_takes_nothing_from_the_next_one(books: Books) -> None:
    of = leg(books)
    of.member.begin_again(1, 1, WorkingSet(), Learned(8000.0), Pins())
    assert not of.of_this_life
    of.end(Outcome.DIED, 11.0)
    assert of.member.pending_tokens == 0
    assert books.told == [(Outcome.DIED, 11.0, None)]
