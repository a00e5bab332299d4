"""Pulls as the engine makes them: who is asked, who rides, what is learned, and when they are over."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import ReplicaId
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.holdings import AgentReport, Holdings
from router.core.observe import Outcome, Usage
from router.core.plan import Plan, PullRules
from router.core.pullbook import PullBook, Pulled

# --- kinds ------------------------------------------------------------------------------------------
from router.core.pulling import shared_depth
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, long, play, turn


def pulling(*names: str) -> tuple[Engine, PullBook]:
    """An engine whose replicas all have KV agents."""
    rules = PullRules(seed_gbps=800.0)
    book = PullBook(rules)
    of = Engine([Plan(name="home", strategy=Priced(), pull=rules)], rng=Random(1), pullbook=book)
    of.set_replicas([ReplicaSpec(ReplicaId(n), f"http://{n}:1", kv_agent=f"{n}:7710") for n in names], 0.0)
    for name in names:
        of.probe_passed(ReplicaId(name), 0.0)
    return of, book


def test_a_session_whose_home_is_drained_is_sent_with_a_pull_that_is_counted_until_it_ends() -> None:
    of, book = pulling("a", "b")
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    of.drain(home, True)
    ticket = of.admit(long("s", 324), 1.0)
    pull = ticket.decision.pull
    assert pull is not None
    assert (pull.source, ticket.decision.kind) == (home, Kind.PULL)
    assert 79_000 < pull.tokens <= ticket.decision.cached_tokens
    assert book.view([(home, 1)], frozenset(), 1.0) is None, "one is under way"
    (target,) = of.decide(turn("t"), 1.0).candidates
    assert target.arriving_tokens == pull.tokens
    of.pulled(ticket, Pulled(pull.tokens, pull.tokens * 100_000, 1.0, complete=True), 2.0)
    of.pulled(ticket, Pulled(0, 0, 1.0, complete=False), 2.0)
    ticket.first_byte(2.1)
    ticket.end(Outcome.COMPLETED, 3.0, Usage(81_000, 10, 80_000))
    view = book.view([(home, 1)], frozenset(), 3.0)
    assert view is not None
    assert (view.sources[0].pulls, dict(view.inbound), len(view.links)) == (0, {}, 1)
    assert view.sources[0].chance > 0.95
    assert of.decide(turn("t"), 3.0).candidates[0].arriving_tokens == 0


def test_where_only_pools_tell_agents_are_believed_and_a_pool_serves_what_a_lost_home_had() -> None:
    pool = ReplicaId("pool")
    rules = PullRules(seed_gbps=800.0)
    of = Engine(
        [Plan(name="home", strategy=Priced(), pull=rules)],
        rng=Random(1),
        pullbook=PullBook(rules),
        holdings=Holdings((pool,), agents_tell=False),
    )
    of.set_replicas([ReplicaSpec(name, f"http://{name}:1", kv_agent=f"{name}:7710") for name in (A, B)], 0.0)
    for name in (A, B):
        of.probe_passed(name, 0.0)
    begun = play(of, long("s", 320), 0.0, prompt=80_000)
    of.drain(begun.replica, True)
    of_home = of.decide(long("s", 324), 1.0).pull
    assert of_home is not None
    assert of_home.source == begun.replica, "nobody told of its agent"
    key = long("s", 320).session
    assert key is not None
    of.agent_reported(pool, AgentReport(True, ((key, 60_000),), (), 60_000), 1.0)
    of.report(begun.replica, Report(start_time=5.0), 1.0)
    of.report(begun.replica, Report(start_time=99.0), 2.0)
    of_pool = of.decide(long("s", 324), 2.0).pull
    assert of_pool is not None
    assert (of_pool.source, of_pool.tokens) == (pool, 60_000)


def p2p(*specs: ReplicaSpec) -> tuple[Engine, PullBook]:
    """A fleet as the router has it: what agents hold is heard, and vLLM's own tiers say nothing."""
    rules = PullRules(seed_gbps=800.0)
    book = PullBook(rules)
    of = Engine(
        [Plan(name="home", strategy=Priced(), pull=rules)],
        rng=Random(1),
        pullbook=book,
        holdings=Holdings(),
    )
    of.set_replicas(specs, 0.0)
    for spec in specs:
        of.probe_passed(spec.id, 0.0)
    return of, book


def test_vllms_own_tiers_pull_by_what_is_believed_and_teach_by_the_first_token() -> None:
    of, book = p2p(*(ReplicaSpec(r, f"http://{r}:1", kv_p2p=f"{r}:5710") for r in (A, B)))
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    other = B if home == A else A
    of.drain(home, True)
    ticket = of.admit(long("s", 324).replace(stream=True), 1.0)
    pull = ticket.decision.pull
    assert pull is not None
    assert (pull.source, ticket.decision.replica) == (home, other)
    ticket.first_byte(2.0)
    ticket.end(Outcome.COMPLETED, 3.0, Usage(81_000, 10, 80_000))
    assert book.has_learned
    start_s, token_s = book.path(home, other)
    assert pull.seconds < start_s + 80_000 * token_s < 1.0
    view = book.view([(home, 1)], frozenset(), 3.0)
    assert view is not None
    assert view.sources[0].chance > 0.95


