"""Several policies over the same workloads, at one seed or several, and how they differ, pair by pair."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from router.core.plan import Plan
from router.simulator.replay.bound import Bound
from router.simulator.replay.events import FleetEvent
from router.simulator.replay.figures import Figures, Measured, figures
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.trace import Trace
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings


@dataclass(frozen=True, slots=True)
class SeedResult:
    """All policies, and the bound, on one workload."""

    seed: int
    sessions: int
    measured: Mapping[str, Measured]
    policies: Mapping[str, Figures]
    bound: Figures


class Paired(NamedTuple):
    """A figure of one policy as a multiple of the first one's, over the seeds: `None` where one is 0 or
    missing."""

    median: float | None
    least: float | None
    most: float | None


COMPARED: Final[Mapping[str, Callable[[Figures], float | None]]] = {
    "ttft_ms.mean": lambda result: result.ttft_ms["mean"],
    "ttft_ms.p90": lambda result: result.ttft_ms["p90"],
    "session_s.p50": lambda result: result.session_s["p50"],
    "hit_rate": lambda result: result.hit_rate,
}
"""The figures that are compared, by their names in the JSON."""


def replay_seed(
    trace: Trace,
    selection: Selection,
    plans: Sequence[Plan],
    settings: ReplicaSettings,
    replicas: int,
    *,
    pull_gbps: float = 0.0,
    gateway_tokens: int = 0,
    prefills: int = 0,
    events: Sequence[FleetEvent] = (),
) -> SeedResult:
    """Each policy, and the bound, over the workload of one seed. Nothing happens to the bound, and of a fleet
    with prefill replicas it has those."""
    workload = choose(trace, selection, settings.context_tokens)
    measured = {
        plan.name: FleetReplay(
            plan,
            workload,
            settings,
            replicas=replicas,
            seed=selection.seed,
            pull_gbps=pull_gbps,
            gateway_tokens=gateway_tokens,
            prefills=prefills,
            events=events,
        ).run()
        for plan in plans
    }
    bound = Bound(workload, settings, replicas=prefills or replicas).run()
    return SeedResult(
        selection.seed,
        len(workload.starts),
        measured,
        {name: figures(each, workload.left_out) for name, each in measured.items()},
        figures(bound, workload.left_out),
    )


def over_seeds(results: Sequence[Figures]) -> Figures:
    """One policy's figures at several seeds as one: the median of each, counts rounded."""

    def of(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    def whole(values: Sequence[int]) -> int:
        return round(median(values))

    first = results[0]
    return Figures(
        hit_rate=of([result.hit_rate for result in results]),
        ttft_ms={name: of([result.ttft_ms[name] for result in results]) for name in first.ttft_ms},
        session_s={name: of([result.session_s[name] for result in results]) for name in first.session_s},
        moves=whole([result.moves for result in results]),
        pulls=whole([result.pulls for result in results]),
        refused=whole([result.refused for result in results]),
        turns=whole([result.turns for result in results]),
        left_out=whole([result.left_out for result in results]),
        imbalance=of([result.imbalance for result in results]),
        ttft_error=of([result.ttft_error for result in results]),
        cached_error=of([result.cached_error for result in results]),
    )


def paired(results: Sequence[SeedResult]) -> dict[str, dict[str, Paired]]:
    """For each policy but the first, and for the bound: each compared figure as a multiple of the first
    policy's at the same seed."""
    names = list(results[0].policies)
    base = [result.policies[names[0]] for result in results]
    others = {name: [result.policies[name] for result in results] for name in names[1:]}
    others["bound"] = [result.bound for result in results]
    return {
        name: {
            figure: _paired([(value(one), value(other)) for one, other in zip(base, each, strict=True)])
            for figure, value in COMPARED.items()
        }
        for name, each in others.items()
    }


def _paired(pairs: Sequence[tuple[float | None, float | None]]) -> Paired:
    ratios = [other / one for one, other in pairs if one and other is not None]
    if not ratios:
        return Paired(None, None, None)
    return Paired(*(round(value, 6) for value in (median(ratios), min(ratios), max(ratios))))
