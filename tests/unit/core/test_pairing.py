"""Who computes a prompt for somebody else, and at what price."""

from router.base.ids import ReplicaId
from router.core.decide import Candidate, FleetView, Pulls, Source
from router.core.pairing import Pairing, behind, choose, prices_of
from router.core.plan import PairRules
from router.core.price import local_s
from router.core.ring import Ring
from tests.support.candidates import candidate

P, Q, D, W = (ReplicaId(name) for name in "pqdw")
PRICES = prices_of(PairRules(least_tokens=256))


def pulls(tokens: int, *targets: ReplicaId, chance: float = 1.0) -> Pulls:
    return Pulls((Source(D, tokens, 0, chance),), frozenset(targets), {}, {}, (0.01, 1e-10), 1e5)


def chosen(*candidates: Candidate, offered: Pulls | None = None, order: str = "pq") -> Pairing:
    pairing = choose(candidates, 10_000, PRICES, offered, frozenset({D}), map(ReplicaId, order))
    assert pairing is not None
    return pairing


def test_the_cheaper_of_two_prefill_replicas_computes() -> None:
    pairing = chosen(candidate(P, wait_s=3.0), candidate(Q))
    assert (pairing.prefill, pairing.pull, pairing.cached_tokens) == (Q, None, 0)
    assert [(line.replica, line.way) for line in pairing.bill()] == [(P, "local"), (Q, "local")]
    assert pairing.seconds == min(line.price_ms for line in pairing.bill()) / 1000


def test_what_decode_holds_is_fetched_where_that_costs_less() -> None:
    pairing = chosen(candidate(P), candidate(Q), offered=pulls(9000, P, Q))
    assert pairing.pull is not None
    assert (pairing.pull.source, pairing.pull.tokens, pairing.cached_tokens) == (D, 9000, 9000)
    assert [line.way for line in pairing.bill()] == ["local", "pull", "local", "pull"]


def test_only_replicas_that_are_set_up_for_it_fetch() -> None:
    pairing = chosen(candidate(P, wait_s=0.5), candidate(Q), offered=pulls(9000, P))
    assert pairing.prefill == P
    assert pairing.pull is not None
    assert chosen(candidate(P), candidate(Q), offered=pulls(9000)).pull is None


def test_a_prefill_replica_that_has_the_prompt_fetches_nothing() -> None:
    pairing = chosen(candidate(P, cached_tokens=8900), candidate(Q), offered=pulls(9000, P, Q))
    assert (pairing.prefill, pairing.pull, pairing.cached_tokens) == (P, None, 8900)


def test_of_equals_the_first_on_the_ring_and_of_unequals_the_cheaper() -> None:
    assert chosen(candidate(P), candidate(Q), order="qp").prefill == Q
    assert chosen(candidate(P), candidate(Q), order="pq").prefill == P
    assert chosen(candidate(P), candidate(Q), order="").prefill == P
    assert chosen(candidate(P), candidate(Q, cached_tokens=5000), order="pq").prefill == Q


def test_one_that_fails_or_is_over_a_limit_is_passed_over_while_another_is_not() -> None:
    assert chosen(candidate(P, recent_failures=1.0), candidate(Q, wait_s=9.0)).prefill == Q
    assert chosen(candidate(P, over="KV usage"), candidate(Q, wait_s=9.0)).prefill == Q
    assert chosen(candidate(P, over="KV usage"), candidate(Q, recent_failures=1.0)).prefill in (P, Q)
    assert choose((), 10, PRICES, None, frozenset({D}), ()) is None


def test_behind_a_prefill_a_decode_replica_fetches_and_others_compute_as_ever() -> None:
    decode, whole = candidate(D, wait_s=0.5), candidate(W)
    ring = Ring([D, W], 16)
    view = FleetView(0.0, (decode, whole), None, 10_000, ring, 0)
    pairing = chosen(candidate(P))
    after = behind(view, pairing, 0.002, 1e-6)
    assert after.candidates[1] is whole
    fetching = after.candidates[0]
    assert fetching.wait_s == 0.5 + pairing.seconds
    expected = 0.5 + pairing.seconds + 0.002 + 10_000 * 1e-6
    assert abs(local_s(fetching, 10_000, PRICES, move=False) - expected) < 1e-9
