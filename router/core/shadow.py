"""A second policy that decides beside the one in force, on the same turns and without effect.

It has an engine of its own, in which its decisions are carried out: sessions live where it would have sent
them, and caches hold what it would have left there. What a replica is, whether it is well and how fast, both
learn from the same reports; what only the real course of things shows (a replica's KV usage, cached tokens
delivered) is not known of a course that was not taken. Where the two disagree, the gain is an estimate: of
either decision, by its own engine's books.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

from collections import deque
from collections.abc import Callable, Container, Iterable
from random import Random
from typing import Final, NamedTuple

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.observe import FAILURES, Ended, Outcome
from router.core.observer import Silent
from router.core.plan import Plan
from router.core.price import expected_s
from router.core.request import Turn
from router.core.session import Session
from router.core.ticket import Ticket

_KEPT: Final = 100
"""Disagreements that are kept to be shown."""


class Side(NamedTuple):
    """One of two decisions on a turn."""

    replica: ReplicaId
    kind: Kind
    reason: str
    cached_tokens: int
    expected_s: float
    """From the turn's arrival to its first token."""


class Disagreement(NamedTuple):
    """A turn that the shadow would have sent elsewhere."""

    session: SessionKey | None
    prompt_tokens: int
    live: Side
    shadow: Side


class Tally:
    """What came of the comparison so far. Times are seconds."""

    __slots__ = (
        "disagreed",
        "kinds",
        "live_cached_tokens",
        "live_moves",
        "live_refused",
        "live_s",
        "pinned",
        "prompt_tokens",
        "shadow_cached_tokens",
        "shadow_moves",
        "shadow_refused",
        "shadow_s",
        "turns",
    )

    def __init__(self) -> None:
        self.turns = 0
        """Turns that both decided on."""
        self.disagreed = 0
        """Those that the shadow would have sent elsewhere."""
        self.kinds: dict[tuple[Kind, Kind], int] = {}
        """Turns by the kind of the live decision and of the shadow's."""
        self.prompt_tokens = 0
        self.live_cached_tokens = 0
        """Of those turns' prompts, expected to be found; by the live engine's books."""
        self.shadow_cached_tokens = 0
        self.live_s = 0.0
        """Expected times to the first token, added up."""
        self.shadow_s = 0.0
        self.live_moves = 0
        self.shadow_moves = 0
        self.live_refused = 0
        """Turns that got no replica, whatever the shadow would have done."""
        self.shadow_refused = 0
        """Turns that were served and that the shadow would have refused."""
        self.pinned = 0
        """Turns that go on from a stored response, which leave no choice."""


class _Moves(Silent):
    """Counts the moves of the shadow's sessions."""

    __slots__ = ("_shadow",)

    def __init__(self, shadow: "Shadow") -> None:
        self._shadow = shadow

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self._shadow.tally.shadow_moves += 1


