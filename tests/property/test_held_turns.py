"""Whatever happens while turns wait, none is lost, none goes twice, and everything counts down to zero."""

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from router.base.errors import Refused
from router.base.ids import ReplicaId, SessionKey, TenantId
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.observe import Outcome, WaitEnd
from router.core.observer import Silent
from router.core.plan import Overload, Plan, QueueRules
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.strategies.least_loaded import LeastLoaded
from router.core.strategies.priced import Priced
from router.core.strategies.two_choices import TwoChoices
from router.core.ticket import Ticket

NAMES = [ReplicaId(name) for name in ("a", "b", "c")]
WAIT_S = 50.0


class _Ends(Silent):
    """How each wait ended."""

    def __init__(self) -> None:
        self.ends: list[WaitEnd] = []
        self.shortest_s = 0.0

    def on_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        # How long is for who dispatches: a turn is told of when somebody looks. What an observer raises would
        # only detach it.
        self.shortest_s = min(self.shortest_s, waited_s)
        self.ends.append(end)


class HeldTurns(RuleBasedStateMachine):
    """Enter, dispatch, leave, end, report, lose and regain replicas, in any order, under three policies."""

    tickets = Bundle("tickets")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.watcher = _Ends()
        rules = QueueRules(ageing=0.1, wait_s=WAIT_S, most=12, most_bytes=4000, leads_s={"high": 20.0})
        self.engine = Engine(
            [
                Plan(name="home", strategy=Priced(), queue=rules),
                Plan(name="fixed", strategy=TwoChoices(), queue=QueueRules(horizon_s=0.5, most=12)),
                Plan(
                    name="limited",
                    strategy=LeastLoaded(),
                    overload=Overload(in_flight=2),
                    queue=QueueRules(in_flight=2, most=12),
                ),
                Plan(name="engine", strategy=Priced()),
            ],
            rng=Random(7),
            observer=self.watcher,
        )
        self.waiting: set[Held] = set()
        self.running: dict[Ticket, None] = {}
        """In order: what Hypothesis draws must not hang on addresses."""
        self.entered = self.went = self.refused = self.left = 0
        self.fleet(set(NAMES))
        for name in NAMES:
            self.engine.probe_passed(name, self.now)

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def fleet(self, names: set[ReplicaId]) -> None:
        self.engine.set_replicas([ReplicaSpec(name, f"http://{name}:1") for name in names], self.now)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(NAMES), well=st.booleans())
    def probe(self, name: ReplicaId, well: bool) -> None:
        if well:
            self.engine.probe_passed(name, self.now)
        else:
            self.engine.probe_failed(name, "down", self.now)

    @rule(
        name=st.sampled_from(NAMES),
        start=st.sampled_from([None, 1.0, 1000.0]),
        usage=st.sampled_from([None, 0.0, 0.5, 0.99]),
        waiting=st.integers(0, 9),
    )
    def report(self, name: ReplicaId, start: float | None, usage: float | None, waiting: int) -> None:
        self.engine.report(name, Report(start, 3.0, float(waiting), usage, 20_000), self.now)

    @rule(
        target=held,
        tenant=st.sampled_from(["", "acme", "beta"]),
        session=st.sampled_from(["s", "t", None]),
        length=st.integers(0, 9),
        stream=st.booleans(),
        plan=st.integers(0, 3),
        high=st.booleans(),
        size=st.integers(0, 1500),
    )
    def enter(
        self, tenant: str, session: str | None, length: int, stream: bool, plan: int, high: bool, size: int
    ) -> object:
        turn = Turn(
            "/v1/chat/completions",
            "m",
            TenantId(tenant),
            SessionKey(session) if session else None,
            "x-session-id" if session else "",
            Chain(tuple(range(length)), tuple(8000 * (at + 1) for at in range(length)), min(length, 1)),
            stream=stream,
        )
        priority = "high" if high and plan == 0 else None
        try:
            entered = self.engine.enter(turn, self.now, plan=plan, priority=priority, size=size)
        except Refused:
            return multiple()
        if isinstance(entered, Ticket):
            assert entered.decision.waited_s == 0.0
            self.running[entered] = None
            return multiple()
        assert plan != 3
        assert length > 0
        self.entered += 1
        self.waiting.add(entered)
        return entered

    @rule()
    def dispatch(self) -> None:
        went, refused = self.engine.dispatch(self.now)
        for held, ticket in went:
            self.waiting.remove(held)
            assert ticket not in self.running
            self.running[ticket] = None
            self.went += 1
        for held, _ in refused:
            self.waiting.remove(held)
            self.refused += 1
        assert all(held.deadline > self.now for held in self.waiting)

    @rule(held=consumes(held))
    def leave(self, held: Held) -> None:
        # The queue may have pushed it out already, and not have told yet.
        self.left += held.waiting
        if held.waiting:
            self.waiting.remove(held)
        self.engine.leave(held, self.now)
        self.engine.leave(held, self.now)

    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)), answered=st.booleans())
    def end(self, data: st.DataObject, outcome: Outcome, answered: bool) -> None:
        if not self.running:
            return
        ticket = data.draw(st.sampled_from(list(self.running)))
        if answered:
            ticket.first_byte(self.now)
        if outcome is not Outcome.OVER_LIMIT:
            del self.running[ticket]
            ticket.end(outcome, self.now)

    @invariant()
    def everything_is_somewhere_and_nowhere_twice(self) -> None:
        engine = self.engine
        assert engine.held == sum(held.waiting for held in self.waiting)
        statuses = engine.replicas(self.now)
        assert sum(status.in_flight for status in statuses) <= len(self.running)
        assert engine.held <= 12
        wake = engine.wake_at()
        assert (wake is None) == (not engine.held)

    def teardown(self) -> None:
        self.dispatch()
        for held in list(self.waiting):
            self.leave(held)
        for ticket in self.running:
            ticket.end(Outcome.CANCELLED, self.now)
        engine = self.engine
        assert (engine.held, engine.dispatch(self.now)) == (0, ([], []))
        assert engine._waiting._queue.size == 0
        for status in engine.replicas(self.now):
            assert (status.in_flight, status.pending_tokens, status.held) == (0, 0, 0)
        for member in engine._members.values():
            assert member.kv_tokens == 0
        ends = self.watcher.ends
        assert self.watcher.shortest_s >= 0.0
        assert len(ends) == self.entered == self.went + self.refused + self.left
        assert ends.count(WaitEnd.DISPATCHED) == self.went
        assert ends.count(WaitEnd.LEFT) == self.left


TestHeldTurns = HeldTurns.TestCase
