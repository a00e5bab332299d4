"""Routers that hold turns, on replicas that are not theirs alone: other routers and clients use them too.

In virtual time, in steps of 10 ms: the same every time.
"""

from dataclasses import dataclass, field
from random import Random
from statistics import mean

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.hashing import hash64
from router.core.observe import Outcome, Usage
from router.core.plan import Plan, QueueRules
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced
from router.core.ticket import Ticket
from router.simulator.model import EngineModel, Finished, FirstToken, Job
from router.simulator.settings import ReplicaSettings

BLOCK = 16
CAPACITY = 100_000
SETTINGS = ReplicaSettings(block_size=BLOCK, kv_blocks=CAPACITY // BLOCK, max_model_len=CAPACITY)
QUEUE = QueueRules(ageing=0.05)


@dataclass
class Asked:
    """A turn as its client sees it. `tokens` of prompt, all of them new."""

    at: float
    name: str
    tokens: int
    output: int = 20
    ttft_s: float | None = None


@dataclass
class Shared:
    """Replicas, the routers in front of them, and what goes past these."""

    replicas: int = 2
    routers: int = 1
    rules: QueueRules | None = QUEUE
    now: float = 0.0
    foreign: list[tuple[float, int, Job]] = field(default_factory=list)
    asked: list[tuple[int, Asked]] = field(default_factory=list)
    most_waiting: int = 0
    """In an engine's own queue, at any report."""

    def __post_init__(self) -> None:
        self.models = [EngineModel(SETTINGS, token_events=False) for _ in range(self.replicas)]
        plan = Plan(name="q", strategy=Priced(), queue=self.rules)
        self.engines = [Engine([plan], rng=Random(number)) for number in range(self.routers)]
        self.names = [ReplicaId(f"r{number}") for number in range(self.replicas)]
        self.running: dict[str, tuple[Ticket, Asked]] = {}
        self.held: list[dict[Held, Asked]] = [{} for _ in self.engines]
        for engine in self.engines:
            engine.set_replicas([ReplicaSpec(name, f"http://{name}:1") for name in self.names], 0.0)
            for name in self.names:
                engine.probe_passed(name, 0.0)
                engine.models(name, (ModelCard("m", b"{}"),), 0.0)
        self.report()

    def report(self) -> None:
        for name, model in zip(self.names, self.models, strict=True):
            stats = model.stats(self.now)
            self.most_waiting = max(self.most_waiting, stats.waiting)
            for engine in self.engines:
                engine.report(
                    name,
                    Report(0.0, float(stats.running), float(stats.waiting), stats.kv_usage, CAPACITY),
                    self.now,
                )

    def submit(self, ticket: Ticket, asked: Asked) -> None:
        self.running[asked.name] = (ticket, asked)
        model = self.models[self.names.index(ticket.decision.replica)]
        model.submit(Job(asked.name, asked.tokens, asked.output, names(asked)), self.now)

    def run(self, seconds: float) -> None:
        asked = sorted(self.asked, key=lambda each: each[1].at)
        foreign = sorted(self.foreign, key=lambda each: each[0])
        for step in range(int(seconds * 100)):
            self.now = step / 100
            for model in self.models:
                for event in model.advance(self.now):
                    if event.id not in self.running:
                        continue
                    ticket, turn = self.running[event.id]
                    if isinstance(event, FirstToken):
                        turn.ttft_s = self.now - turn.at
                        ticket.first_byte(self.now)
                    elif isinstance(event, Finished):
                        del self.running[event.id]
                        ticket.end(Outcome.COMPLETED, self.now, Usage(turn.tokens, turn.output, 0))
            if step % 100 == 0:
                self.report()
                if not (asked or foreign or self.running or any(self.held)):
                    return
            while foreign and foreign[0][0] <= self.now:
                _, number, job = foreign.pop(0)
                self.models[number].submit(job, self.now)
            while asked and asked[0][1].at <= self.now:
                router, turn = asked.pop(0)
                entered = self.engines[router].enter(as_turn(turn), self.now)
                if isinstance(entered, Held):
                    self.held[router][entered] = turn
                else:
                    self.submit(entered, turn)
            for engine, held in zip(self.engines, self.held, strict=True):
                went, refused = engine.dispatch(self.now)
                assert not refused
                for each, ticket in went:
                    self.submit(ticket, held.pop(each))

    def ttft_s(self, router: int, least: int = 0, most: int = CAPACITY) -> list[float]:
        """Of a router's turns with so many tokens. Fails if one was never answered."""
        turns = [turn for number, turn in self.asked if number == router and least <= turn.tokens <= most]
        unanswered = [turn.name for turn in turns if turn.ttft_s is None]
        assert not unanswered, unanswered
        return [turn.ttft_s for turn in turns if turn.ttft_s is not None]

    def is_over(self) -> None:
        assert not self.running
        for engine in self.engines:
            assert (engine.held, engine.in_flight()) == (0, 0)


def blocks(name: str, tokens: int) -> list[int]:
    return [hash64(f"{name}/{at}".encode()) for at in range(tokens // BLOCK)]


def names(asked: Asked) -> list[int]:
    return blocks(asked.name, asked.tokens)


def as_turn(asked: Asked) -> Turn:
    count = max(1, asked.tokens // 1000)
    ends = tuple(asked.tokens * 4 * (at + 1) // count for at in range(count))
    hashes = tuple(names(asked)[:count]) if asked.tokens >= count * BLOCK else (1,)
    key = SessionKey(asked.name)
    return Turn("/v1/chat/completions", "m", OPEN_TENANT, key, "x", Chain(hashes, ends, 1), stream=True)


def mixed(router: int, seed: int, count: int = 60, every_s: float = 0.4) -> list[tuple[int, Asked]]:
    """Short turns, and a cold one of 30,000 tokens now and then."""
    random = Random(seed)
    return [
        (router, Asked(number * every_s, f"{router}.{number}", 30_000 if random.random() < 0.15 else 700))
        for number in range(count)
    ]


def test_an_engine_that_is_not_the_bottleneck_does_not_notice_the_queue() -> None:
    with_queue, without = Shared(), Shared(rules=None)
    for of in (with_queue, without):
        of.asked = [(0, Asked(number * 1.0, f"0.{number}", 700 + 40 * number)) for number in range(40)]
        of.run(60.0)
        of.is_over()
    assert with_queue.ttft_s(0) == without.ttft_s(0)


def test_short_turns_do_not_wait_for_long_ones_and_those_come_in_time() -> None:
    with_queue, without = Shared(), Shared(rules=None)
    for of in (with_queue, without):
        of.asked = mixed(0, seed=1, every_s=0.25)
        of.run(200.0)
        of.is_over()
    assert mean(with_queue.ttft_s(0, most=1000)) < 0.7 * mean(without.ttft_s(0, most=1000))
    assert max(with_queue.ttft_s(0)) < 60.0


def test_two_routers_on_one_fleet_share_it_and_keep_its_queues_short() -> None:
    of = Shared(routers=2)
    of.asked = [*mixed(0, seed=1), *mixed(1, seed=2)]
    of.run(300.0)
    of.is_over()
    one, other = mean(of.ttft_s(0, most=1000)), mean(of.ttft_s(1, most=1000))
    assert 0.4 < one / other < 2.5
    alone = Shared(routers=2, rules=None)
    alone.asked = [*mixed(0, seed=1), *mixed(1, seed=2)]
    alone.run(300.0)
    assert mean([one, other]) < mean([*alone.ttft_s(0, most=1000), *alone.ttft_s(1, most=1000)])


def test_a_client_that_floods_past_the_router_slows_its_turns_and_starves_none() -> None:
    of = Shared(replicas=1)
    of.asked = [(0, Asked(number * 1.0, f"0.{number}", 700)) for number in range(40)]
    # Eight thousand tokens a second, which is all that the replica can compute, for twenty seconds.
    of.foreign = [
        (number * 0.25, 0, Job(f"f{number}", 2000, 20, blocks(f"f{number}", 2000))) for number in range(80)
    ]
    of.run(120.0)
    of.is_over()
    assert max(of.ttft_s(0)) < 30.0


def test_a_client_that_holds_all_kv_past_the_router_keeps_turns_waiting_here_and_not_there() -> None:
    of = Shared(replicas=1)
    of.foreign = [(0.0, 0, Job("hog", 90_000, 500, blocks("hog", 90_000)))]
    of.asked = [(0, Asked(12.5 + 0.1 * number, f"0.{number}", 9000)) for number in range(10)]
    of.run(120.0)
    of.is_over()
    # One is sent to a replica with nothing of ours in any case.
    assert of.most_waiting <= 1
