"""What a look at the queue takes: `python tests/bench/dispatch.py`. Prints, asserts nothing.

Processor time. So many turns are held for eight replicas, each of a session whose home is one of them. Then,
again and again, one turn of a replica gets its first byte, which makes room for the next: the figure is
`Engine.dispatch` from that to the next turn on its way. Each turn that went is ended and followed by a new
one, so the queue stays as long as it is.
"""

from random import Random
from statistics import median, quantiles
from time import thread_time_ns

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Plan, QueueRules
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced
from router.core.ticket import Ticket

LIMIT_MS = 3.0
REPLICAS = 8
DEPTH = 60
ROUNDS = 400


def turn(session: int, depth: int) -> Turn:
    """A third of the chain is shared by all sessions, as a system prompt and tools would be."""
    shared = DEPTH // 3
    hashes = tuple(range(1, shared + 1)) + tuple(
        (session + 1) * 1_000_000 + at for at in range(depth - shared)
    )
    ends = tuple(4000 * (at + 1) for at in range(depth))
    key = SessionKey(f"s{session}")
    return Turn("/v1/chat/completions", "m", OPEN_TENANT, key, "", Chain(hashes, ends, 1), stream=True)


def answer(ticket: Ticket, now: float) -> None:
    ticket.first_byte(now)
    prompt = ticket.turn.chain.ends[-1] // 4
    ticket.end(Outcome.COMPLETED, now, Usage(prompt, 10, ticket.decision.cached_tokens))


def fleet(held: int) -> tuple[Engine, list[Ticket], dict[Held, int]]:
    """An engine with so many held turns, those that are on their way, and whose session each held one is."""
    engine = Engine([Plan(name="home", strategy=Priced(), queue=QueueRules(wait_s=1e6))], rng=Random(1))
    specs = [ReplicaSpec(ReplicaId(f"r{n}"), f"http://r{n}:8000") for n in range(REPLICAS)]
    engine.set_replicas(specs, 0.0)
    for spec in specs:
        engine.probe_passed(spec.id, 0.0)
        engine.report(spec.id, Report(1.0, 3.0, 0.0, 0.4, 600_000), 0.0)
        engine.models(spec.id, (ModelCard("m", b"{}"),), 0.0)
    for session in range(2 * held):
        answer(engine.admit(turn(session, DEPTH - 1 - session % 30), 0.5), 0.6)
    running: list[Ticket] = []
    waiting: dict[Held, int] = {}
    session = 0
    while len(waiting) < held:
        entered = engine.enter(turn(session, DEPTH), 1.0 + session * 0.001)
        if isinstance(entered, Ticket):
            running.append(entered)
        else:
            waiting[entered] = session
        session += 1
    return engine, running, waiting


def timed(held: int) -> list[float]:
    """Milliseconds of each look."""
    engine, running, waiting = fleet(held)
    random = Random(2)
    took: list[float] = []
    now = 100.0
    while len(took) < ROUNDS:
        now += 0.05
        answer(running.pop(random.randrange(len(running))), now)
        begun = thread_time_ns()
        went, _ = engine.dispatch(now)
        took.append((thread_time_ns() - begun) / 1e6)
        for each, ticket in went:
            running.append(ticket)
            session = waiting.pop(each)
            entered = engine.enter(turn(session, DEPTH), now)
            if isinstance(entered, Ticket):
                running.append(entered)
            else:
                waiting[entered] = session
    return took


def main() -> None:
    print(f"{'held':>6} {'median':>10} {'p99':>10} {'limit':>8}")
    for held in (50, 500, 2000):
        took = timed(held)
        limit = f"{LIMIT_MS:g} ms" if held <= 500 else ""
        print(f"{held:>6} {median(took):>7.2f} ms {quantiles(took, n=100)[98]:>7.2f} ms {limit:>8}")


if __name__ == "__main__":
    main()