def test_whose_first_token_tells_nothing_of_a_path_teaches_none() -> None:
    for stream, cached in ((False, 80_000), (True, 0)):
        of, book = p2p(*(ReplicaSpec(r, f"http://{r}:1", kv_p2p=f"{r}:5710") for r in (A, B)))
        home = play(of, long("s", 320), 0.0, prompt=80_000).replica
        of.drain(home, True)
        ticket = of.admit(long("s", 324).replace(stream=stream), 1.0)
        assert ticket.decision.pull is not None
        ticket.first_byte(2.0)
        ticket.end(Outcome.COMPLETED, 3.0, Usage(81_000, 10, cached))
        assert not book.has_learned


def test_a_turn_that_had_some_on_its_own_host_teaches_no_path() -> None:
    of, book = p2p(*(ReplicaSpec(r, f"http://{r}:1", kv_p2p=f"{r}:5710") for r in (A, B)))
    of.report(B, Report(kv_capacity_tokens=100_000, host_kv_tokens=400_000), 0.0)
    for name, session, segments in ((A, "s", 100), (A, "x", 380), (B, "s", 320)):
        of.drain(name, True)
        play(of, long(session, segments), 0.0, prompt=250 * segments)
        of.drain(name, False)
    of.drain(A, True)
    ticket = of.admit(long("s", 324), 1.0)
    chosen, pull = ticket.decision.chosen, ticket.decision.pull
    assert pull is not None
    assert (pull.source, ticket.decision.replica) == (A, B)
    assert chosen.host_tokens == 20_000
    ticket.first_byte(2.0)
    ticket.end(Outcome.COMPLETED, 3.0, Usage(81_000, 10, 80_000))
    assert not book.has_learned


def test_agents_and_vllms_own_tiers_do_not_pull_from_each_other() -> None:
    of, _ = p2p(
        ReplicaSpec(A, "http://a:1", kv_agent="a:7710"), ReplicaSpec(B, "http://b:1", kv_p2p="b:5710")
    )
    of.agent_reported(A, AgentReport(True), 0.0)
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    of.drain(home, True)
    assert of.decide(long("s", 324), 1.0).pull is None


def test_turns_that_begin_alike_ride_on_one_pull_once_it_is_known_what_a_path_carries() -> None:
    of, book = pulling("a", "b")
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    of.drain(home, True)
    fork = turn("t", *long("s", 320).chain.hashes, 7)
    first = of.admit(long("s", 324), 1.0)
    assert of.decide(fork, 1.1).pull is None, "one finds out what the path carries"
    of.pulled(first, Pulled(80_000, 8_000_000_000, 0.5, complete=True), 1.5)
    first.end(Outcome.CANCELLED, 1.5)
    leader = of.admit(long("s", 324), 2.0)
    assert leader.decision.pull is not None
    rider = of.admit(fork, 2.1)
    pull = rider.decision.pull
    assert pull is not None
    assert (pull.rides, pull.source) == (True, home)
    assert pull.seconds == pytest.approx(leader.decision.pull.seconds - 0.1)
    (target,) = of.decide(turn("u"), 2.1).candidates
    assert target.arriving_tokens == leader.decision.pull.tokens
    assert of.may_pull(rider.decision, 2.2)
    leader.end(Outcome.CANCELLED, 2.3)
    assert not of.may_pull(rider.decision, 2.3)
    again = of.decide(fork, 2.4).pull
    assert again is not None
    assert not again.rides
    rider.end(Outcome.CANCELLED, 2.4)
    view = book.view([(home, 1)], frozenset(), 2.5)
    assert view is not None
    assert (view.sources[0].pulls, dict(view.inbound)) == (0, {})


def test_a_pull_that_is_late_is_expected_to_be_late_for_as_long_again() -> None:
    of, book = pulling("a", "b")
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    book.end(home, home, book.begin(home, home, 0.0), Pulled(80_000, 8_000_000_000, 0.5, complete=True), 0.5)
    of.drain(home, True)
    leader = of.admit(long("s", 324), 1.0)
    assert leader.decision.pull is not None
    late = of.decide(
        turn("t", *long("s", 320).chain.hashes, 7), 1.0 + leader.decision.pull.seconds + 0.2
    ).pull
    assert late is not None
    assert (late.rides, late.seconds) == (True, pytest.approx(0.2))


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_how_far_two_chains_agree(one: list[int], other: list[int]) -> None:
    """Chained, as hashes are: each tells of all before it."""
    chains = [[hash(tuple(each[: at + 1])) for at in range(len(each))] for each in (one, other)]
    same = sum(1 for at in range(min(len(one), len(other))) if one[: at + 1] == other[: at + 1])
    assert shared_depth(*chains) == same


def test_a_pull_of_which_nobody_tells_is_over_with_its_turn() -> None:
    of, book = pulling("a", "b")
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    of.drain(home, True)
    ticket = of.admit(long("s", 324), 1.0)
    ticket.end(Outcome.CANCELLED, 2.0)
    view = book.view([(home, 1)], frozenset(), 3.0)
    assert view is not None
    assert (view.sources[0].pulls, view.sources[0].chance) == (0, 0.95)


def test_nothing_is_pulled_from_a_replica_that_is_down() -> None:
    of, _ = pulling("a", "b")
    home = play(of, long("s", 320), 0.0, prompt=80_000).replica
    of.probe_failed(home, "gone", 1.0)
    of.probe_failed(home, "gone", 2.0)
    of.probe_failed(home, "gone", 3.0)
    assert of.admit(long("s", 324), 4.0).decision.pull is None
