"""What agents say that they hold."""

from router.base.ids import ReplicaId, SessionKey
from router.core.holdings import AgentReport, Holdings

A = ReplicaId("a")
S, T = SessionKey("s"), SessionKey("t")


def test_one_that_was_never_heard_of_is_absent() -> None:
    holdings = Holdings()
    assert not holdings.is_up(A)
    assert holdings.tokens(A, S) is None
    assert (holdings.all_tokens(A), holdings.capacity_tokens(A), holdings.sessions(A)) == (0, None, 0)


def test_changes_are_taken_in_and_a_complete_report_replaces_all() -> None:
    holdings = Holdings()
    holdings.report(A, AgentReport(True, ((S, 100), (T, 200)), (), 300, 5000))
    holdings.report(A, AgentReport(False, ((S, 160),), (T,), 160, 5000))
    assert holdings.is_up(A)
    assert (holdings.tokens(A, S), holdings.tokens(A, T)) == (160, None)
    assert (holdings.all_tokens(A), holdings.capacity_tokens(A), holdings.sessions(A)) == (160, 5000, 1)
    holdings.report(A, AgentReport(True, ((T, 16),), (), 16, 5000))
    assert (holdings.tokens(A, S), holdings.tokens(A, T)) == (None, 16)


def test_a_turn_without_a_session_is_named_by_nobody() -> None:
    holdings = Holdings()
    holdings.report(A, AgentReport(True, ((S, 100),)))
    assert holdings.tokens(A, None) is None


def test_what_is_lost_holds_nothing() -> None:
    holdings = Holdings()
    holdings.report(A, AgentReport(True, ((S, 100),), (), 100))
    holdings.lost(A)
    holdings.lost(A)
    assert not holdings.is_up(A)
    assert holdings.tokens(A, S) is None


def test_those_that_name_a_session_hold_it() -> None:
    holdings = Holdings()
    holdings.report(A, AgentReport(True, ((S, 100),)))
    holdings.report(ReplicaId("pool"), AgentReport(True, ((S, 0), (T, 5))))
    assert holdings.holders(S) == (A, "pool")
    holdings.report(A, AgentReport(False, (), (S,)))
    assert holdings.holders(S) == ("pool",)
    assert holdings.holders(SessionKey("unknown")) == ()
