"""One policy over one workload, in virtual time: the router's own engine, and replicas to carry it out.

The engine is told what a live one learns, when it would: the first token, the end with the usage, and a
look at each replica's metrics every second. Probes always pass. Between two events nothing runs.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

from heapq import heappop, heappush
from itertools import count
from math import floor
from random import Random
from typing import Final

from router.base.errors import Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.observe import Outcome, Silent, Usage
from router.core.plan import Plan
from router.core.queue import Held
from router.core.request import Turn
from router.core.ticket import Ticket
from router.simulator.model import EngineModel, Finished, FirstToken, Job
from router.simulator.replay.figures import Measured
from router.simulator.replay.workload import Player, Workload, begin
from router.simulator.settings import ReplicaSettings

REPORT_EVERY_S: Final = 1.0

# What happens at one instant happens in this order: requests that come at once share a step, and a report
# shows what the step has done.
_ARRIVAL, _WAKE, _REPORT, _DISPATCH = range(4)


class _Watcher(Silent):
    """Counts what the engine says of its decisions."""

    __slots__ = ("_measured",)

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        self._measured.kinds[decision.kind.value] += 1

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self._measured.moves += 1


class _Running:
    """A turn on a replica."""

    __slots__ = ("cached_tokens", "player", "ticket")

    def __init__(self, player: Player, ticket: Ticket) -> None:
        self.player = player
        self.ticket = ticket
        self.cached_tokens = 0


class _Replica:
    """A replica's model, and what is due of it."""

    __slots__ = ("due", "id", "model", "offset_s", "running", "watched")

    def __init__(self, number: int, of: int, settings: ReplicaSettings) -> None:
        self.id = ReplicaId(f"r{number}")
        self.model = EngineModel(settings, token_events=False)
        self.running: dict[str, _Running] = {}
        self.due: float | None = None
        """When it is to be woken; other wakes are out of date."""
        self.watched = False
        """Whether a look at its metrics is due. There is none while it stays as idle as it was reported."""
        self.offset_s = number / of * REPORT_EVERY_S
        """Replicas are looked at one after the other."""


