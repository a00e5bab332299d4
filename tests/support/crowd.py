"""A large fleet and its sessions behind a real admin port, without replicas: an engine that is told of turns.

For tests of what people see, where sockets to a hundred replicas would only be slow. Everything is real but
the replicas: engine, telemetry, shadow, chains, admin server. Seeded.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from router.base.ids import ReplicaId, SessionKey, TenantId
from router.controlplane.admin import AdminServer, AdminSources
from router.controlplane.insight import InsightSources
from router.core.chain_watch import ChainWatch, told
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.hashing import hash64
from router.core.memory import Memory, ReplicaMemory, SessionMemory, ShelfMemory
from router.core.model import Model
from router.core.observe import Outcome, Usage
from router.core.outline import FIRST_ROLE, ROLES, Drawing, Outline
from router.core.plan import Plan, PullRules, QueueRules
from router.core.pullbook import PullBook, Pulled
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.shadow import Mirror, Shadow
from router.core.strategies.priced import Priced
from router.core.strategies.ring import RingOnly
from router.core.ticket import Ticket
from router.telemetry.breaks import breaks_overview, session_breaks
from router.telemetry.counters import Counters
from router.telemetry.fanout import Fanout
from router.telemetry.history import History
from router.telemetry.moves import Moves
from router.telemetry.recent import RecentDecisions
from router.telemetry.shadow import shadow_fields
from router.telemetry.timelines import Timelines
from support.reloads import Reloads
from tests.support.digests import digest

SEGMENT_BYTES = 6000
"""Some 1500 tokens."""

_SHAPE = 40
"""Bits of a text that are not digits."""

_SYSTEM_TEXT = 77

STARTED = 1_700_000_000.0
"""When every replica did, in Unix seconds."""

LONGEST = 24
"""Segments of a session; a longer one is followed by another."""

SYSTEM, USER, REPLY = (FIRST_ROLE + ROLES.index(role) for role in ("system", "user", "assistant"))


class WoundClock:
    """The time, which can be put forward: an hour may have passed when a test begins."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


@dataclass
class Lived:
    """A session as its client and its replicas know it."""

    key: SessionKey
    texts: list[int]
    """Hashes of what it says, a segment each: the system prompt, which all share, then messages in turns."""
    tenant: TenantId
    model: str
    taken: dict[ReplicaId, tuple[int, ...]] = field(default_factory=dict)
    """The prompt that a replica had last."""
    busy: bool = False


