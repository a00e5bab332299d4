"""Health as a conversation: an event goes in at a time, and the changes of state that it makes come out."""

from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.health import (
    Event,
    HealthTracker,
    ProbeFailed,
    ProbePassed,
    Restarted,
    State,
    Transition,
    TurnFailed,
    TurnSucceeded,
)

STARTING, HEALTHY, PROBATION, DOWN = State.STARTING, State.HEALTHY, State.PROBATION, State.DOWN

REFUSED = TurnFailed("connection refused", decisive=True)
ERROR_500 = TurnFailed("status 500", decisive=False)
SPARED_500 = TurnFailed("status 500", decisive=False, spared=True)
PROBE_FAILED = ProbeFailed("timeout")


class Script:
    """Feeds events and checks what comes of each, top to bottom."""

    def __init__(self, tracker: HealthTracker) -> None:
        self.tracker = tracker
        self._made: list[Transition] = []
        self._before = tracker.state

    def given(self, event: Event, *, at: float) -> Self:
        self._before = self.tracker.state
        self._made = self.tracker.observe(event, at)
        return self

    def expect(self, *after: State, why: str | None = None) -> Self:
        """The states entered, in order, each from the one before it; `why` of the last."""
        befores = [self._before, *after[:-1]] if after else []
        assert [(change.before, change.after) for change in self._made] == list(
            zip(befores, after, strict=True)
        )
        assert self.tracker.state is (after[-1] if after else self._before)
        if why is not None:
            assert self.tracker.why == why
            assert not self._made or self._made[-1].why == why
        return self

    def admits(self, in_flight: int, *, at: float) -> Self:
        assert self.tracker.admits(in_flight, at)
        return self

    def declines(self, in_flight: int, *, at: float) -> Self:
        assert not self.tracker.admits(in_flight, at)
        return self


def script(tracker: HealthTracker | None = None) -> Script:
    return Script(HealthTracker() if tracker is None else tracker)


def healthy(tracker: HealthTracker | None = None) -> Script:
    return script(tracker).given(ProbePassed(), at=0.0).expect(HEALTHY)


def test_a_replica_never_seen_well_gets_no_traffic_until_a_probe_passes() -> None:
    (
        script()
        .expect(why="not probed yet")
        .declines(0, at=0.0)
        .given(ProbeFailed("connection refused"), at=0.0)
        .expect(why="probe failed: connection refused")
        .given(TurnSucceeded(), at=1.0)
        .expect()
        .given(REFUSED, at=1.0)
        .expect()
        .given(Restarted(), at=2.0)
        .expect()
        .declines(0, at=2.0)
        .given(ProbePassed(), at=3.0)
        .expect(HEALTHY, why="first probe passed")
        .admits(10_000, at=3.0)
    )


def test_failed_probes_in_a_row_bring_it_down_and_a_passed_one_between_does_not_count() -> None:
    (
        healthy()
        .given(PROBE_FAILED, at=1.0)
        .expect()
        .given(ProbePassed(), at=2.0)
        .expect()
        .given(PROBE_FAILED, at=3.0)
        .expect()
        .given(TurnSucceeded(), at=2.95)
        .expect()
        .given(PROBE_FAILED, at=4.0)
        .expect(DOWN, why="probes failed in a row (2): timeout")
        .declines(0, at=4.0)
    )


def test_failed_turns_in_a_row_bring_it_down_however_well_its_probes_pass() -> None:
    (
        healthy()
        .given(ERROR_500, at=1.0)
        .expect()
        .given(ERROR_500, at=1.1)
        .expect()
        .given(TurnSucceeded(), at=1.2)
        .expect()
        .given(ERROR_500, at=1.3)
        .expect()
        .given(ERROR_500, at=1.4)
        .expect()
        .given(ProbePassed(), at=1.5)
        .expect()
        .given(ERROR_500, at=1.6)
        .expect(DOWN, why="turns failed in a row (3): status 500")
    )


