"""One replica as the engine keeps it."""

import pytest

from router.base.ids import ReplicaId
from router.core.claims import Pins
from router.core.fleet import ReplicaSpec, Report
from router.core.health import ProbeFailed, ProbePassed, TurnFailed
from router.core.learned import Learned
from router.core.member import Member
from router.core.session import WorkingSet


def member(kv_tokens: int | None = None) -> Member:
    return Member(
        ReplicaSpec(ReplicaId("a"), "http://a:1", kv_tokens), 0, 0, WorkingSet(), Learned(8000.0), Pins()
    )


class Turn:
    def __init__(self) -> None:
        self.done = False

    def prefilled(self, now: float) -> None:
        self.done = True


def test_a_missing_figure_is_none_and_never_zero() -> None:
    of = member()
    assert (of.capacity_tokens, of.foreign, of.kv_usage) == (None, None, None)
    of.note(Report(running=3.0, waiting=None, kv_capacity_tokens=900), 1.0)
    assert (of.capacity_tokens, of.foreign, of.kv_usage) == (900, None, None)
    of.note(Report(running=3.0, waiting=2.0, kv_usage=0.25), 2.0)
    assert (of.capacity_tokens, of.foreign, of.kv_usage) == (None, 5.0, 0.25)


def test_requests_of_others_are_those_that_were_not_ours_at_the_report() -> None:
    of = member()
    of.in_flight = 4
    of.note(Report(running=5.0, waiting=1.0), 1.0)
    assert of.foreign == 2.0
    of.in_flight = 0
    assert of.foreign == 2.0
    of.in_flight = 9  # some of ours are still on their way there
    of.note(Report(running=5.0, waiting=1.0), 2.0)
    assert of.foreign == 0.0


def test_load_that_five_looks_have_not_brought_anew_is_not_known() -> None:
    of = member()
    of.note(Report(running=1.0, waiting=0.0, kv_usage=0.99, kv_capacity_tokens=900), 0.0)
    for _ in range(5):
        of.looked_at()
        assert (of.kv_usage, of.foreign) == (0.99, 1.0)
    of.looked_at()
    assert (of.kv_usage, of.foreign, of.capacity_tokens) == (None, None, 900)
    of.note(Report(running=1.0, waiting=0.0, kv_usage=0.5, kv_capacity_tokens=900), 9.0)
    assert (of.kv_usage, of.foreign) == (0.5, 1.0)


def test_another_process_is_believed_anew_and_its_load_is_not_known() -> None:
    of = member()
    of.note(Report(running=1.0, waiting=0.0, kv_usage=0.99), 0.0)
    for _ in range(40):
        of.delivery.observe(3000, 0)
    of.begin_again(7, 3, WorkingSet(), Learned(8000.0), Pins())
    assert (of.epoch, of.shelf, of.restarts) == (7, 3, 1)
    assert (of.kv_usage, of.foreign, of.delivery.trust, of.delivery.share) == (None, None, 1.0, 1.0)


def test_another_process_has_none_of_the_turns_of_the_last() -> None:
    of = member()
    of.take(Turn(), 9000, 9000, 8000, 0.0)
    of.due = [(1.0, 0, Turn())]
    of.arriving_tokens = 5
    of.begin_again(7, 3, WorkingSet(), Learned(8000.0), Pins())
    assert (of.in_flight, of.kv_tokens, of.pending_tokens, of.arriving_tokens) == (0, 0, 0, 0)
    assert (of.prefilling, of.due, of.wait_s(0.0)) == ({}, [], 0.0)


def test_what_is_kept_for_claims_takes_room_between_reports_and_is_counted_once() -> None:
    of = member(kv_tokens=10_000)
    of.note(Report(running=0.0, waiting=0.0, kv_usage=0.0), 0.0)
    assert of.free_tokens() == 10_000
    of.take(Turn(), 4000, 4000, 0, 0.0)
    assert of.free_tokens() == 6000
    of.in_flight, of.kv_tokens = 0, 0  # it is answered
    of.pins.tokens = 4016
    assert of.free_tokens() == 5984
    of.note(Report(running=0.0, waiting=0.0, kv_usage=0.4016), 1.0)
    assert of.free_tokens() == 5984
    of.note(Report(running=1.0, waiting=0.0, kv_usage=0.6016), 2.0)
    assert of.free_tokens() == pytest.approx(3984)  # somebody else's turn
    of.pins.tokens = 0
    assert of.free_tokens() == pytest.approx(8000)
    of.begin_again(7, 3, WorkingSet(), Learned(8000.0), Pins())
    of.note(Report(running=0.0, waiting=0.0, kv_usage=0.0), 3.0)
    assert of.free_tokens() == 10_000


def test_what_is_kept_for_claims_says_nothing_of_what_turns_hold() -> None:
    of = member(kv_tokens=10_000)
    of.pins.tokens = 4000
    of.take(Turn(), 2000, 2000, 0, 0.0)
    of.note(Report(running=1.0, waiting=0.0, kv_usage=0.6), 1.0)
    assert of.held_share == pytest.approx(1.0)
    assert of.free_tokens() == pytest.approx(4000)


def test_who_passes_the_first_takes_nothing_from_what_is_done_of_it() -> None:
    of = member()
    first, second = Turn(), Turn()
    of.take(first, 8000, 8000, 8000, 0.0)  # a second
    of.take(second, 800, 800, 800, 0.0)
    of.has_prefilled(second, 800, 0.5)
    assert of.wait_s(0.5) == pytest.approx(0.5, rel=0.01)
    of.take(second, 800, 800, 800, 0.6)
    of.has_prefilled(first, 8000, 1.0)
    assert of.wait_s(1.0) == pytest.approx(0.1, rel=0.01)
    assert of.wait_s(1.05) == pytest.approx(0.05, rel=0.01)


