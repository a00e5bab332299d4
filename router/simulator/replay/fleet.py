"""One policy over one workload, in virtual time: the router's own engine, and replicas to carry it out.

The engine is told what a live one learns, when it would: the first token, the end with the usage, how pulls
ended, and a look at each replica's metrics every second. Probes pass, but of a replica that was killed.
Between two events nothing runs.
"""
# ruff: noqa: ARG002 - signatures are the protocol's

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
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.holdings import Holdings
from router.core.observe import Outcome, Usage
from router.core.observer import Silent
from router.core.plan import Plan
from router.core.price import expected_s
from router.core.pullbook import PullBook, Pulled
from router.core.queue import Held
from router.core.request import Turn
from router.core.ticket import Ticket
from router.simulator.model import EngineModel, Finished, FirstToken, Job
from router.simulator.replay.events import FleetEvent, check_events
from router.simulator.replay.figures import Measured
from router.simulator.replay.gateway import GATEWAY, Pool
from router.simulator.replay.network import Network
from router.simulator.replay.workload import Player, Workload, begin
from router.simulator.settings import ReplicaSettings

REPORT_EVERY_S: Final = 1.0

# What happens at one instant happens in this order: requests that come at once share a step, and a report
# shows what the step has done.
_EVENT, _NETWORK, _ARRIVAL, _WAKE, _REPORT, _DISPATCH = range(6)

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


class _Running:
    """A turn on a replica."""

    __slots__ = ("asked_at", "cached_tokens", "hashes", "player", "ticket")

    def __init__(self, player: Player, ticket: Ticket, hashes: Sequence[int], asked_at: float) -> None:
        self.player = player
        self.ticket = ticket
        self.hashes = hashes
        """The blocks of its prompt and of its answer."""
        self.asked_at = asked_at
        """When it was first asked for: earlier than its player arrived, where a replica died with it."""
        self.cached_tokens = 0


class _Replica:
    """A replica's model, and what is due of it."""

    __slots__ = ("dead", "due", "id", "model", "offset_s", "running", "started_at", "watched")

    def __init__(self, name: ReplicaId, share: float, settings: ReplicaSettings) -> None:
        self.id = name
        self.model = EngineModel(settings, token_events=False)
        self.running: dict[str, _Running] = {}
        self.due: float | None = None
        """When it is to be woken; other wakes are out of date."""
        self.watched = False
        """Whether a look at its metrics is due. There is none while it stays as idle as it was reported."""
        self.offset_s = share * REPORT_EVERY_S
        """Replicas are looked at one after the other."""
        self.dead = False
        self.started_at = 0.0


class _Pull:
    """A pull under way."""

    __slots__ = ("blocks", "replica", "riders", "running")

    def __init__(self, replica: _Replica, running: _Running, blocks: int) -> None:
        self.replica = replica
        """Where it goes."""
        self.running = running
        self.blocks = blocks
        """How many leading ones will then lie there."""
        self.riders: list[tuple[str, int]] = []
        """Jobs that wait for the same blocks, and for how many of them."""


