"""One replica as the engine keeps it."""

from router.base.ids import ReplicaId
from router.core.fleet import ReplicaSpec, Report
from router.core.health import ProbeFailed, ProbePassed, TurnFailed
from router.core.member import Member
from router.core.session import WorkingSet


def member(kv_tokens: int | None = None) -> Member:
    return Member(ReplicaSpec(ReplicaId("a"), "http://a:1", kv_tokens), 0, 0, WorkingSet())


class Turn:
    def __init__(self) -> None:
        self.done = False

    def prefilled(self) -> None:
        self.done = True


def test_a_missing_figure_is_none_and_never_zero() -> None:
    of = member()
    assert (of.capacity_tokens, of.foreign_total) == (None, None)
    of.note(Report(running=3.0, waiting=None, kv_capacity_tokens=900))
    assert (of.capacity_tokens, of.foreign_total) == (900, None)
    of.note(Report(running=3.0, waiting=2.0))
    assert (of.capacity_tokens, of.foreign_total) == (None, 5.0)


def test_the_operators_word_on_capacity_goes_before_the_replicas() -> None:
    of = member(kv_tokens=500)
    of.note(Report(kv_capacity_tokens=900))
    assert of.capacity_tokens == 500


def test_it_is_well_when_healthy_and_not_draining() -> None:
    of = member()
    assert not of.well
    of.observe(ProbePassed(), 0.0)
    assert of.well
    of.draining = True
    of.settle()
    assert not of.well
    assert not of.returning(0.0)
    assert of.describe() == "is draining"
    of.draining = False
    for at in (1.0, 2.0):
        of.observe(ProbeFailed("timed out"), at)
    assert not of.well
    assert of.describe().startswith("is down (")


def test_failures_are_asked_for_until_they_are_history() -> None:
    of = member()
    of.observe(ProbePassed(), 0.0)
    of.observe(TurnFailed("cut", decisive=False), 1.0)
    of.failing = True
    assert of.failures_lately(1.0) == 1.0
    assert of.failing
    assert of.failures_lately(1000.0) < 0.01
    assert not of.failing


def test_turns_leave_prefill_in_the_order_of_their_time() -> None:
    of = member()
    early, late = Turn(), Turn()
    of.due = [(1.0, 0, early), (2.0, 1, late)]
    of.pass_prefill(1.5)
    assert (early.done, late.done) == (True, False)
    of.pass_prefill(9.0)
    assert late.done
    assert of.due == []