def test_without_an_agent_its_host_holds_what_it_reports_itself() -> None:
    of = member()
    of.configure(ReplicaSpec(ReplicaId("a"), "http://a:1", kv_agent="a:7710"))
    of.note(Report(kv_capacity_tokens=900, host_kv_tokens=100), 1.0)
    of.has_agent_for(5000)
    assert of.reach_tokens == 5900
    of.configure(ReplicaSpec(ReplicaId("a"), "http://a:1"))
    assert (of.agent_tokens, of.reach_tokens) == (None, 1000)


@pytest.mark.parametrize(
    ("one", "other", "shared"), [("m", "m n", True), ("m", "n", False), ("m", None, True), (None, None, True)]
)
def test_replicas_share_what_both_serve_and_one_that_has_not_said_may_serve_any(
    one: str | None, other: str | None, shared: bool
) -> None:
    first, second = member(), member()
    first.models = frozenset(one.split()) if one is not None else None
    second.models = frozenset(other.split()) if other is not None else None
    assert first.shares_a_model_with(second) is second.shares_a_model_with(first) is shared


def test_the_operators_word_on_capacity_goes_before_the_replicas() -> None:
    of = member(kv_tokens=500)
    of.note(Report(kv_capacity_tokens=900), 1.0)
    assert of.capacity_tokens == 500
    of.configure(ReplicaSpec(ReplicaId("a"), "http://a:1"))
    assert of.capacity_tokens == 900


def test_it_is_well_when_healthy_and_not_draining() -> None:
    of = member()
    assert (of.well, of.takes_turns()) == (False, False)
    of.observe(ProbePassed(), 0.0)
    assert (of.well, of.takes_turns()) == (True, True)
    of.drained = True
    of.settle()
    assert not of.well
    assert (of.returning(0.0), of.takes_turns()) == (False, False)
    assert of.describe() == "is draining"
    of.drained = False
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


def test_who_waits_once_waits_for_a_step_and_who_waits_again_has_no_place() -> None:
    of = member(9000)
    busy = Report(running=4.0, waiting=1.0, kv_usage=0.1)
    seats = []
    for now, report in enumerate(
        (
            busy,
            Report(running=4.0, waiting=0.0, kv_usage=0.1),
            busy,
            # Whoever waits for KV does not wait for a place.
            Report(running=4.0, waiting=1.0, kv_usage=0.9),
            busy,
            Report(running=4.0, waiting=1.0),
            busy,
            busy,
            busy,
            Report(running=4.0, waiting=0.0, kv_usage=0.1),
        )
    ):
        of.note(report, float(now))
        seats.append(of.seats)
    assert seats == [None] * 7 + [4.0, 4.0, None]
    of.note(busy, 10.0)
    of.begin_again(7, 3, WorkingSet(), Learned(8000.0), Pins())
    of.note(busy, 11.0)
    assert of.seats is None


def test_what_lies_on_its_host_is_brought_back_one_after_the_other() -> None:
    of, turns = member(), [Turn() for _ in range(3)]
    assert of.link_s(5.0) == 0.0
    of.reloads(turns[0], 0.4, 0.0, 10.0)
    of.reloads(turns[1], 0.2, 0.0, 10.1)
    assert of.link_s(10.1) == pytest.approx(0.5)
    assert of.link_s(11.0) == 0.0
    # It begins once there is a place for it.
    of.reloads(turns[2], 0.1, 2.0, 12.0)
    assert of.link_s(12.0) == pytest.approx(2.1)
    of.begin_again(1, 1, WorkingSet(), Learned(8000.0), Pins())
    assert (of.link_s(12.0), of.reloading) == (0.0, {})


def test_what_came_sooner_from_its_host_than_expected_holds_up_nobody() -> None:
    of, turns = member(), [Turn() for _ in range(3)]
    of.reloads(turns[0], 4.0, 0.0, 10.0)
    of.reloads(turns[1], 0.2, 3.0, 10.0)
    of.reloads(turns[2], 0.1, 0.0, 10.0)
    assert of.link_s(10.0) == pytest.approx(4.3)
    # The first has its token: the second is brought once it has its place, in 2.5 s, and the third after it.
    of.has_reloaded(turns[0], 10.5)
    assert of.link_s(10.5) == pytest.approx(2.8)
    of.has_reloaded(turns[0], 10.5)
    of.has_reloaded(turns[1], 11.0)
    assert of.link_s(11.0) == pytest.approx(0.1)
    of.has_reloaded(turns[2], 11.0)
    assert (of.link_s(11.0), of.reloading) == (0.0, {})


def test_what_came_later_from_its_host_than_expected_is_no_longer_expected_of_it() -> None:
    of, turn = member(), Turn()
    of.reloads(turn, 0.5, 0.0, 10.0)
    of.has_reloaded(turn, 12.0)
    assert of.link_s(12.0) == 0.0


def test_before_a_turn_goes_what_was_sent_and_what_others_have_in_its_queue() -> None:
    of = member()
    assert of.before_s(1.0) == 0.0
    of.take(Turn(), 2000, 2000, 800, 1.0)
    of.strangers_waiting = 3.0
    of.missing_tokens = 1600.0
    # At 8,000 tokens a second, of the first of which as much is done as time has passed.
    assert of.before_s(1.05) == pytest.approx(0.05 + 3 * 0.2, rel=0.01)
