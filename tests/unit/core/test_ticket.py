"""A turn in a replica's hands: each moment counts once, in order."""

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId
from router.core.claims import Pins
from router.core.decide import Decision, Kind
from router.core.fleet import ReplicaSpec
from router.core.learned import Learned
from router.core.member import Member
from router.core.model import Model
from router.core.observe import Outcome, Usage
from router.core.request import EMPTY_CHAIN, Turn
from router.core.session import WorkingSet
from router.core.ticket import Ticket


class Books:
    def __init__(self) -> None:
        self.told: list[object] = []

    def accepted(self, ticket: Ticket, now: float) -> None:
        self.told.append(("accepted", now))

    def ended(self, ticket: Ticket, outcome: Outcome, now: float, usage: Usage | None) -> None:
        self.told.append((outcome, now))


@pytest.fixture
def books() -> Books:
    return Books()


def ticket(books: Books, *, prompt: int = 100, cached: int = 40, computes: bool = True) -> Ticket:
    replica = ReplicaId("a")
    turn = Turn("/v1/x", "m", OPEN_TENANT, None, "", EMPTY_CHAIN, computes=computes)
    decision = Decision(replica, Kind.PASS, "", "p", (), None, None, prompt, cached, 0, 10.0)
    member = Member(ReplicaSpec(replica, "http://a:1"), 0, 0, WorkingSet(), Learned(8000.0), Pins())
    of = Ticket(books, turn, decision, member, Model("m"), 0)
    member.take(of, prompt, of.kv_tokens, of.missing, 10.0)
    return of


def test_the_first_of_each_moment_counts(books: Books) -> None:
    of = ticket(books)
    of.first_byte(11.0)
    of.first_byte(12.0)
    of.end(Outcome.COMPLETED, 13.0)
    of.end(Outcome.CANCELLED, 14.0)
    of.first_byte(15.0)
    assert books.told == [("accepted", 11.0), (Outcome.COMPLETED, 13.0)]
    assert (of.ttft_s, of.member.pending_tokens) == (1.0, 0)


def test_the_time_to_the_first_byte_runs_from_the_first_attempt(books: Books) -> None:
    of = ticket(books)
    assert of.began == 10.0
    of.began = 7.0
    of.first_byte(11.0)
    assert of.ttft_s == 4.0


def test_an_end_without_a_first_byte_gives_back_what_was_pending(books: Books) -> None:
    of = ticket(books)
    of.end(Outcome.DIED, 11.0)
    assert books.told == [(Outcome.DIED, 11.0)]
    assert (of.ttft_s, of.member.pending_tokens) == (None, 0)


@pytest.mark.parametrize(
    ("prompt", "cached", "computes", "missing"), [(100, 40, True, 60), (40, 100, True, 0), (100, 0, False, 0)]
)
def test_what_is_missing_is_never_negative_and_nothing_where_nothing_is_computed(
    books: Books, prompt: int, cached: int, computes: bool, missing: int
) -> None:
    assert ticket(books, prompt=prompt, cached=cached, computes=computes).missing == missing
