"""Policies over the same workloads, and the ratios between them."""

from router.core.plan import Plan
from router.core.strategies.ring import RingOnly
from router.core.strategies.round_robin import RoundRobin
from router.simulator.replay.compare import Paired, SeedResult, over_seeds, paired, replay_seed
from router.simulator.replay.figures import Figures, Measured, figures
from router.simulator.replay.workload import Selection
from router.simulator.settings import ReplicaSettings


def result(*ttft_s: float, hits: int = 0) -> Figures:
    return figures(Measured(ttft_s=list(ttft_s), prompt_tokens=100, cached_tokens=hits), 0)


def seed(number: int, one: Figures, other: Figures) -> SeedResult:
    return SeedResult(number, 1, {}, {"one": one, "other": other}, result(0.5, hits=100))


def test_ratios_are_taken_seed_by_seed_and_then_their_median():
    results = [
        seed(0, result(1.0, hits=50), result(2.0, hits=25)),
        seed(1, result(10.0, hits=50), result(1.0, hits=25)),
        seed(2, result(2.0, hits=50), result(1.0, hits=25)),
    ]
    ratios = paired(results)
    assert set(ratios) == {"other", "bound"}, "the first policy is what the others are compared to"
    assert ratios["other"]["ttft_ms.mean"] == Paired(0.5, 0.1, 2.0)
    assert ratios["other"]["hit_rate"] == Paired(0.5, 0.5, 0.5)
    assert ratios["bound"]["ttft_ms.p90"] == Paired(0.25, 0.05, 0.5)


def test_a_ratio_to_nothing_is_left_out():
    results = [
        seed(0, result(1.0), result(2.0)),
        seed(1, result(), result(2.0)),
        seed(2, result(1.0), result()),
    ]
    ratios = paired(results)["other"]
    assert ratios["ttft_ms.mean"] == Paired(2.0, 2.0, 2.0)
    assert ratios["hit_rate"] == Paired(None, None, None), "the first one's is 0"


def test_over_seeds_each_figure_is_the_median_of_those_there_are():
    merged = over_seeds([result(1.0), result(5.0, 5.0), result(), result(2.0)])
    assert merged.ttft_ms["mean"] == 2000.0
    assert merged.turns == 1
    assert merged.session_s == {"p50": None, "p90": None}
    alone = result(1.0, hits=3)
    assert over_seeds([alone]) == alone


def test_every_policy_gets_the_same_workload(make):
    trace = make.trace(make.session("s", *[(640, 0, 1, 0.0), (704, 10, 1, 0.0)] * 2), make.session("t"))
    plans = [Plan(name="ring", strategy=RingOnly()), Plan(name="round", strategy=RoundRobin())]
    settings = ReplicaSettings(block_size=64, kv_blocks=100)
    found = replay_seed(trace, Selection(seed=3), plans, settings, 2)
    assert (found.seed, found.sessions) == (3, 2)
    assert list(found.policies) == ["ring", "round"]
    assert {each.turns for each in (*found.policies.values(), found.bound)} == {4}
    ring, round_ = found.policies["ring"].hit_rate, found.policies["round"].hit_rate
    assert ring is not None
    assert round_ is not None
    assert ring > round_ == 0
    assert found.measured["ring"].moves == 0
