"""One policy over one workload, in virtual time: the router's own engine, and replicas to carry it out.

The engine is told what a live one learns, when it would: the first token, the end with the usage, how pulls
ended, and a look at each replica's metrics every second. Probes pass, but of a replica that was killed.
Between two events nothing runs.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

import re
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from math import floor, inf
from random import Random
from typing import Final

from router.base.errors import Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report, Role
from router.core.holdings import Holdings
from router.core.observe import Outcome, Usage
from router.core.observer import Silent
from router.core.plan import Plan
from router.core.price import expected_s
from router.core.pullbook import PullBook
from router.core.queue import Held
from router.core.request import Turn
from router.core.ticket import Ticket
from router.simulator.model import EngineModel, Finished, FirstToken, Job
from router.simulator.replay.events import FleetEvent, check_events
from router.simulator.replay.figures import Measured
from router.simulator.replay.gateway import GATEWAY, Pool
from router.simulator.replay.network import Network
from router.simulator.replay.pairs import Pairs
from router.simulator.replay.pulls import Pulls
from router.simulator.replay.stage import REPORT_EVERY_S, Alarm, Replica, Running, Stage
from router.simulator.replay.workload import Player, Workload, begin
from router.simulator.settings import ReplicaSettings

# What happens at one instant happens in this order: requests that come at once share a step, and a report
# shows what the step has done.
_EVENT, _NETWORK, _ARRIVAL, _WAKE, _ALARM, _REPORT, _DISPATCH = range(7)

# A client whose turn died with its replica asks again.
_AGAIN_AFTER_S: Final = 1.0


class _Watcher(Silent):
    """Counts what the engine says of its decisions."""

    __slots__ = ("_measured",)

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        self._measured.kinds[decision.kind.value] += 1

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self._measured.moves += 1


def replica_names(replicas: int, prefills: int = 0) -> list[str]:
    """Of a fleet: `r0` and so on, and `p0` and so on for those that prefill for them."""
    return [f"r{number}" for number in range(replicas)] + [f"p{number}" for number in range(prefills)]


def check_names(events: Sequence[FleetEvent]) -> None:
    """Raise `ValueError` where one adds a replica whose name does not say what it does in a fleet that parts
    prefill from decode."""
    for event in events:
        if event.what == "add" and not re.fullmatch("[pr][0-9]+", event.replica):
            raise ValueError(f"{event}: p9 prefills, r9 decodes, and {event.replica} says neither")


class FleetReplay(Stage):
    """A fleet of equal replicas behind one policy. Runs once."""

    def __init__(
        self,
        plan: Plan,
        workload: Workload,
        settings: ReplicaSettings,
        *,
        replicas: int,
        seed: int,
        pull_gbps: float = 0.0,
        gateway_tokens: int = 0,
        prefills: int = 0,
        events: Sequence[FleetEvent] = (),
    ) -> None:
        """`pull_gbps`: what each replica sends, and receives, of others' KV in gigabits a second; 0 = no
        pulls. `gateway_tokens`: what a KV gateway holds beside them; 0 = there is none, nor without pulls.
        `prefills`: so many more replicas compute prompts, and those that answer, `replicas`, fetch them; KV
        then goes between the two kinds and nowhere else. 0 = every replica does both. One that an event adds
        is called `p` or `r` and a number.

        Raises `ValueError` for events that cannot happen, and for prefill replicas whose KV cannot go
        anywhere."""
        names = [ReplicaId(name) for name in replica_names(replicas, prefills)]
        check_events(events, names)
        if prefills:
            if not pull_gbps or gateway_tokens:
                raise ValueError("prefill replicas need `pull_gbps`, and no gateway")
            check_names(events)
        self.measured = Measured()
        self._network = Network(pull_gbps) if pull_gbps else None
        self._pool: Pool | None = None
        if self._network is not None and gateway_tokens:
            self._pool = Pool(settings, gateway_tokens, self._network)
        self._engine = Engine(
            [plan],
            rng=Random(seed),
            observer=_Watcher(self.measured),
            on_detach=_reraise,
            pullbook=PullBook(plan.pull) if pull_gbps and not prefills else None,
            holdings=Holdings((GATEWAY,), agents_tell=False) if self._pool is not None else None,
        )
        self._settings = settings
        self._pool_due = False
        """Whether the gateway is to report."""
        self._network_at: float | None = None
        """When its next transfer ends; other times are out of date."""
        self._model = settings.model
        self._capacity = settings.usable_blocks * settings.block_size
        self._host_capacity = settings.host_kv_blocks * settings.block_size
        self._paired = prefills > 0
        self._replicas = {
            name: Replica(name, self._role(name), number / len(names), settings)
            for number, name in enumerate(names)
        }
        self._pairs: Pairs | None = None
        self._pulls: Pulls | None = None
        shared = self._engine, settings, self._replicas, self.measured, self
        if self._network is not None and prefills:
            self._pairs = Pairs(*shared, self._network)
        elif self._network is not None:
            self._pulls = Pulls(*shared, self._network, self._pool)
        self._held: dict[Held, tuple[Player, bool]] = {}
        """Turns that wait in the router: whose they are, and whether each is asked for as a whole."""
        self._dispatch_at: float | None = None
        """When the router is to look after them although nothing happened; other times are out of date."""
        self._asked_at: dict[Player, float] = {}
        """Turns whose replica died, and when they were first asked for."""
        self._agenda: list[tuple[float, int, int, _Subject]] = []
        self._order = count()
        self._numbers = count()
        self._set_replicas(0.0)
        for replica in self._replicas.values():
            self._introduce(replica, 0.0)
        for event in events:
            self._push(event.at_s, _EVENT, event)
        for at, script in workload.starts:
            for player in begin(script, at):
                self._push(player.began, _ARRIVAL, player)

    def run(self, until_s: float = inf) -> Measured:
        """Play every session to its end, or until then."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= until_s:
            now, kind, _, subject = heappop(agenda)
            if isinstance(subject, Player):
                self._arrive(subject, now)
            elif isinstance(subject, FleetEvent):
                self._happen(subject, now)
            elif isinstance(subject, Network):
                if self._network_at == now:
                    self._network_at = None
                    self._receive(subject, now)
            elif isinstance(subject, Pool):
                self._pool_due = False
                self._engine.agent_reported(GATEWAY, subject.report(now), now)
            elif isinstance(subject, Alarm):
                assert self._pairs is not None
                self._pairs.reminded(subject, now)
            elif subject is None:
                if self._dispatch_at == now:
                    self._dispatch_at = None
                    self._dispatch(now)
            elif kind == _WAKE:
                if subject.due == now:
                    self._wake(subject, now)
            else:
                self._look(subject, now)
        self.measured.prefilled = [
            replica.model.counters.computed_tokens
            for replica in self._replicas.values()
            if not self._paired or replica.role is Role.PREFILL
        ]
        return self.measured

    def _push(self, at: float, kind: int, subject: "_Subject") -> None:
        heappush(self._agenda, (at, kind, next(self._order), subject))

    def _arrive(self, player: Player, now: float) -> None:
        """A turn is here: it is decided, and queued where the decision says."""
        player.arrive(now)
        step = player.step
        pairs = self._pairs
        whole = pairs is not None and pairs.is_whole(last=step.last)
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
            pairs=pairs is not None,
            returns=pairs is not None,
            one_way=pairs is not None and pairs.is_one_way(last=step.last),
        )
        try:
            entered = self._engine.enter(turn, now)
        except Refused:
            self.measured.refused += 1
            return
        if player not in self._asked_at:
            for agent in player.started():
                self._push(agent.began, _ARRIVAL, agent)
        if isinstance(entered, Held):
            self._held[entered] = player, whole
        else:
            self._submit(player, entered, now, whole=whole)
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
            player, whole = self._held.pop(held)
            self._submit(player, ticket, now, whole=whole)
        self._set_dispatch(now)

    def _set_dispatch(self, now: float) -> None:
        at = self._engine.wake_at() if self._held else None
        if at != self._dispatch_at:
            self._dispatch_at = at
            if at is not None:
                self._push(at, _DISPATCH, None)

    def _submit(self, player: Player, ticket: Ticket, now: float, *, whole: bool) -> None:
        asked_at = self._asked_at.pop(player, player.arrived)
        hashes = [*player.hashes, *player.step.reply]
        self._go(Running(player, ticket, hashes, asked_at, whole=whole), now)

    def _go(self, running: Running, now: float) -> None:
        """A turn goes to its replica, once its prompt is computed where another one does that."""
        if self._pairs is not None and self._pairs.begin(running, now):
            return
        pulls = self._pulls
        name = self.next_name()
        reached = not self._replicas[running.ticket.decision.replica].dead
        pulled = pulls.begin(name, running, now) if pulls is not None and reached else 0
        self.answer(name, running, pulled, now)

    def next_name(self) -> str:
        """Of a job, and of the transfer that it waits for."""
        return str(next(self._numbers))

    def answer(self, name: str, running: Running, pulled: int, now: float, *, keep: bool = False) -> None:
        """Let a turn's replica answer; `pulled` leading blocks are on their way there. `keep`: its blocks
        stay when it has."""
        step = running.player.step
        replica = self._replicas[running.ticket.decision.replica]
        if replica.dead:
            self.move_on(running, now)
            return
        replica.running[name] = running
        job = Job(name, step.prompt_tokens, step.output_tokens, running.hashes, pulled, keep=keep)
        replica.model.submit(job, now)
        self.set_wake(replica, now)
        self.set_watch(replica, now)

    def set_watch(self, replica: Replica, now: float) -> None:
        """A replica has something to do: its metrics are looked at."""
        if not replica.watched:
            replica.watched = True
            rounds = floor((now - replica.offset_s) / REPORT_EVERY_S) + 1
            self._push(replica.offset_s + rounds * REPORT_EVERY_S, _REPORT, replica)

    def remind(self, alarm: Alarm, at: float) -> None:
        """Have `Pairs.reminded` called then."""
        self._push(at, _ALARM, alarm)

    def move_on(self, running: Running, now: float) -> None:
        """A turn's replica cannot be reached: it goes to another one, if the policy has it so."""
        ticket = running.ticket
        ticket.end(Outcome.CONNECT_FAILED, now)
        running.outcomes += (Outcome.CONNECT_FAILED,)
        running.failed += (ticket.decision.replica,)
        if self._engine.may_retry(running.outcomes, now):
            try:
                following = self._engine.admit(ticket.turn, now, failed=running.failed)
            except Refused:
                pass
            else:
                following.began = ticket.began
                running.ticket = following
                running.handed = False
                self._go(running, now)
                return
        self.ask_again(running, now)

    def ask_again(self, running: Running, now: float) -> None:
        """A turn has come to nothing, before its first token or behind it. Its client asks once more."""
        began = running.ticket.ttft_s is not None
        self.measured.died += 1
        # An answer that has begun is asked for anew as well: its first token counts once more.
        self._asked_at[running.player] = now if began else running.asked_at
        self._push(now + _AGAIN_AFTER_S, _ARRIVAL, running.player)

    def set_wake(self, replica: Replica, now: float) -> None:
        """A replica's next event may have changed."""
        # What another call has let happen is still to be taken.
        at = now if replica.model.has_news else replica.model.next_outcome_time()
        if at is not None and at < now:
            at = now
        if at != replica.due:
            replica.due = at
            if at is not None:
                self._push(at, _WAKE, replica)

    def _wake(self, replica: Replica, now: float) -> None:
        """Take what a replica has done by now."""
        replica.due = None
        measured, pairs = self.measured, self._pairs
        events = replica.model.advance(now)
        for event in events:
            if not isinstance(event, (FirstToken, Finished)):
                continue
            if pairs is not None and pairs.heard(event, now):
                continue
            if isinstance(event, FirstToken):
                running = replica.running[event.id]
                if not running.handed:
                    running.cached_tokens = event.cached_tokens
                if not running.whole:
                    self._began(running, event.at)
                self._begin_push(replica, running, now)
            else:
                running = replica.running.pop(event.id)
                step = running.player.step
                if running.whole:
                    self._began(running, event.at)
                usage = Usage(step.prompt_tokens, step.output_tokens, running.cached_tokens)
                decision = running.ticket.decision
                if not running.whole:
                    measured.expected.append(
                        (
                            decision.cached_tokens,
                            running.cached_tokens,
                            expected_s(decision.chosen, decision.prompt_tokens, decision.pull),
                            running.ticket.ttft_s or 0.0,
                        )
                    )
                if pairs is not None:
                    pairs.answered(event.id, running, now)
                running.ticket.end(Outcome.COMPLETED, event.at, usage)
                self._begin_push(replica, running, now)
                self._answered(running.player, event.at)
        self.set_wake(replica, now)
        if events:
            # Of a step that ends within a prompt no router hears.
            self._dispatch(now)

    def _began(self, running: Running, at: float) -> None:
        """A turn's first token is with its client."""
        measured = self.measured
        running.ticket.first_byte(at)
        measured.ttft_s.append(at - running.asked_at)
        measured.asked_s.append(running.asked_at)
        measured.prompt_tokens += running.player.step.prompt_tokens
        measured.cached_tokens += running.cached_tokens

    def _answered(self, player: Player, now: float) -> None:
        following = player.answered(now)
        if following is not None:
            self._push(following, _ARRIVAL, player)
        elif not player.script.beside:
            self.measured.session_s.append(now - player.began)

    def _look(self, replica: Replica, now: float) -> None:
        self._report(replica, now)
        if self._pairs is not None:
            self._pairs.sweep(now)
        self._dispatch(now)
        replica.watched = not replica.is_idle or (replica.is_tried and self._goes_on(replica))
        if replica.watched:
            self._push(now + REPORT_EVERY_S, _REPORT, replica)

    def _goes_on(self, looked_at: Replica) -> bool:
        """Whether anything is to happen beyond looks at replicas that are idle: those alone would go on for
        ever."""
        idle = sum(one.watched and one.is_idle for one in self._replicas.values() if one is not looked_at)
        return len(self._agenda) > idle

    # --- the network ---------------------------------------------------------------------------------

    def _begin_push(self, replica: Replica, running: Running, now: float) -> None:
        """Let the gateway have what a replica has computed, if there is a gateway."""
        if self._pool is None:
            return
        cache, session = replica.model.cache, running.player.script.key
        self._pool.push(replica.id, cache, running.hashes, session, now)
        self.set_network(now)

    def set_network(self, now: float) -> None:
        """The next transfer's end may have changed."""
        assert self._network is not None
        at = self._network.next_time()
        if at is not None:
            at = max(at, now)
        if at != self._network_at:
            self._network_at = at
            if at is not None:
                self._push(at, _NETWORK, self._network)

    def _receive(self, network: Network, now: float) -> None:
        """Take what transfers have brought by now."""
        for arrival in network.advance(now):
            if self._pool is not None and self._pool.has_sent(arrival):
                self._pool.arrived(arrival, now)
                if not self._pool_due:
                    self._pool_due = True
                    self._push(floor(now / REPORT_EVERY_S + 1.0) * REPORT_EVERY_S, _REPORT, self._pool)
            elif self._pairs is not None:
                self._pairs.arrived(arrival, now)
            elif self._pulls is not None:
                self._pulls.arrived(arrival, now)
        self.set_network(now)

    # --- the fleet's changes ------------------------------------------------------------------------

    def _set_replicas(self, now: float) -> None:
        agent = "simulated" if self._network is not None and not self._paired else None
        self._engine.set_replicas(
            [
                ReplicaSpec(
                    name,
                    f"http://{name}:8000",
                    kv_agent=agent,
                    role=replica.role,
                    two_way=replica.role is Role.PREFILL and self._settings.two_way,
                )
                for name, replica in self._replicas.items()
            ],
            now,
        )

    def _role(self, name: ReplicaId) -> Role:
        if not self._paired:
            return Role.BOTH
        return Role.PREFILL if name.startswith("p") else Role.DECODE

    def _introduce(self, replica: Replica, now: float) -> None:
        self._engine.probe_passed(replica.id, now)
        self._engine.models(replica.id, (ModelCard(self._settings.model, b"{}"),), now)
        self._report(replica, now)

    def _happen(self, event: FleetEvent, now: float) -> None:
        name = ReplicaId(event.replica)
        if event.what == "add":
            share = len(self._replicas) / 7 % 1
            self._replicas[name] = replica = Replica(name, self._role(name), share, self._settings)
            replica.started_at = now
            self._set_replicas(now)
            self._introduce(replica, now)
        elif event.what in ("drain", "undrain"):
            self._engine.drain(name, event.what == "drain")
        elif event.what == "kill":
            self._kill(self._replicas[name], now)
        else:
            replica = self._replicas[name]
            replica.dead = False
            replica.started_at = now
        self._dispatch(now)

    def _kill(self, replica: Replica, now: float) -> None:
        """Its process is gone with all that it had. Whoever waited for it asks again."""
        replica.dead = True
        if self._network is not None:
            if self._pool is not None:
                self._pool.lost(replica.id)
            self._network.cut(replica.id, now)
            self._receive(self._network, now)
        died, replica.running = list(replica.running.values()), {}
        replica.model = EngineModel(self._settings, token_events=False)
        replica.due = None
        for running in died:
            running.ticket.end(Outcome.DIED, now)
            self.ask_again(running, now)
        self._engine.probe_failed(replica.id, "connection refused", now)
        if self._pairs is not None:
            self._pairs.died(replica, now)
        if not replica.watched:
            replica.watched = True
            self._push(now + REPORT_EVERY_S, _REPORT, replica)

    def _report(self, replica: Replica, now: float) -> None:
        if replica.dead:
            self._engine.probe_failed(replica.id, "connection refused", now)
            return
        if replica.started_at:
            self._engine.probe_passed(replica.id, now)
        stats = replica.model.stats(now)
        report = Report(
            start_time=replica.started_at,
            running=float(stats.running),
            waiting=float(stats.waiting + stats.loading),
            kv_usage=stats.kv_usage,
            kv_capacity_tokens=self._capacity,
            host_kv_tokens=self._host_capacity,
            block_tokens=self._settings.block_size,
        )
        self._engine.report(replica.id, report, now)


_Subject = Player | Replica | FleetEvent | Network | Pool | Alarm | None
"""What an entry of the agenda is about; `None` = the turns that wait in the router."""


def _reraise(error: Exception) -> None:
    raise error
