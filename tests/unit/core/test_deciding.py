"""What a turn's decision is called, and that asking for one changes nothing."""

from router.base.ids import OPEN_TENANT
from router.core.decide import Kind
from router.core.observe import Outcome
from router.core.plan import Overload, Plan
from router.core.request import Chain, Turn
from router.core.strategies.least_loaded import LeastLoaded
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, engine, play, turn


def test_a_first_turn_is_new_and_the_next_one_goes_home() -> None:
    of = engine("a", "b", "c")
    first = play(of, turn("s", 1), 0.0)
    second = play(of, turn("s", 1, 2), 1.0)
    assert first.kind is Kind.NEW
    assert second.kind is Kind.HOME
    assert second.replica == first.replica


def test_a_session_moves_only_when_the_other_replica_has_answered() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1), 0.0).replica
    ticket = of.admit(turn("s", 1, 2), 1.0, failed=(home,))
    assert ticket.decision.kind is Kind.FAILOVER
    ticket.end(Outcome.CUT, 1.1)
    assert of.decide(turn("s", 1, 2), 1.2).replica == home
    play(of, turn("s", 1, 2), 2.0, failed=(home,))
    moved = of.decide(turn("s", 1, 2, 3), 3.0)
    assert moved.kind is Kind.HOME
    assert moved.replica != home


def test_home_down_is_a_failover_and_home_back_does_not_call_the_session_back() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1), 0.0).replica
    other = B if home == A else A
    for at in (1.0, 2.0):
        of.probe_failed(home, "connection refused", at)
    assert play(of, turn("s", 1, 2), 3.0).kind is Kind.FAILOVER
    for at in (10.0, 25.0):
        of.probe_passed(home, at)
    decision = of.decide(turn("s", 1, 2, 3), 30.0)
    assert (decision.replica, decision.kind) == (other, Kind.HOME)


def test_a_request_without_session_and_prompt_passes() -> None:
    of = engine("a")
    request = Turn("/v1/x", "", OPEN_TENANT, None, "", Chain((), (), 0))
    assert of.admit(request, 0.0).decision.kind is Kind.PASS


def test_home_over_its_limit_is_a_spill_and_the_rest_keeps_its_affinity() -> None:
    of = engine("a", "b", plan=Plan(name="p", strategy=Priced(), overload=Overload(in_flight=2)))
    home = play(of, turn("s", 1), 0.0).replica
    quiet = next(name for name in map(str, range(50)) if play(of, turn(name), 0.5).replica != home)
    for _ in range(2):
        of.admit(turn("s", 1), 1.0)
    assert of.decide(turn("s", 1), 1.0).kind is Kind.SPILL
    assert of.decide(turn(quiet), 1.0).kind is Kind.HOME


def test_asking_does_not_change_what_comes_next() -> None:
    of, twin = (engine("a", "b", "c", plan=Plan(name="p", strategy=LeastLoaded())) for _ in range(2))
    for number in range(20):
        of.decide(turn(str(number)), 0.0)
        assert of.admit(turn(str(number)), 0.0).decision == twin.admit(turn(str(number)), 0.0).decision
