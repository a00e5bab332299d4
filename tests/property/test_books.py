"""Whatever happens to turns and replicas, in whatever order, the books balance in the end."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from router.base.errors import Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.plan import Overload, Plan
from router.core.request import Chain, Turn
from router.core.strategies.priced import Priced
from router.core.ticket import Ticket

NAMES = [ReplicaId(name) for name in ("a", "b", "c")]


class Books(RuleBasedStateMachine):
    """Choose, first byte, end, cancel, retry, restart, probe, remove and add, in any order."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        # Each turn under way, and the stay in the fleet of the replica that it was given to.
        self.open: dict[Ticket, tuple[ReplicaId, int]] = {}
        self.present: set[ReplicaId] = set()
        self.stays = dict.fromkeys(NAMES, 0)
        self.engine = Engine(
            [Plan(name="p", strategy=Priced(), overload=Overload(in_flight=5))], rng=Random(7)
        )
        self.fleet(set(NAMES))
        for name in NAMES:
            self.engine.probe_passed(name, self.now)

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def fleet(self, names: set[ReplicaId]) -> None:
        for name in self.present - names:
            self.stays[name] += 1
        self.present = names
        self.engine.set_replicas([ReplicaSpec(name, f"http://{name}:1") for name in names], self.now)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(NAMES), well=st.booleans())
    def probe(self, name: ReplicaId, well: bool) -> None:
        if well:
            self.engine.probe_passed(name, self.now)
        else:
            self.engine.probe_failed(name, "down", self.now)

    @rule(name=st.sampled_from(NAMES), start=st.sampled_from([None, 1.0, 1000.0]), busy=st.floats(0, 1))
    def report(self, name: ReplicaId, start: float | None, busy: float) -> None:
        self.engine.report(
            name, Report(start_time=start, running=busy * 9, waiting=0.0, kv_usage=busy), self.now
        )

    @rule(
        target=tickets,
        session=st.sampled_from(["s", "t", None]),
        length=st.integers(0, 4),
        stream=st.booleans(),
        failed=st.lists(st.sampled_from(NAMES), max_size=2),
    )
    def choose(self, session: str | None, length: int, stream: bool, failed: list[ReplicaId]) -> object:
        turn = Turn(
            "/v1/chat/completions",
            "m",
            OPEN_TENANT,
            SessionKey(session) if session else None,
            "x-session-id" if session else "",
            Chain(tuple(range(length)), tuple(4000 * (at + 1) for at in range(length)), min(length, 1)),
            stream=stream,
        )
        try:
            ticket = self.engine.admit(turn, self.now, failed=tuple(failed))
        except Refused:
            return multiple()
        assert ticket.decision.replica not in failed
        replica = ticket.decision.replica
        self.open[ticket] = (replica, self.stays[replica])
        return ticket

    @rule(ticket=tickets)
    def first_byte(self, ticket: Ticket) -> None:
        ticket.first_byte(self.now)

    @rule(ticket=consumes(tickets), outcome=st.sampled_from(list(Outcome)), tokens=st.integers(0, 9000))
    def end(self, ticket: Ticket, outcome: Outcome, tokens: int) -> None:
        ticket.end(outcome, self.now, Usage(tokens, 10, tokens // 3) if tokens else None)
        del self.open[ticket]
        ticket.end(Outcome.COMPLETED, self.now)

    @invariant()
    def counters_match_the_open_turns(self) -> None:
        sessions = self.engine.sessions(100)
        for status in self.engine.replicas(self.now):
            stay = (status.id, self.stays[status.id])
            # Those that its last life had died with that.
            turns = [t for t, where in self.open.items() if where == stay and t.of_this_life]
            living = [s for s in sessions if s.home == status.id and not s.counted_in.over]
            assert status.in_flight == len(turns)
            assert status.pending_tokens == sum(ticket.missing for ticket in turns)
            assert status.sessions == len(living)
            assert status.working_set_tokens == sum(s.resident_tokens for s in living)

    def teardown(self) -> None:
        for ticket in self.open:
            ticket.end(Outcome.CANCELLED, self.now)
        for status in self.engine.replicas(self.now):
            assert (status.in_flight, status.pending_tokens) == (0, 0)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
