"""Routers side by side on the same replicas, which tell each other nothing, must not work against each other.

Sessions that take one turn after another, now through this router, now through that. In virtual time, in
steps of 5 ms: the same every time.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from statistics import mean
from typing import NamedTuple

import pytest

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
BLOCKS = 37_500
STEP_S = 0.005
TURNS = 12
"""Of a session."""
NAMES = [ReplicaId(name) for name in "abcd"]


class Shape(NamedTuple):
    """What sessions do, on what replicas."""

    streams: int
    system: int
    user: int
    reply: int
    prefill_tps: float
    decode_tps: float


# On both, a first token takes longer by the step of others that runs than by what there is to compute; the
# second one's prompts are long enough to tell the two apart.
CHAT = Shape(streams=100, system=200, user=60, reply=20, prefill_tps=20_000, decode_tps=10)
AGENTS = Shape(streams=100, system=1200, user=200, reply=20, prefill_tps=12_000, decode_tps=10)


@dataclass
class Session:
    name: str
    messages: list[int]
    turns: int = 0
    cached: int = 0
    """Of the last prompt."""

    @property
    def tokens(self) -> int:
        return sum(self.messages)


@dataclass
class Several:
    """`routers` of them. Each looks at the replicas once a second, not at the same instant."""

    shape: Shape
    routers: int
    times: float = 1.0
    """As long as the others the last replica takes for all that it does."""
    now: float = 0.0
    ended: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    placed: list[tuple[float, ReplicaId]] = field(default_factory=list)
    """When each session began, and where."""
    fullest: list[float] = field(default_factory=list)
    """At each second, the share of all running turns that ran on the replica with the most."""

    def __post_init__(self) -> None:
        settings = ReplicaSettings(
            block_size=BLOCK,
            kv_blocks=BLOCKS,
            prefill_tps=self.shape.prefill_tps,
            decode_tps=self.shape.decode_tps,
        )
        slower = replace(
            settings,
            prefill_tps=self.shape.prefill_tps / self.times,
            decode_tps=self.shape.decode_tps / self.times,
        )
        self.rng = Random(1)
        self.models = {
            name: EngineModel(slower if name == NAMES[-1] else settings, token_events=False) for name in NAMES
        }
        self.engines = [self.engine() for _ in range(self.routers)]
        self.looks_at = [1.0 + number / self.routers for number in range(self.routers)]
        self.running: dict[str, tuple[Ticket, Session]] = {}
        self.held: list[dict[Held, Session]] = [{} for _ in self.engines]
        self.ready = [Session(f"s{number}", self.opening) for number in range(self.shape.streams)]

    @property
    def opening(self) -> list[int]:
        return [self.shape.system]

    def engine(self) -> Engine:
        plan = Plan(name="home", strategy=Priced(), queue=QueueRules(ageing=0.02))
        engine = Engine([plan], rng=Random(5))
        engine.set_replicas([ReplicaSpec(name, f"http://{name}:1") for name in NAMES], self.now)
        for name in NAMES:
            engine.probe_passed(name, self.now)
            engine.models(name, (ModelCard("m", b"{}"),), self.now)
        self.look(engine)
        return engine

    def look(self, engine: Engine) -> None:
        for name, model in self.models.items():
            stats = model.stats(self.now)
            report = Report(0.0, float(stats.running), float(stats.waiting), stats.kv_usage, BLOCK * BLOCKS)
            engine.report(name, report, self.now)

    def restart(self, number: int) -> None:
        """Another one takes a router's place, once that has no turn left, and recalls what it knew."""
        while self.held[number] or self.engines[number].in_flight():
            self.step(but=number)
        memory = self.engines[number].recollection.memory(self.now)
        self.engines[number] = self.engine()
        self.engines[number].recollection.recall(memory, self.now, 0.0)

    def run(self, turns: int) -> None:
        wanted = self.ended + turns
        while self.ended < wanted:
            self.step()

    def step(self, but: int | None = None) -> None:
        """`but`: the router that gets no turns."""
        self.answers()
        for number, engine in enumerate(self.engines):
            if self.now >= self.looks_at[number]:
                self.looks_at[number] += 1.0
                self.look(engine)
        if self.running and round(self.now / STEP_S) % 200 == 0:
            at = Counter(ticket.decision.replica for ticket, _ in self.running.values())
            self.fullest.append(max(at.values()) / len(self.running))
        routers = [number for number in range(self.routers) if number != but]
        ready, self.ready = self.ready, []
        for session in ready:
            self.ask(session, self.rng.choice(routers))
        for engine, held in zip(self.engines, self.held, strict=True):
            went, refused = engine.dispatch(self.now)
            assert not refused
            for each, ticket in went:
                self.submit(ticket, held.pop(each))
        self.now += STEP_S

    def answers(self) -> None:
        for model in self.models.values():
            for event in model.advance(self.now):
                if isinstance(event, FirstToken):
                    ticket, session = self.running[event.id]
                    ticket.first_byte(self.now)
                    session.cached = event.cached_tokens
                elif isinstance(event, Finished):
                    self.over(*self.running.pop(event.id))

    def over(self, ticket: Ticket, session: Session) -> None:
        reply = self.shape.reply
        ticket.end(Outcome.COMPLETED, self.now, Usage(session.tokens, reply, session.cached))
        self.ended += 1
        self.prompt_tokens += session.tokens
        self.cached_tokens += session.cached
        session.messages.append(reply)
        session.turns += 1
        self.ready.append(session if session.turns < TURNS else Session(f"{session.name}'", self.opening))

    def ask(self, session: Session, router: int) -> None:
        session.messages.append(self.shape.user)
        ends = tuple(4 * end for end in accumulate(session.messages))
        hashes = tuple(hash64(f"{session.name}#{at}".encode()) for at in range(len(ends)))
        turn = Turn(
            "/v1/chat/completions",
            "m",
            OPEN_TENANT,
            SessionKey(session.name),
            "x",
            Chain(hashes, ends, 1),
            stream=True,
        )
        entered = self.engines[router].enter(turn, self.now)
        if isinstance(entered, Held):
            self.held[router][entered] = session
        else:
            self.submit(entered, session)

    def submit(self, ticket: Ticket, session: Session) -> None:
        self.running[session.name] = (ticket, session)
        if not session.turns:
            self.placed.append((self.now, ticket.decision.replica))
        blocks = (session.tokens + self.shape.reply) // BLOCK
        hashes = [hash64(f"{session.name}/{at}".encode()) for at in range(blocks)]
        job = Job(session.name, session.tokens, self.shape.reply, hashes)
        self.models[ticket.decision.replica].submit(job, self.now)

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens


@pytest.mark.parametrize("shape", [CHAT, AGENTS], ids=["chat", "agents"])
def test_two_routers_one_of_which_is_restarted_keep_the_hit_rate_of_one_and_the_fleet_even(
    shape: Shape,
) -> None:
    one, two = Several(shape, routers=1), Several(shape, routers=2)
    one.run(3000)
    two.run(1500)
    two.restart(1)
    two.run(1500)
    assert one.hit_rate > 0.8
    assert two.hit_rate > 0.95 * one.hit_rate
    # A quarter each would be even.
    assert mean(two.fullest) < 0.4


@pytest.mark.parametrize("routers", [1, 2])
def test_sessions_do_not_begin_where_all_takes_four_times_as_long_because_others_have_left_it(
    routers: int,
) -> None:
    # Prompts so long that a replica's working set says more than the bound's slack.
    of = Several(AGENTS._replace(streams=60, system=8000, user=400), routers, times=4.0)
    of.run(3000)
    # By then it is known how slow it is.
    placed = [replica for at, replica in of.placed if at > 30.0]
    assert len(placed) > 100
    # A quarter would be an even share; two thirds of them would find that its working set is the least.
    assert placed.count(NAMES[-1]) < 0.25 * len(placed)