class FleetReplay:
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
        events: Sequence[FleetEvent] = (),
    ) -> None:
        """`pull_gbps`: what each replica sends, and receives, of others' KV in gigabits a second; 0 = no
        pulls. `gateway_tokens`: what a KV gateway holds beside them; 0 = there is none, nor without pulls.

        Raises `ValueError` for events that cannot happen."""
        names = [ReplicaId(f"r{number}") for number in range(replicas)]
        check_events(events, names)
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
            pullbook=PullBook(plan.pull) if pull_gbps else None,
            holdings=Holdings((GATEWAY,), agents_tell=False) if self._pool is not None else None,
        )
        self._settings = settings
        self._pool_due = False
        """Whether the gateway is to report."""
        self._network_at: float | None = None
        """When its next transfer ends; other times are out of date."""
        self._pulls: dict[str, _Pull] = {}
        """Those under way, by the name of the job that each is for."""
        self._model = settings.model
        self._capacity = settings.usable_blocks * settings.block_size
        self._host_capacity = settings.host_kv_blocks * settings.block_size
        self._replicas = {
            name: _Replica(name, number / replicas, settings) for number, name in enumerate(names)
        }
        self._held: dict[Held, Player] = {}
        """Turns that wait in the router, and whose they are."""
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

    def _push(self, at: float, kind: int, subject: "_Subject") -> None:
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
        if player not in self._asked_at:
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
        at = self._engine.wake_at() if self._held else None
        if at != self._dispatch_at:
            self._dispatch_at = at
            if at is not None:
                self._push(at, _DISPATCH, None)

    def _submit(self, player: Player, ticket: Ticket, now: float) -> None:
        step = player.step
        replica = self._replicas[ticket.decision.replica]
        name = str(next(self._numbers))
        asked_at = self._asked_at.pop(player, player.arrived)
        hashes = [*player.hashes, *step.reply]
        running = replica.running[name] = _Running(player, ticket, hashes, asked_at)
        pulled = self._begin_pull(name, replica, running, now)
        replica.model.submit(Job(name, step.prompt_tokens, step.output_tokens, hashes, pulled), now)
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
        events = replica.model.advance(now)
        for event in events:
            if isinstance(event, FirstToken):
                running = replica.running[event.id]
                running.cached_tokens = event.cached_tokens
                running.ticket.first_byte(event.at)
                measured.ttft_s.append(event.at - running.asked_at)
                measured.asked_s.append(running.asked_at)
                measured.prompt_tokens += running.player.step.prompt_tokens
                measured.cached_tokens += event.cached_tokens
                self._begin_push(replica, running, now)
            elif isinstance(event, Finished):
                running = replica.running.pop(event.id)
                step = running.player.step
                usage = Usage(step.prompt_tokens, step.output_tokens, running.cached_tokens)
                decision = running.ticket.decision
                measured.expected.append(
                    (
                        decision.cached_tokens,
                        running.cached_tokens,
                        expected_s(decision.chosen, decision.prompt_tokens, decision.pull),
                        running.ticket.ttft_s or 0.0,
                    )
                )
                running.ticket.end(Outcome.COMPLETED, event.at, usage)
                self._begin_push(replica, running, now)
                self._answered(running.player, event.at)
        self._set_wake(replica, now)
        if events:
            # Of a step that ends within a prompt no router hears.
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
        replica.watched = replica.dead or replica.model.in_flight > 0
        if replica.watched:
            self._push(now + REPORT_EVERY_S, _REPORT, replica)

    # --- pulls --------------------------------------------------------------------------------------

    def _begin_pull(self, name: str, replica: _Replica, running: _Running, now: float) -> int:
        """Begin the pull that a decision asks for: of all that its source has, until the deadline. Returns
        how many leading blocks will then lie here, if all comes."""
        pull = running.ticket.decision.pull
        if pull is None or self._network is None:
            return 0
        block, hashes = self._settings.block_size, running.hashes
        limit = (running.player.step.prompt_tokens - 1) // block
        here = replica.model.cache.match(hashes, limit)
        if pull.source == GATEWAY:
            assert self._pool is not None
            blocks = self._pool.lend(hashes, limit, now)
        else:
            there = self._replicas[pull.source].model.cache.match(hashes, limit)
            blocks = there.device + there.host
        wanted = blocks - here.device - here.host
        if wanted <= 0:
            self._engine.pulled(running.ticket, Pulled(0, 0, 0.0, here.device + here.host > 0), now)
            return 0
        leader = self._flight_with(replica, hashes, blocks)
        if leader is not None:
            self._pulls[leader].riders.append((name, blocks))
            return blocks
        self._pulls[name] = _Pull(replica, running, blocks)
        self.measured.pulled += 1
        size = wanted * block * self._settings.kv_bytes_per_token
        self._network.start(name, pull.source, replica.id, size, now, now + pull.deadline_s)
        self._set_network(now)
        return blocks

    def _flight_with(self, replica: _Replica, hashes: Sequence[int], blocks: int) -> str | None:
        """The pull under way to a replica that brings so many of these blocks, by the name of its job: an
        agent sends for a block once."""
        for name, pull in self._pulls.items():
            if (
                pull.replica is replica
                and blocks <= pull.blocks
                and pull.running.hashes[:blocks] == hashes[:blocks]
            ):
                return name
        return None

    def _begin_push(self, replica: _Replica, running: _Running, now: float) -> None:
        """Let the gateway have what a replica has computed, if there is a gateway."""
        if self._pool is None:
            return
        cache, session = replica.model.cache, running.player.script.key
        self._pool.push(replica.id, cache, running.hashes, session, now)
        self._set_network(now)

    def _set_network(self, now: float) -> None:
        assert self._network is not None
        at = self._network.next_time()
        if at is not None:
            at = max(at, now)
        if at != self._network_at:
            self._network_at = at
            if at is not None:
                self._push(at, _NETWORK, self._network)

    def _receive(self, network: Network, now: float) -> None:
        """Take what pulls have brought by now."""
        block_bytes = self._settings.block_size * self._settings.kv_bytes_per_token
        for arrival in network.advance(now):
            if self._pool is not None and self._pool.has_sent(arrival):
                self._pool.arrived(arrival, now)
                if not self._pool_due:
                    self._pool_due = True
                    self._push(floor(now / REPORT_EVERY_S + 1.0) * REPORT_EVERY_S, _REPORT, self._pool)
                continue
            flight = self._pulls.pop(arrival.name)
            replica, running = flight.replica, flight.running
            pull = running.ticket.decision.pull
            assert pull is not None
            came = int(arrival.size / block_bytes + 1e-6)
            wanted = int(arrival.wanted / block_bytes + 1e-6)
            seconds = arrival.at - arrival.began
            tokens = came * self._settings.block_size
            # What was not expected in time, as the decision has it, is not missed.
            complete = came == wanted or tokens + self._settings.block_size > pull.tokens
            self._engine.pulled(running.ticket, Pulled(tokens, int(arrival.size), seconds, complete), now)
            self.measured.pulled_tokens += tokens
            if not replica.dead:
                lacking = wanted - came
                replica.model.arrived(arrival.name, lacking, now)
                for rider, blocks in flight.riders:
                    replica.model.arrived(rider, max(0, lacking - flight.blocks + blocks), now)
                self._set_wake(replica, now)
        self._set_network(now)

    # --- the fleet's changes ------------------------------------------------------------------------

    def _set_replicas(self, now: float) -> None:
        agents = self._network is not None
        self._engine.set_replicas(
            [
                ReplicaSpec(name, f"http://{name}:8000", kv_agent="simulated" if agents else None)
                for name in self._replicas
            ],
            now,
        )

    def _introduce(self, replica: _Replica, now: float) -> None:
        self._engine.probe_passed(replica.id, now)
        self._engine.models(replica.id, (ModelCard(self._settings.model, b"{}"),), now)
        self._report(replica, now)

    def _happen(self, event: FleetEvent, now: float) -> None:
        name = ReplicaId(event.replica)
        if event.what == "add":
            self._replicas[name] = replica = _Replica(name, len(self._replicas) / 7 % 1, self._settings)
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

    def _kill(self, replica: _Replica, now: float) -> None:
        """Its process is gone with all that it had. Whoever waited for it asks again."""
        if self._network is not None:
            if self._pool is not None:
                self._pool.lost(replica.id)
            self._network.cut(replica.id, now)
            self._receive(self._network, now)
        died, replica.running = list(replica.running.values()), {}
        replica.model = EngineModel(self._settings, token_events=False)
        replica.dead = True
        replica.due = None
        for running in died:
            began = running.ticket.ttft_s is not None
            running.ticket.end(Outcome.DIED, now)
            self.measured.died += 1
            # An answer that has begun is asked for anew as well: its first token counts once more.
            self._asked_at[running.player] = now if began else running.asked_at
            self._push(now + _AGAIN_AFTER_S, _ARRIVAL, running.player)
        self._engine.probe_failed(replica.id, "connection refused", now)
        if not replica.watched:
            replica.watched = True
            self._push(now + REPORT_EVERY_S, _REPORT, replica)

    def _report(self, replica: _Replica, now: float) -> None:
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
        )
        self._engine.report(replica.id, report, now)


_Subject = Player | _Replica | FleetEvent | Network | Pool | None
"""What an entry of the agenda is about; `None` = the turns that wait in the router."""


def _reraise(error: Exception) -> None:
    raise error