def test_one_refused_connection_is_enough() -> None:
    healthy().given(REFUSED, at=1.0).expect(DOWN, why="turn failed: connection refused")


def test_it_comes_back_on_a_passed_probe_but_not_before_the_ejection_is_over() -> None:
    (
        healthy()
        .given(REFUSED, at=1.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.9)
        .expect()
        .given(TurnSucceeded(), at=2.95)  # a stream that outlived the outage
        .expect()
        .given(ProbePassed(), at=3.0)
        .expect(PROBATION, why="probe passed")
    )


def test_failures_while_it_is_down_belong_to_the_same_outage() -> None:
    (
        healthy()
        .given(REFUSED, at=1.0)
        .expect(DOWN)
        .given(REFUSED, at=2.5)
        .expect(why="turn failed: connection refused")
        .given(ProbeFailed("still loading"), at=2.8)
        .expect(why="probe failed: still loading")
        .given(ProbePassed(), at=3.0)
        .expect(PROBATION)
    )


def test_a_returning_replica_is_given_one_turn_then_two_then_four() -> None:
    returning = healthy(HealthTracker(return_s=12.0)).given(REFUSED, at=0.0).expect(DOWN)
    returning.given(ProbePassed(), at=10.0).expect(PROBATION)
    for since, allowance in ((0.0, 1), (1.9, 1), (2.0, 2), (4.0, 4), (6.0, 8), (8.0, 16), (11.9, 32)):
        returning.admits(allowance - 1, at=10.0 + since).declines(allowance, at=10.0 + since)
    returning.admits(10_000, at=22.0)
    returning.admits(0, at=9.0).declines(1, at=9.0)  # a clock behind


def test_a_return_without_failure_ends_in_health() -> None:
    (
        healthy()
        .given(REFUSED, at=0.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.0)
        .expect(PROBATION)
        .given(TurnSucceeded(), at=5.0)
        .expect()
        .given(ProbePassed(), at=11.9)
        .expect()
        .given(TurnSucceeded(), at=12.0)
        .expect(HEALTHY, why="well for 10 s")
    )


def test_a_return_that_takes_no_time_needs_no_allowance() -> None:
    (
        healthy(HealthTracker(return_s=0.0))
        .given(REFUSED, at=0.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.0)
        .expect(PROBATION)
        .admits(10_000, at=2.0)
        .given(TurnSucceeded(), at=2.0)
        .expect(HEALTHY)
    )


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (REFUSED, "turn failed while returning: connection refused"),
        (PROBE_FAILED, "probe failed while returning: timeout"),
    ],
)
def test_a_refused_connection_or_a_failed_probe_while_it_returns_brings_it_down_again(
    failure: Event, why: str
) -> None:
    (
        healthy()
        .given(REFUSED, at=0.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.0)
        .expect(PROBATION)
        .given(failure, at=3.0)
        .expect(DOWN, why=why)
    )


def test_errors_bring_a_returning_replica_down_by_as_many_in_a_row_as_a_healthy_one() -> None:
    (
        healthy()
        .given(REFUSED, at=0.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.0)
        .expect(PROBATION)
        .given(ERROR_500, at=3.0)
        .expect()
        .given(ERROR_500, at=3.1)
        .expect()
        .given(TurnSucceeded(), at=3.2)
        .expect()
        .given(ERROR_500, at=3.3)
        .expect()
        .given(ERROR_500, at=3.4)
        .expect()
        .given(ERROR_500, at=3.5)
        .expect(DOWN, why="turns failed in a row (3): status 500")
    )