class Shadow(Silent):
    """An `Observer` of the live engine. Its replicas are told of by `Mirror`.

    Its turns go out at once: what order it would serve them in is not asked. Bounded like the live engine,
    whose memory it has once more.
    """

    __slots__ = ("_engine", "_seed", "_tickets", "recent", "tally")

    def __init__(self, plan: Plan, *, seed: int = 0) -> None:
        self._seed = seed
        self._tickets: dict[int, Ticket] = {}
        """By identity: the engine ends a turn with the object that it began with, and each ticket keeps its
        turn alive."""
        self.tally = Tally()
        self.recent: deque[Disagreement] = deque(maxlen=_KEPT)
        """The last ones, newest last."""
        self._engine = Engine([plan], rng=Random(seed), observer=_Moves(self))

    @property
    def policy(self) -> str:
        """The name of the policy that decides here."""
        return self._engine.plans[0].name

    def set_plan(self, plan: Plan) -> None:
        """Let another policy decide from now on. Sessions stay where they are, and counting begins anew."""
        self._engine.set_plans([plan])
        self.tally = Tally()
        self.recent.clear()

    # --- turns --------------------------------------------------------------------------------------

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        tally = self.tally
        if turn.response_id is not None:
            tally.pinned += not decision.attempt
            return
        try:
            # As if it were not streamed: when its first token would have come, nobody will tell.
            ticket = self._engine.admit(turn.replace(stream=False), decision.at)
        except Refused:
            tally.shadow_refused += not decision.attempt
            return
        self._tickets[id(turn)] = ticket
        if decision.attempt:
            return
        own = ticket.decision
        live_s = decision.waited_s + _expected_s(decision)
        shadow_s = _expected_s(own)
        tally.turns += 1
        kinds = decision.kind, own.kind
        tally.kinds[kinds] = tally.kinds.get(kinds, 0) + 1
        tally.prompt_tokens += decision.prompt_tokens
        tally.live_cached_tokens += decision.cached_tokens
        tally.shadow_cached_tokens += own.cached_tokens
        tally.live_s += live_s
        tally.shadow_s += shadow_s
        if own.replica != decision.replica:
            tally.disagreed += 1
            sides = _side(decision, live_s), _side(own, shadow_s)
            self.recent.append(Disagreement(turn.session, decision.prompt_tokens, *sides))

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self.tally.live_refused += 1

    def on_ended(self, ended: Ended) -> None:
        ticket = self._tickets.pop(id(ended.turn), None)
        if ticket is None:
            return
        outcome, now, usage = ended.outcome, ended.now, ended.usage
        if outcome in FAILURES:
            # It speaks against the replica that had it, and only there.
            same = ticket.decision.replica == ended.decision.replica
            ticket.end(outcome if same else Outcome.CANCELLED, now)
            return
        if outcome is Outcome.COMPLETED or ended.ttft_s is not None:
            ticket.first_byte(now)
        # How much of the prompt was cached is true of where the turn went, and of what had gone there.
        ticket.end(outcome, now, usage.replace(cached_tokens=None) if usage is not None else None)

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self.tally.live_moves += 1

    # --- replicas -----------------------------------------------------------------------------------

    def set_replicas(
        self, specs: Iterable[ReplicaSpec], now: float, leaving: Container[ReplicaId] = ()
    ) -> None:
        self._engine.set_replicas(specs, now, leaving)

    def probe_passed(self, replica: ReplicaId, now: float) -> None:
        self._engine.probe_passed(replica, now)

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None:
        self._engine.probe_failed(replica, why, now)

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...], now: float) -> None:
        self._engine.models(replica, cards, now)

    def drain(self, replica: ReplicaId, on: bool) -> None:
        self._engine.drain(replica, on)

    def end_session(self, key: SessionKey) -> None:
        self._engine.end_session(key)

    def report(self, live: Engine, replica: ReplicaId, report: Report, now: float) -> None:
        """What a replica says of itself, but for what its load is: that is the live policy's doing."""
        self._engine.report(replica, report._replace(running=None, waiting=None, kv_usage=None), now)
        lent = live.lend(replica)
        if lent is not None:
            self._engine.borrow(replica, lent)

    def in_flight(self) -> int:
        """Turns that it believes to be under way."""
        return self._engine.in_flight()


class Mirror:
    """The live engine, and a shadow that is told the same of replicas. What is asked, the live one answers.

    A shadow that fails is left out from then on, and `on_failure` is told why: routing goes on.
    """

    def __init__(self, live: Engine, shadow: Shadow | None, on_failure: Callable[[Exception], None]) -> None:
        self._live = live
        self._shadow = shadow
        self._on_failure = on_failure
        self.replica_ids = live.replica_ids
        self.spec = live.spec
        self.replicas = live.replicas
        self.sessions = live.sessions
        self.sessions_of = live.sessions_of
        self.session_count = live.session_count
        self.whereabouts = live.whereabouts
        self.held_turns = live.held_turns

    def set_replicas(
        self, specs: Iterable[ReplicaSpec], now: float, leaving: Container[ReplicaId] = ()
    ) -> None:
        specs = tuple(specs)
        self._live.set_replicas(specs, now, leaving)
        self._tell(lambda shadow: shadow.set_replicas(specs, now, leaving))

    def probe_passed(self, replica: ReplicaId, now: float) -> None:
        self._live.probe_passed(replica, now)
        self._tell(lambda shadow: shadow.probe_passed(replica, now))

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None:
        self._live.probe_failed(replica, why, now)
        self._tell(lambda shadow: shadow.probe_failed(replica, why, now))

    def report(self, replica: ReplicaId, report: Report, now: float) -> None:
        self._live.report(replica, report, now)
        self._tell(lambda shadow: shadow.report(self._live, replica, report, now))

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...], now: float) -> None:
        self._live.models(replica, cards, now)
        self._tell(lambda shadow: shadow.models(replica, cards, now))

    def drain(self, replica: ReplicaId, on: bool) -> None:
        """Raises `KeyError` if the replica is unknown."""
        self._live.drain(replica, on)
        self._tell(lambda shadow: shadow.drain(replica, on))

    def end_session(self, key: SessionKey) -> list[Session]:
        """Returns what was known of it."""
        self._tell(lambda shadow: shadow.end_session(key))
        return self._live.end_session(key)

    def _tell(self, say: Callable[[Shadow], None]) -> None:
        if self._shadow is None:
            return
        try:
            say(self._shadow)
        except Exception as error:  # noqa: BLE001 - a shadow must never stop routing
            self._shadow = None
            self._on_failure(error)


def _side(decision: Decision, expected_s: float) -> Side:
    return Side(decision.replica, decision.kind, decision.reason, decision.cached_tokens, expected_s)


def _expected_s(decision: Decision) -> float:
    """From the decision to the first token, by its own bill: what is to be prefilled before it, and itself.

    Without the wait for KV blocks, which is known of the live fleet alone.
    """
    return expected_s(decision.chosen.replace(slot_s=0.0), decision.prompt_tokens, decision.pull)
