"""What is heard of replicas, and what follows from it."""

from random import Random

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.holdings import AgentReport, Holdings
from router.core.observe import Outcome, Usage
from router.core.plan import Plan, PullRules
from router.core.pullbook import PullBook
from router.core.strategies.least_loaded import LeastLoaded
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, cached, engine, long, play, resident, turn


def test_turns_of_ours_that_ended_since_the_report_are_not_taken_for_those_of_others() -> None:
    of = engine("a", "b", plan=Plan(name="p", strategy=LeastLoaded()))
    tickets = [of.admit(turn("s"), 0.0, failed=(B,)) for _ in range(8)]
    of.report(A, Report(running=8.0, waiting=2.0), 1.0)
    for ticket in tickets:
        ticket.end(Outcome.COMPLETED, 2.0)
    foreign = {c.replica: c.foreign for c in of.decide(turn("t"), 2.0).candidates}
    assert foreign == {A: 2.0, B: None}


def test_a_replica_whose_metrics_broke_is_not_over_its_limit_for_ever() -> None:
    of = engine("a", "b")
    of.report(A, Report(kv_usage=0.99, kv_capacity_tokens=900), 0.0)

    def over() -> dict[ReplicaId, str | None]:
        return {c.replica: c.over for c in of.decide(turn("t"), 2.0).candidates}

    for at in range(1, 6):
        of.probe_passed(A, float(at))
        assert over() == {A: "KV usage 0.99, limit 0.98", B: None}
    of.probe_passed(A, 6.0)
    assert over() == {A: None, B: None}
    # People still see what it said last, and how long ago.
    status = of.replicas(6.0)[0]
    assert (status.report, status.report_age_s) == (Report(kv_usage=0.99, kv_capacity_tokens=900), 6.0)


def test_a_restarted_replica_is_cold_at_once() -> None:
    of = engine("a")
    of.report(A, Report(start_time=100.0), 0.0)
    play(of, turn("s", 1, 2), 1.0)
    assert of.decide(turn("s", 1, 2), 2.0).cached_tokens > 0
    of.report(A, Report(start_time=None), 2.5)
    of.report(A, Report(start_time=100.4), 3.0)
    assert of.decide(turn("s", 1, 2), 3.0).kind is Kind.HOME
    of.report(A, Report(start_time=500.0), 4.0)
    cold = of.decide(turn("s", 1, 2), 5.0)
    assert (cold.kind, cold.cached_tokens) == (Kind.NEW, 0)
    assert of.replicas(5.0)[0].restarts == 1


@pytest.mark.parametrize("outcome", [Outcome.DIED, Outcome.CONNECT_FAILED])
def test_a_replica_without_a_start_time_that_was_gone_is_cold_when_it_is_back(outcome: Outcome) -> None:
    of = engine("a", "b")
    of.report(A, Report(kv_usage=0.5), 0.0)
    play(of, turn("s", 1, 2), 1.0, failed=(B,))
    of.admit(turn("s", 1, 2), 2.0, failed=(B,)).end(outcome, 2.5)
    of.probe_passed(A, 3.0)
    assert of.replicas(3.0)[0].restarts == 0  # still ejected
    of.probe_failed(A, "connection refused", 3.5)
    of.probe_passed(A, 40.0)
    cold = of.decide(turn("s", 1, 2), 40.0)
    assert (cold.kind, cold.cached_tokens) == (Kind.NEW, 0)
    assert of.replicas(40.0)[0].restarts == 1
    of.probe_passed(A, 41.0)
    assert of.replicas(41.0)[0].restarts == 1


def test_a_replica_that_tells_its_start_time_is_warm_after_a_refused_connection() -> None:
    of = engine("a")
    of.report(A, Report(start_time=100.0), 0.0)
    play(of, turn("s", 1, 2), 1.0)
    of.admit(turn("s", 1, 2), 2.0).end(Outcome.CONNECT_FAILED, 2.5)
    of.probe_passed(A, 40.0)
    of.report(A, Report(start_time=100.0), 40.1)
    assert of.decide(turn("s", 1, 2), 41.0).kind is Kind.HOME
    assert of.replicas(41.0)[0].restarts == 0


def test_an_agent_that_is_another_process_holds_nothing_and_what_the_device_has_stays() -> None:
    of = Engine(
        [Plan(name="home", strategy=Priced())],
        rng=Random(1),
        pullbook=PullBook(PullRules()),
        holdings=Holdings(),
    )
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_agent="x")], 0.0)
    of.probe_passed(A, 0.0)
    of.report(A, Report(kv_capacity_tokens=100_000), 0.0)
    told = AgentReport(True, capacity_tokens=400_000)
    of.agent_reported(A, told, 0.0)
    for session in "st":
        play(of, long(session, 320), 0.0, prompt=80_000)
    of.agent_lost(A, False, 1.0)
    of.agent_reported(A, told, 1.0)
    assert of.decide(long("s", 320), 1.0).candidates[0].cached_tokens == pytest.approx(80_000, rel=0.01)
    of.agent_lost(A, True, 2.0)
    assert of.decide(long("s", 320), 2.0).candidates[0].reach_tokens == 100_000
    of.agent_reported(A, told, 2.0)
    first, last = (of.decide(long(session, 320), 3.0).candidates[0] for session in "st")
    assert first.reach_tokens == 500_000
    # The device had given up most of the first one.
    assert (first.cached_tokens, first.host_tokens) == (20_000, 0)
    assert last.cached_tokens == pytest.approx(80_000, rel=0.01)
    assert last.host_tokens == 0


def test_a_feed_that_is_lost_leaves_bookkeeping_as_it_was() -> None:
    of = engine("a", "b")
    home = play(of, turn("s", 1, 2), 0.0, prompt=2000, reply=48).replica
    before = of.decide(turn("s", 1, 2, 3), 1.0)
    of.follow(home, resident("s", 1))
    of.follow(home, None)
    of.follow(ReplicaId("nobody"), resident("s", 1))
    assert of.decide(turn("s", 1, 2, 3), 1.0) == before


def test_a_cache_that_was_cleared_is_empty_and_keeps_its_stored_responses() -> None:
    of = engine("a", "b")
    ticket = of.admit(turn("s", 1, 2), 0.0)
    ticket.first_byte(0.1)
    of.stored(OPEN_TENANT, "resp", ticket)
    ticket.end(Outcome.COMPLETED, 0.2, Usage(2000, 20, None))
    home = ticket.decision.replica
    of.cache_cleared(home)
    assert cached(of.decide(turn("s", 1, 2, 3), 1.0))[home] == 0
    assert of.decide(turn("t", 5, response_id="resp"), 1.0).replica == home