def test_with_too_few_others_it_is_kept_which_is_said_once_until_turns_succeed_again() -> None:
    kept = "turns failed in a row (3): status 500; kept, as too few others are left"
    conversation = healthy().given(SPARED_500, at=1.0).expect().given(SPARED_500, at=1.1).expect()
    for at in (1.2, 2.2):
        conversation.given(SPARED_500, at=at).expect(HEALTHY, why=kept)
        conversation.given(SPARED_500, at=at + 0.1).expect(why=kept)
        conversation.given(TurnSucceeded(), at=at + 0.2).expect(why="turns succeed again")
        conversation.given(SPARED_500, at=at + 0.3).expect().given(SPARED_500, at=at + 0.4).expect()
    # Once there are others again, the next failure is one too many.
    conversation.given(SPARED_500, at=4.0).expect(HEALTHY)
    conversation.given(ERROR_500, at=4.1).expect(DOWN, why="turns failed in a row (4): status 500")


def test_a_refused_connection_spares_nobody() -> None:
    healthy().given(TurnFailed("connection refused", decisive=True, spared=True), at=1.0).expect(DOWN)


def test_one_that_is_needed_comes_back_on_a_passed_probe_before_its_ejection_is_over() -> None:
    (
        healthy()
        .given(REFUSED, at=1.0)
        .expect(DOWN)
        .given(ProbePassed(), at=1.5)
        .expect()
        .given(ProbePassed(needed=True), at=1.6)
        .expect(PROBATION, why="probe passed, and no other is left")
        .admits(0, at=1.6)
        .declines(1, at=1.6)
    )


def test_a_failure_right_after_the_return_counts_as_the_first_of_a_healthy_replica() -> None:
    (
        healthy()
        .given(REFUSED, at=0.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.0)
        .expect(PROBATION)
        .given(ERROR_500, at=12.0)
        .expect(HEALTHY)
        .given(REFUSED, at=12.0)
        .expect(DOWN)
        .given(ProbePassed(), at=16.0)
        .expect(PROBATION)
        .given(REFUSED, at=26.0)
        .expect(HEALTHY, DOWN, why="turn failed: connection refused")
    )


def test_each_ejection_soon_after_a_return_is_twice_as_long_up_to_the_most() -> None:
    flapping = healthy(HealthTracker(eject_s=2.0, eject_max_s=10.0))
    now = 0.0
    for ejection_s in (2.0, 4.0, 8.0, 10.0, 10.0):
        flapping.given(REFUSED, at=now).expect(DOWN)
        flapping.given(ProbePassed(), at=now + ejection_s - 0.01).expect()
        now += ejection_s
        flapping.given(ProbePassed(), at=now).expect(PROBATION)


def test_after_a_while_of_health_an_ejection_is_short_again() -> None:
    def second_ejection_after(well_s: float) -> Script:
        return (
            healthy(HealthTracker(eject_s=2.0, eject_max_s=60.0))
            .given(REFUSED, at=0.0)
            .expect(DOWN)
            .given(ProbePassed(), at=2.0)
            .expect(PROBATION)
            .given(ProbePassed(), at=12.0)
            .expect(HEALTHY)
            .given(REFUSED, at=12.0 + well_s)
            .expect(DOWN)
        )

    second_ejection_after(59.0).given(ProbePassed(), at=71.0 + 3.9).expect()
    second_ejection_after(60.0).given(ProbePassed(), at=72.0 + 2.0).expect(PROBATION)


def test_a_restart_lifts_the_ejection_but_only_a_probe_brings_it_back() -> None:
    (
        healthy()
        .given(REFUSED, at=1.0)
        .expect(DOWN)
        .given(Restarted(), at=1.5)
        .expect(why="turn failed: connection refused")
        .declines(0, at=1.5)
        .given(ProbePassed(), at=1.6)
        .expect(PROBATION)
    )


def test_a_restarted_process_does_not_answer_for_the_failures_of_the_one_before() -> None:
    (
        healthy()
        .given(ERROR_500, at=1.0)
        .expect()
        .given(ERROR_500, at=1.0)
        .expect()
        .given(PROBE_FAILED, at=1.0)
        .expect()
        .given(Restarted(), at=2.0)
        .expect()
        .given(ERROR_500, at=3.0)
        .expect()
        .given(PROBE_FAILED, at=3.0)
        .expect()
    )


