"""What another engine tells of its turns is known here, where it is of the same process."""

import pytest

from router.base.ids import OPEN_TENANT, SessionKey
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import Report
from router.core.heard import HeardResponse, HeardTurn
from tests.support.turns import A, B, C, chain, engine, turn


def hearing(started: float | None = 1000.0) -> Engine:
    of = engine("a", "b")
    for name in (A, B):
        of.report(name, Report(start_time=started, kv_capacity_tokens=100_000, host_kv_tokens=100_000), 0.0)
    return of


def heard(
    replica=B, started: float | None = 1000.0, session: str | None = "s", *, last: bool = False
) -> HeardTurn:
    key = SessionKey(session) if session is not None else None
    return HeardTurn(
        replica, started, OPEN_TENANT, key, "x", "m", chain(1, 2).hashes, chain(1, 2).ends, 2000, 100, last
    )


def test_a_session_is_at_home_where_another_engine_sent_it_with_its_reply() -> None:
    of = hearing()
    assert of.hearing.hear_turn(heard(), 1.0)
    decision = of.decide(turn("s", 1, 2, 3), 2.0)
    assert (decision.kind, decision.replica, decision.cached_tokens) == (Kind.HOME, B, 2100)


def test_a_prompt_without_a_session_lies_on_device_and_host_all_the_same() -> None:
    of = hearing()
    assert of.hearing.hear_turn(heard(session=None), 1.0)
    held = {candidate.replica: candidate for candidate in of.decide(turn("new", 1, 2, 3), 2.0).candidates}
    assert held[B].cached_tokens > 0 == held[A].cached_tokens
    assert held[B].host_tokens == 0
    assert of.session_count() == 0


def test_a_session_that_has_ended_elsewhere_is_forgotten() -> None:
    of = hearing()
    of.hearing.hear_turn(heard(), 1.0)
    assert of.hearing.hear_turn(heard(last=True), 2.0)
    assert of.session_count() == 0


@pytest.mark.parametrize(
    ("replica", "ours", "theirs"),
    [(C, 1000.0, 1000.0), (B, 1000.0, 1002.0), (B, None, 1000.0), (B, 1000.0, None)],
)
def test_what_is_of_a_replica_that_is_unknown_or_another_process_changes_nothing(
    replica, ours, theirs
) -> None:
    of = hearing(ours)
    assert not of.hearing.hear_turn(heard(replica, theirs), 1.0)
    response = HeardResponse(replica, theirs, OPEN_TENANT, "resp_1", SessionKey("s"), "m", 2)
    assert not of.hearing.hear_response(response)
    assert of.session_count() == 0
    assert of.decide(turn("t", 1, response_id="resp_1"), 2.0).reason != "holds the response"


def test_one_that_tells_no_start_time_to_either_is_the_same() -> None:
    of = hearing(None)
    assert of.hearing.start_time(B) is None
    assert of.hearing.hear_turn(heard(started=None), 1.0)


def test_a_response_is_a_pin_here_too() -> None:
    of = hearing()
    assert of.hearing.start_time(B) == 1000.0
    assert of.hearing.hear_response(HeardResponse(B, 1000.4, OPEN_TENANT, "resp_1", SessionKey("s"), "m", 2))
    decision = of.decide(turn("t", 1, response_id="resp_1"), 2.0)
    assert (decision.replica, decision.reason) == (B, "holds the response")