class FleetReplay:
    """A fleet of equal replicas behind one policy. Runs once."""

    def __init__(
        self, plan: Plan, workload: Workload, settings: ReplicaSettings, *, replicas: int, seed: int
    ) -> None:
        self.measured = Measured()
        self._engine = Engine([plan], rng=Random(seed), observer=_Watcher(self.measured), on_detach=_reraise)
        self._model = settings.model
        self._capacity = settings.usable_blocks * settings.block_size
        self._host_capacity = settings.host_kv_blocks * settings.block_size
        self._replicas = {
            replica.id: replica for replica in (_Replica(n, replicas, settings) for n in range(replicas))
        }
        self._held: dict[Held, Player] = {}
        """Turns that wait in the router, and whose they are."""
        self._dispatch_at: float | None = None
        """When the router is to look after them although nothing happened; other times are out of date."""
        self._agenda: list[tuple[float, int, int, Player | _Replica | None]] = []
        self._order = count()
        self._numbers = count()
        self._engine.set_replicas([ReplicaSpec(name, f"http://{name}:8000") for name in self._replicas], 0.0)
        for replica in self._replicas.values():
            self._engine.probe_passed(replica.id, 0.0)
            self._engine.models(replica.id, (ModelCard(settings.model, b"{}"),), 0.0)
            self._report(replica, 0.0)
        for at, script in workload.starts:
            for player in begin(script, at):
                self._push(player.began, _ARRIVAL, player)

    def run(self) -> Measured:
        """Play every session to its end."""
        agenda = self._agenda
        while agenda:
            now, kind, _, subject = heappop(agenda)
            if isinstance(subject, Player):
                self._arrive(subject, now)
            elif subject is None:
                if self._dispatch_at == now:
                    self._dispatch_at = None
                    self._dispatch(now)
            elif kind == _WAKE:
                if subject.due == now:
                    self._wake(subject, now)
            else:
                self._look(subject, now)
        self.measured.prefilled = [r.model.counters.computed_tokens for r in self._replicas.values()]
        return self.measured

    def _push(self, at: float, kind: int, subject: "Player | _Replica | None") -> None:
        heappush(self._agenda, (at, kind, next(self._order), subject))

    def _arrive(self, player: Player, now: float) -> None:
        """A turn is here: it is decided, and queued where the decision says."""
        player.arrive(now)
        step = player.step
        turn = Turn(
            "/v1/chat/completions",
            self._model,
            OPEN_TENANT,
            player.script.key,
            "x-session-id",
            step.chain,
            stream=True,
            parent=player.script.parent,
            last=step.last,
        )
        try:
            entered = self._engine.enter(turn, now)
        except Refused:
            self.measured.refused += 1
            return
        for agent in player.started():
            self._push(agent.began, _ARRIVAL, agent)
        if isinstance(entered, Held):
            self._held[entered] = player
        else:
            self._submit(player, entered, now)
        self._set_dispatch(now)

    def _dispatch(self, now: float) -> None:
        """Let turns go that waited in the router for what has just happened."""
        if not self._held:
            return
        went, refused = self._engine.dispatch(now)
        for held, _ in refused:
            del self._held[held]
            self.measured.refused += 1
        for held, ticket in went:
            self._submit(self._held.pop(held), ticket, now)
        self._set_dispatch(now)

    def _set_dispatch(self, now: float) -> None:
        at = self._engine.wake_at(now) if self._held else None
        if at != self._dispatch_at:
            self._dispatch_at = at
            if at is not None:
                self._push(at, _DISPATCH, None)

    def _submit(self, player: Player, ticket: Ticket, now: float) -> None:
        step = player.step
        replica = self._replicas[ticket.decision.replica]
        name = str(next(self._numbers))
        replica.running[name] = _Running(player, ticket)
        hashes = [*player.hashes, *step.reply]
        replica.model.submit(Job(name, step.prompt_tokens, step.output_tokens, hashes), now)
        self._set_wake(replica, now)
        if not replica.watched:
            replica.watched = True
            rounds = floor((now - replica.offset_s) / REPORT_EVERY_S) + 1
            self._push(replica.offset_s + rounds * REPORT_EVERY_S, _REPORT, replica)

    def _set_wake(self, replica: _Replica, now: float) -> None:
        at = replica.model.next_outcome_time()
        if at is not None and at < now:
            at = now
        if at != replica.due:
            replica.due = at
            if at is not None:
                self._push(at, _WAKE, replica)

    def _wake(self, replica: _Replica, now: float) -> None:
        """Take what a replica has done by now."""
        replica.due = None
        measured = self.measured
        for event in replica.model.advance(now):
            if isinstance(event, FirstToken):
                running = replica.running[event.id]
                running.cached_tokens = event.cached_tokens
                running.ticket.first_byte(event.at)
                measured.ttft_s.append(event.at - running.player.arrived)
                measured.prompt_tokens += running.player.step.prompt_tokens
                measured.cached_tokens += event.cached_tokens
            elif isinstance(event, Finished):
                running = replica.running.pop(event.id)
                step = running.player.step
                usage = Usage(step.prompt_tokens, step.output_tokens, running.cached_tokens)
                running.ticket.end(Outcome.COMPLETED, event.at, usage)
                self._answered(running.player, event.at)
        self._set_wake(replica, now)
        self._dispatch(now)

    def _answered(self, player: Player, now: float) -> None:
        following = player.answered(now)
        if following is not None:
            self._push(following, _ARRIVAL, player)
        elif not player.script.beside:
            self.measured.session_s.append(now - player.began)

    def _look(self, replica: _Replica, now: float) -> None:
        self._report(replica, now)
        self._dispatch(now)
        replica.watched = replica.model.in_flight > 0
        if replica.watched:
            self._push(now + REPORT_EVERY_S, _REPORT, replica)

    def _report(self, replica: _Replica, now: float) -> None:
        stats = replica.model.stats(now)
        report = Report(
            start_time=0.0,
            running=float(stats.running),
            waiting=float(stats.waiting + stats.loading),
            kv_usage=stats.kv_usage,
            kv_capacity_tokens=self._capacity,
            host_kv_tokens=self._host_capacity,
        )
        self._engine.report(replica.id, report, now)


def _reraise(error: Exception) -> None:
    raise error