def test_a_restart_while_it_returns_starts_the_return_again() -> None:
    (
        healthy(HealthTracker(return_s=12.0))
        .given(REFUSED, at=0.0)
        .expect(DOWN)
        .given(ProbePassed(), at=2.0)
        .expect(PROBATION)
        .admits(7, at=9.0)
        .given(Restarted(), at=9.0)
        .expect()
        .admits(0, at=9.0)
        .declines(1, at=9.0)
        .given(ProbePassed(), at=20.9)
        .expect()
        .given(ProbePassed(), at=21.0)
        .expect(HEALTHY)
    )


def test_good_news_from_before_the_outage_does_not_bring_it_back() -> None:
    (
        healthy(HealthTracker(eject_s=0.0))
        .given(REFUSED, at=5.0)
        .expect(DOWN)
        .given(ProbePassed(), at=4.9)
        .expect()
        .given(ProbePassed(), at=5.0)
        .expect(PROBATION)
    )


def test_a_failure_from_before_the_return_does_not_end_it_but_counts_among_the_recent() -> None:
    conversation = (
        healthy()
        .given(REFUSED, at=1.0)
        .expect(DOWN)
        .given(ProbePassed(), at=4.0)
        .expect(PROBATION)
        .given(ERROR_500, at=3.9)
        .expect()
    )
    assert conversation.tracker.recent_failures(3.9) > 1.7


def test_recent_failures_halve_every_ten_seconds() -> None:
    tracker = HealthTracker()
    assert tracker.recent_failures(0.0) == 0.0
    tracker.observe(ERROR_500, 0.0)
    tracker.observe(REFUSED, 0.0)
    assert tracker.recent_failures(0.0) == 2.0
    assert tracker.recent_failures(10.0) == 1.0
    tracker.observe(ERROR_500, 10.0)
    assert tracker.recent_failures(20.0) == 1.0
    assert tracker.recent_failures(1e9) < 1e-9


def test_only_failed_turns_count_among_the_recent_failures() -> None:
    tracker = HealthTracker()
    for event in (ProbePassed(), TurnSucceeded(), PROBE_FAILED, Restarted()):
        tracker.observe(event, 1.0)
    assert tracker.recent_failures(1.0) == 0.0


def test_a_late_failure_does_not_refresh_the_earlier_ones() -> None:
    tracker = HealthTracker()
    tracker.observe(ERROR_500, 20.0)
    tracker.observe(ERROR_500, 5.0)
    assert tracker.recent_failures(20.0) == 2.0
    assert tracker.recent_failures(30.0) == 1.0


EVENTS: list[Event] = [
    ProbePassed(),
    ProbePassed(needed=True),
    PROBE_FAILED,
    TurnSucceeded(),
    ERROR_500,
    SPARED_500,
    REFUSED,
    Restarted(),
]
LEGAL = {
    (STARTING, HEALTHY),
    (HEALTHY, DOWN),
    (DOWN, PROBATION),
    (PROBATION, HEALTHY),
    (PROBATION, DOWN),
}


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(-20.0, 30.0)), max_size=80))
def test_whatever_comes_in_whatever_order_the_answers_tell_the_whole_story(
    conversation: list[tuple[Event, float]],
) -> None:
    tracker = HealthTracker()
    now, told, back_at = 0.0, STARTING, float("-inf")
    for event, passed in conversation:
        now += passed
        for change in tracker.observe(event, now):
            assert change.before is told
            if change.before is change.after:
                assert event == SPARED_500
                assert told in (HEALTHY, PROBATION)
            else:
                assert (change.before, change.after) in LEGAL
            assert change.why
            told = change.after
            if change.after is DOWN:
                back_at = now + 2.0
            if change.before is DOWN:
                assert event == ProbePassed(needed=True) or (event == ProbePassed() and now >= back_at)
        if event == Restarted():
            back_at = float("-inf")
        assert tracker.state is told
        assert tracker.admits(0, now) == (told in (HEALTHY, PROBATION))
        assert 0.0 <= tracker.recent_failures(now) <= len(conversation)
