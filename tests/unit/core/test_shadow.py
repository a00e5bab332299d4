"""A second policy beside the one in force: on the same turns, without effect."""

from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Kind
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.hashing import hash64
from router.core.observe import Outcome, Usage
from router.core.plan import Overload, Plan
from router.core.request import Chain, Turn
from router.core.shadow import Mirror, Shadow
from router.core.strategies.priced import Priced
from router.core.strategies.round_robin import RoundRobin
from router.core.ticket import Ticket

NAMES = tuple(ReplicaId(name) for name in "abcd")
SPECS = [ReplicaSpec(name, f"http://{name}:8000") for name in NAMES]
HOME = Plan(name="home", strategy=Priced())
ROUNDS = Plan(name="rounds", strategy=RoundRobin())


class Rig:
    """A live engine, a shadow, and the mirror between them."""

    def __init__(self, live: Plan, shadow: Plan, *, watched: bool = True) -> None:
        self.shadow = Shadow(shadow)
        self.errors: list[Exception] = []
        self.live = Engine(
            [live], rng=Random(1), observer=self.shadow if watched else None, on_detach=self.errors.append
        )
        self.mirror = Mirror(self.live, self.shadow, self.errors.append)
        self.mirror.set_replicas(SPECS, 0.0)
        for name in NAMES:
            self.mirror.probe_passed(name, 0.0)
            self.report(name)

    def report(self, name: ReplicaId, now: float = 0.0, start: float = 1.0, **load: float) -> None:
        self.mirror.report(name, Report(start_time=start, kv_capacity_tokens=600_000, **load), now)

    def play(self, session: str, count: int, now: float, outcome: Outcome = Outcome.COMPLETED) -> Ticket:
        ticket = self.live.admit(turn(session, count), now)
        if outcome is Outcome.COMPLETED:
            ticket.first_byte(now + 0.1)
        ticket.end(outcome, now + 1.0, Usage(1000 * count, 20, ticket.decision.cached_tokens))
        assert not self.errors
        return ticket


def turn(session: str, count: int, **more: object) -> Turn:
    """A prompt of so many segments of a thousand tokens."""
    hashes: list[int] = []
    for number in range(count):
        hashes.append(hash64(f"{session} {number}".encode(), hashes[-1] if hashes else 0))
    chain = Chain(tuple(hashes), tuple(4000 * (at + 1) for at in range(count)), 1)
    made = Turn("/v1/chat/completions", "m", OPEN_TENANT, SessionKey(session), "x", chain, stream=True)
    return made.replace(**more)


def converse(rig: Rig, sessions: int = 6, turns: int = 5) -> None:
    for number in range(turns):
        for session in range(sessions):
            rig.play(f"s{session}", 4 + number, 10.0 * number + session)


def test_a_policy_in_its_own_shadow_agrees_with_itself() -> None:
    rig = Rig(HOME, HOME)
    converse(rig)
    tally = rig.shadow.tally
    assert (tally.turns, tally.disagreed, list(rig.shadow.recent)) == (30, 0, [])
    assert tally.kinds == {(Kind.NEW, Kind.NEW): 6, (Kind.HOME, Kind.HOME): 24}
    assert tally.live_cached_tokens == tally.shadow_cached_tokens > 100_000
    assert tally.live_s == pytest.approx(tally.shadow_s)
    assert rig.shadow.in_flight() == 0


def test_a_shadow_lives_in_a_fleet_in_which_its_own_decisions_were_carried_out() -> None:
    rig = Rig(ROUNDS, HOME)
    converse(rig)
    tally = rig.shadow.tally
    # Round-robin scatters the turns; the shadow's sessions have stayed where it put them.
    kinds = {own: count for (_, own), count in tally.kinds.items()}
    assert sum(count for (_, own), count in tally.kinds.items() if own is Kind.HOME) == 24, kinds
    assert tally.shadow_moves == 0
    assert tally.live_moves > 10
    assert tally.shadow_cached_tokens - tally.live_cached_tokens > 20_000
    assert tally.shadow_s < 0.8 * tally.live_s
    assert tally.disagreed > 10
    last = rig.shadow.recent[-1]
    assert last.live.replica != last.shadow.replica
    assert (last.prompt_tokens, last.shadow.kind) == (8000, Kind.HOME)
    assert last.shadow.cached_tokens == 7020
    assert last.shadow.expected_s < last.live.expected_s