class Crowd:
    """`turns` makes some happen in no time. `server` is an admin port to be started."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        seed: int = 1,
        reloads: Reloads | None = None,
        models: Sequence[str] = ("coder-70b",),
        tenants: Sequence[str] = ("",),
        token: str = "t0ken",
    ) -> None:
        self.rng = Random(seed)
        self.clock = WoundClock()
        self.models = models
        self.tenants = tenants
        self.counters = Counters()
        self.recent = RecentDecisions(self.clock)
        self.history = History(self.clock)
        self.timelines = Timelines(self.clock)
        self.moves = Moves(self.clock)
        self.chains = ChainWatch()
        self.shadow = Shadow(Plan(name="ring", strategy=RingOnly()))
        observers = [self.counters, self.recent, self.history, self.timelines, self.moves, self.shadow]
        self.engine = Engine(
            [Plan(name="home", strategy=Priced(), queue=QueueRules(), pull=PullRules())],
            rng=self.rng,
            observer=Fanout(observers),
            pullbook=PullBook(PullRules()),
        )
        self.fleet = Mirror(self.engine, self.shadow, _raise)
        now = self.clock.now()
        self.fleet.set_replicas(
            [
                ReplicaSpec(
                    ReplicaId(name), f"http://10.0.0.{at % 250}:8000", kv_agent=f"10.0.0.{at % 250}:7710"
                )
                for at, name in enumerate(names)
            ],
            now,
        )
        self.usage = {ReplicaId(name): self.rng.uniform(0.35, 0.92) for name in names}
        for name in names:
            cards = tuple(ModelCard(model, b"{}") for model in models)
            self.fleet.models(ReplicaId(name), cards, now)
            self.fleet.probe_passed(ReplicaId(name), now)
        self.report()
        self.sessions: list[Lived] = []
        self._by_key: dict[SessionKey | None, Lived] = {}
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._serials = count()
        self.reloads = reloads if reloads is not None else Reloads()
        self.policy = "version: 1\npolicy: home\nstrategy: priced\n"
        self.breakers: dict[ReplicaId, str] = {}
        self.server = AdminServer(
            self.fleet,
            self.clock,
            AdminSources(
                metrics=str,
                policy=lambda: self.policy,
                explain=lambda *_: {},
                reloads=self.reloads,
                insight=InsightSources(
                    decisions=self.recent.newest,
                    decision=self.recent.find,
                    history=self.history,
                    timeline=self.timelines.of,
                    moves=self.moves.fields,
                    breaks=lambda limit, now: breaks_overview(self.chains, limit, now),
                    session=lambda key, now: session_breaks(self.chains, key, now),
                ),
                breakers=lambda: self.breakers,
                policies=lambda: [plan.name for plan in self.engine.plans],
                shadow=lambda limit: shadow_fields(self.shadow, limit),
            ),
            token=token,
        )

    def report(self) -> None:
        """Every replica says how it is."""
        for name, usage in self.usage.items():
            report = Report(STARTED, 3.0, 0.0, usage, 600_000)
            self.fleet.report(name, report, self.clock.now())

    def begin(self, number: int, *, ids: Sequence[str] = ()) -> None:
        """So many more sessions, without a turn yet. `ids`: keys as they are, for the first of them."""
        for at in range(number):
            key = ids[at] if at < len(ids) else f"{self.rng.getrandbits(128):032x}"
            session = Lived(
                SessionKey(key),
                [_SYSTEM_TEXT],
                TenantId(self.rng.choice(self.tenants)),
                self.rng.choice(self.models),
            )
            self.sessions.append(session)
            self._by_key[session.key] = session

    def remember(self, number: int) -> list[SessionKey]:
        """So many sessions more that have lived here for long, as after a restart; returns their keys."""
        nothing = ShelfMemory(b"", b"", b"", b"")
        replicas = [
            ReplicaMemory(name, self.engine.spec(name).url, STARTED, 0, False, nothing, None)
            for name in self.engine.replica_ids()
        ]
        sessions = [
            SessionMemory(
                SessionKey(f"{self.rng.getrandbits(192):048x}"),
                self.rng.choice(self.models),
                TenantId(self.rng.choice(self.tenants)),
                self.rng.choice(replicas).id,
                0,
                self.rng.randrange(2_000, 60_000),
                at,
                100,
                self.rng.randrange(1, 60),
                self.rng.randrange(3),
                900.0 + number - at,
                (number - at) / number * 600.0,
                "x-session-id",
            )
            for at in range(number)
        ]
        self.engine.recollection.recall(Memory(tuple(replicas), tuple(sessions)), self.clock.now(), 0.0)
        return [session.key for session in sessions]

    def turn(self, session: Lived, grow: int = 1) -> Turn:
        """Its next turn, with so many segments more."""
        session.texts += [self.rng.getrandbits(60) for _ in range(grow)]
        hashes: list[int] = []
        for text in session.texts:
            hashes.append(hash64(text.to_bytes(8, "big"), hashes[-1] if hashes else 0))
        ends = tuple(SEGMENT_BYTES * (at + 1) for at in range(len(hashes)))
        chain = Chain(tuple(hashes), ends, 2, 1)
        return Turn(
            "/v1/chat/completions",
            session.model,
            session.tenant,
            session.key,
            "x-session-id",
            chain,
            stream=True,
        )

    def turns(self, number: int, *, over_s: float, breaking: float = 0.0) -> None:
        """So many turns of sessions at random, spread over that time. `breaking`: the share that breaks its
        chain."""
        for _ in range(number):
            at = self.rng.randrange(len(self.sessions))
            session = self.sessions[at]
            if not session.busy:
                if len(session.texts) > LONGEST:
                    # It is over, and another begins in its place.
                    self.begin(1)
                    session = self.sessions[at] = self.sessions.pop()
                if len(session.texts) > 4 and self.rng.random() < breaking:
                    self.rng.choice((_tick, _slide, _compact))(session.texts, self.rng)
                self.send(session, self.rng.choice((1, 1, 1, 2, 6)))
            self.clock.advance(over_s / number)
            self.go_on()

    def send(self, session: Lived, grow: int = 1) -> None:
        """A turn that begins, or waits until a replica has room."""
        session.busy = True
        now = self.clock.now()
        turn = self.turn(session, grow)
        entered = self.engine.enter(turn, now, size=SEGMENT_BYTES * len(session.texts))
        if not isinstance(entered, Held):
            self._begun(session, entered)

    def go_on(self) -> None:
        """Let happen what is due by now: first bytes, ends, and turns that waited."""
        while self._due and self._due[0][0] <= self.clock.now():
            at, _, step = heappop(self._due)
            step(at)
            self._dispatch(at)
        self._dispatch(self.clock.now())

    def _dispatch(self, now: float) -> None:
        went, refused = self.engine.dispatch(now)
        for held, ticket in went:
            self._begun(self._by_key[held.turn.session], ticket)
        for held, _ in refused:
            self._by_key[held.turn.session].busy = False

    def _begun(self, session: Lived, ticket: Ticket) -> None:
        """What a replica would make of it: its first byte after what its cache lacks, then its end."""
        decision, turn = ticket.decision, ticket.turn
        texts = tuple(session.texts)
        asked = told(turn, decision, Model(turn.model))
        if asked is not None:
            self.chains.turn(asked, lambda first: _outline(texts, first))
        hashes, tokens = turn.chain.hashes, decision.prompt_tokens
        before = session.taken.get(decision.replica, ())
        # Of the system prompt, any other session's turn has brought it there.
        there = max(1, sum(one == other for one, other in zip(hashes, before, strict=False)))
        cached = min(tokens - 1, tokens * there // len(hashes))
        pulled = None
        if decision.pull is not None:
            asked_tokens = decision.pull.tokens
            came = asked_tokens if self.rng.random() < 0.9 else asked_tokens // 3
            cached = min(tokens - 1, max(cached, decision.cached_tokens - asked_tokens + came))
            pulled = Pulled(came, came * 160_000, 0.2, came == asked_tokens)
        first = decision.at + 0.02 + (tokens - cached) / 9000.0 * self.rng.uniform(0.8, 1.3)

        def first_byte(at: float) -> None:
            if pulled is not None:
                self.engine.pulled(ticket, pulled, at)
            ticket.first_byte(at)

        def end(at: float) -> None:
            ticket.end(Outcome.COMPLETED, at, Usage(tokens, 120, cached))
            session.taken[decision.replica] = hashes
            session.busy = False

        self._at(first, first_byte)
        self._at(first + self.rng.uniform(0.5, 6.0), end)

    def _at(self, at: float, step: Callable[[float], None]) -> None:
        heappush(self._due, (at, next(self._serials), step))


def _tick(texts: list[int], _rng: Random) -> None:
    """The system prompt says another time of day."""
    texts[0] += 1 << _SHAPE


def _slide(texts: list[int], _rng: Random) -> None:
    """A window has slid over the history."""
    del texts[2:4]


def _compact(texts: list[int], rng: Random) -> None:
    """A summary takes the place of the history."""
    texts[1:] = [rng.getrandbits(60)]


def _outline(texts: Sequence[int], first: int) -> Outline:
    made = Drawing()
    for at, text in enumerate(texts):
        if at >= first:
            tag = SYSTEM if at == 0 else USER if at % 2 else REPLY
            made.add(tag, digest(text), digest(text & ((1 << _SHAPE) - 1)))
    return made.outline()


def _raise(error: Exception) -> None:
    raise error
