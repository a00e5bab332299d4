"""How long a decision takes: `python tests/bench/deciding.py`. Prints, asserts nothing.

A decision here is `Engine.admit` under the default policy, for a turn that goes home and for one that is
placed: looking at the fleet, choosing, the bill, and counting. Its end is not timed. The figure is the
median of many single decisions, over a fleet whose replicas all hold something of the prompt.
"""

from random import Random
from statistics import median
from time import perf_counter_ns

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced

LIMITS_US = {(2, 3): 20, (8, 60): 60, (128, 60): 400}
ROUNDS = 2000


def fleet(replicas: int) -> Engine:
    """A fleet that has reported all there is to report."""
    engine = Engine([Plan(name="home", strategy=Priced())], rng=Random(1))
    specs = [ReplicaSpec(ReplicaId(f"r{n:03}"), f"http://r{n}:8000") for n in range(replicas)]
    engine.set_replicas(specs, 0.0)
    for spec in specs:
        engine.probe_passed(spec.id, 0.0)
        engine.report(spec.id, Report(1.0, 3.0, 0.0, 0.4, 600_000), 0.0)
        engine.models(spec.id, (ModelCard("m", b"{}"),), 0.0)
    return engine


def turn(session: int, depth: int) -> Turn:
    """A third of the chain is shared by all sessions, as a system prompt and tools would be."""
    shared = depth // 3
    hashes = tuple(range(1, shared + 1)) + tuple(session * 1000 + at for at in range(depth - shared))
    ends = tuple(4000 * (at + 1) for at in range(depth))
    return Turn(
        "/v1/chat/completions", "m", OPEN_TENANT, SessionKey(f"s{session}"), "", Chain(hashes, ends, 1)
    )


def timed(engine: Engine, turns: list[Turn]) -> float:
    """Median microseconds of a decision."""
    took = []
    for number, each in enumerate(turns):
        now = 1.0 + number * 0.001
        begun = perf_counter_ns()
        ticket = engine.admit(each, now)
        took.append(perf_counter_ns() - begun)
        ticket.first_byte(now)
        # It delivers what it was believed to hold.
        ticket.end(Outcome.COMPLETED, now, Usage(each.chain.ends[-1] // 4, 10, ticket.decision.cached_tokens))
    return median(took) / 1000


def main() -> None:
    print(f"{'replicas':>8} {'segments':>8} {'home':>9} {'placed':>9} {'limit':>9}")
    for (replicas, depth), limit in LIMITS_US.items():
        engine = fleet(replicas)
        timed(engine, [turn(session, depth) for session in range(replicas * 8)])
        home = timed(engine, [turn(number % (replicas * 8), depth) for number in range(ROUNDS)])
        placed = timed(engine, [turn(1_000_000 + number, depth) for number in range(ROUNDS)])
        print(f"{replicas:>8} {depth:>8} {home:>6.1f} µs {placed:>6.1f} µs {limit:>6} µs")


if __name__ == "__main__":
    main()