def test_the_live_engine_decides_as_it_would_alone() -> None:
    rig, alone = Rig(HOME, ROUNDS), Engine([HOME], rng=Random(1))
    alone.set_replicas(SPECS, 0.0)
    for name in NAMES:
        alone.probe_passed(name, 0.0)
        alone.report(name, Report(start_time=1.0, kv_capacity_tokens=600_000), 0.0)
    for number in range(40):
        ticket = rig.play(f"s{number % 7}", 3 + number // 7, float(number))
        other = alone.admit(turn(f"s{number % 7}", 3 + number // 7), float(number))
        assert other.decision == ticket.decision
        other.first_byte(number + 0.1)
        usage = Usage(1000 * (3 + number // 7), 20, other.decision.cached_tokens)
        other.end(Outcome.COMPLETED, number + 1.0, usage)


def test_a_failure_speaks_against_the_replica_that_had_the_turn_alone() -> None:
    rig = Rig(ROUNDS, HOME)
    rig.play("s", 3, 0.0)
    failed = None
    for number in range(8):
        ticket = rig.play("s", 3, 1.0 + number, Outcome.DIED)
        if rig.shadow.recent and rig.shadow.recent[-1].live.replica == ticket.decision.replica:
            failed = ticket.decision.replica
            break
    assert failed is not None
    own = rig.shadow.recent[-1].shadow.replica
    states = {status.id: status.health for status in rig.shadow._engine.replicas(20.0)}
    assert states[own] == "healthy"
    assert rig.shadow.in_flight() == 0


def test_where_both_sent_it_a_failure_counts_for_both() -> None:
    rig = Rig(HOME, HOME)
    replica = rig.play("s", 3, 0.0, Outcome.DIED).decision.replica
    states = {status.id: status.health for status in rig.shadow._engine.replicas(2.0)}
    assert states[replica] == "down"
    # The turn is tried elsewhere, which is no decision of its own.
    ticket = rig.live.admit(turn("s", 3), 2.0, failed=(replica,))
    assert ticket.decision.attempt == 1
    assert rig.shadow.in_flight() == 1
    ticket.first_byte(3.0)
    ticket.end(Outcome.COMPLETED, 4.0, Usage(3000, 20, 0))
    assert rig.shadow.tally.turns == 1
    assert rig.shadow.in_flight() == 0


def test_a_turn_that_the_shadow_would_refuse_is_counted() -> None:
    rig = Rig(HOME, Plan(name="tight", strategy=Priced(), overload=Overload(in_flight=1)))
    tickets = [rig.live.admit(turn(f"s{number}", 2), 1.0) for number in range(6)]
    assert (rig.shadow.tally.shadow_refused, rig.shadow.tally.turns) == (2, 4)
    for ticket in tickets:
        ticket.end(Outcome.COMPLETED, 2.0)
    assert rig.shadow.in_flight() == 0
    assert not rig.errors


def test_a_turn_that_the_live_policy_refuses_is_counted() -> None:
    rig = Rig(HOME, HOME)
    rig.shadow.on_refused(turn("s", 1), ErrorKind.OVERLOADED, "", 1.0)
    assert rig.shadow.tally.live_refused == 1


def test_a_turn_that_is_pinned_leaves_no_choice() -> None:
    rig = Rig(HOME, ROUNDS)
    ticket = rig.live.admit(turn("s", 2, response_id="r"), 1.0)
    ticket.end(Outcome.COMPLETED, 2.0)
    assert (rig.shadow.tally.pinned, rig.shadow.tally.turns) == (1, 0)


def test_time_spent_in_the_queue_counts_for_the_live_policy() -> None:
    rig = Rig(HOME, HOME)
    ticket = rig.live.admit(turn("s", 2), 1.0)
    ticket.end(Outcome.COMPLETED, 2.0)
    before = rig.shadow.tally.live_s
    rig.shadow.on_decision(turn("t", 2), ticket.decision.replace(waited_s=3.0))
    assert rig.shadow.tally.live_s - before == pytest.approx(3.0 + before)


def test_a_client_that_leaves_after_the_first_byte_leaves_its_prompt_there() -> None:
    rig = Rig(HOME, HOME)
    ticket = rig.live.admit(turn("s", 3), 0.0)
    ticket.first_byte(0.5)
    ticket.end(Outcome.CANCELLED, 1.0)
    early = rig.live.admit(turn("t", 3), 1.0)
    early.end(Outcome.CANCELLED, 1.5)
    assert {session.key[:1] for session in rig.shadow._engine.sessions(9)} == {"s"}


def test_what_is_learned_of_replicas_is_shared_and_their_load_is_not() -> None:
    rig = Rig(HOME, ROUNDS)
    rig.report(NAMES[0], 1.0, running=5.0, waiting=2.0, kv_usage=0.99)
    lent, own = rig.live.lend(NAMES[0]), rig.shadow._engine.lend(NAMES[0])
    assert lent is not None
    assert own is not None
    assert own.learned is lent.learned
    assert own.delivery is lent.delivery
    assert own.foreign == lent.foreign == 7.0
    assert rig.live.lend(ReplicaId("nobody")) is None
    statuses = {status.id: status.report for status in rig.shadow._engine.replicas(1.0)}
    report = statuses[NAMES[0]]
    assert report is not None
    assert (report.kv_usage, report.kv_capacity_tokens) == (None, 600_000)


def test_a_shadow_teaches_nothing() -> None:
    rig, alone = Rig(HOME, HOME), Rig(HOME, HOME, watched=False)
    for each in (rig, alone):
        converse(each)
    for name in NAMES:
        one, other = rig.live.lend(name), alone.live.lend(name)
        assert one is not None
        assert other is not None
        assert one.learned.curve == other.learned.curve
        assert one.learned.holding.mean_s == other.learned.holding.mean_s
        assert (one.delivery.trust, one.delivery.share) == (other.delivery.trust, other.delivery.share)


def test_a_restart_a_drain_and_a_departure_are_told_to_both() -> None:
    rig = Rig(HOME, HOME)
    home = rig.play("s", 4, 0.0).decision.replica
    rig.report(home, 5.0, start=100.0)
    assert rig.live.decide(turn("s", 5), 6.0).cached_tokens == 0
    assert rig.shadow._engine.decide(turn("s", 5), 6.0).cached_tokens == 0
    rig.mirror.drain(NAMES[1], True)
    rig.mirror.models(NAMES[2], (ModelCard("other", b"{}"),), 6.0)
    rig.mirror.probe_failed(NAMES[3], "why", 6.0)
    rig.mirror.probe_failed(NAMES[3], "why", 6.0)
    for engine in (rig.live, rig.shadow._engine):
        statuses = {status.id: status for status in engine.replicas(7.0)}
        assert statuses[NAMES[1]].draining
        assert statuses[NAMES[2]].models == ("other",)
        assert statuses[NAMES[3]].health == "down"
    rig.play("t", 3, 8.0)
    key = next(session.key for session in rig.live.sessions(9) if session.key.startswith("t"))
    assert rig.mirror.end_session(key)
    assert not rig.mirror.end_session(key)
    assert key not in {session.key for session in rig.shadow._engine.sessions(9)}
    rig.mirror.set_replicas(SPECS, 8.5, {NAMES[0]})
    for engine in (rig.live, rig.shadow._engine):
        with pytest.raises(Refused):
            # The others drain, are down or serve another model.
            engine.admit(turn("u", 1), 8.6)
    rig.mirror.set_replicas(SPECS[:2], 9.0)
    assert rig.shadow._engine.replica_ids() == rig.mirror.replica_ids() == NAMES[:2]
    with pytest.raises(KeyError):
        rig.mirror.drain(NAMES[3], True)
    assert not rig.errors


def test_a_shadow_that_fails_is_left_out_and_routing_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(HOME, HOME)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.shadow._engine, "probe_passed", fail)
    for _ in range(2):
        rig.mirror.probe_passed(NAMES[0], 1.0)
    assert [type(error) for error in rig.errors] == [ZeroDivisionError]


def test_another_policy_takes_over_the_sessions_and_counts_anew() -> None:
    rig = Rig(HOME, HOME)
    converse(rig, turns=2)
    rig.shadow.set_plan(ROUNDS)
    assert (rig.shadow.policy, rig.shadow.tally.turns) == ("rounds", 0)
    rig.play("s0", 9, 100.0)
    assert rig.shadow.tally.turns == 1
    assert {own for _, own in rig.shadow.tally.kinds} <= {Kind.HOME, Kind.SPILL}


def test_disagreements_that_are_kept_are_bounded() -> None:
    rig = Rig(HOME, ROUNDS)
    for number in range(400):
        rig.play(f"s{number % 9}", 2, float(number))
    assert rig.shadow.tally.disagreed > 100
    assert len(rig.shadow.recent) == 100
