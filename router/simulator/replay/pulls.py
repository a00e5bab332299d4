"""The pulls of a replay: KV that a turn's replica fetches from another one, or from the gateway.

Carries out what decisions say, and tells the engine how it went.
"""

from collections.abc import Mapping, Sequence

from router.base.ids import ReplicaId
from router.core.engine import Engine
from router.core.pullbook import Pulled
from router.simulator.replay.figures import Measured
from router.simulator.replay.gateway import GATEWAY, Pool
from router.simulator.replay.network import Arrival, Network, whole_blocks
from router.simulator.replay.stage import Replica, Running, Stage
from router.simulator.settings import ReplicaSettings


class _Pull:
    """A pull under way."""

    __slots__ = ("blocks", "replica", "riders", "running")

    def __init__(self, replica: Replica, running: Running, blocks: int) -> None:
        self.replica = replica
        """Where it goes."""
        self.running = running
        self.blocks = blocks
        """How many leading ones will then lie there."""
        self.riders: list[tuple[str, int]] = []
        """Jobs that wait for the same blocks, and for how many of them."""


class Pulls:
    """All pulls of one fleet, in virtual time. Times are seconds."""

    def __init__(
        self,
        engine: Engine,
        settings: ReplicaSettings,
        replicas: Mapping[ReplicaId, Replica],
        measured: Measured,
        stage: Stage,
        network: Network,
        pool: Pool | None,
    ) -> None:
        self._engine = engine
        self._replicas = replicas
        self._measured = measured
        self._stage = stage
        self._network = network
        self._pool = pool
        self._block = settings.block_size
        self._block_bytes = settings.block_size * settings.kv_bytes_per_token
        self._pulls: dict[str, _Pull] = {}
        """Those under way, by the name of the job that each is for."""

    def begin(self, name: str, running: Running, now: float) -> int:
        """Begin the pull that a decision asks for: of all that its source has, until the deadline. Returns
        how many leading blocks will then lie at the turn's replica, if all comes; 0 where none is asked for.

        `name`: of the turn's job there."""
        decision = running.ticket.decision
        pull = decision.pull
        if pull is None:
            return 0
        replica, hashes = self._replicas[decision.replica], running.hashes
        limit = (running.player.step.prompt_tokens - 1) // self._block
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
        self._measured.pulled += 1
        size = wanted * self._block_bytes
        self._network.start(name, pull.source, replica.id, size, now, now + pull.deadline_s)
        self._stage.set_network(now)
        return blocks

    def arrived(self, arrival: Arrival, now: float) -> None:
        """A pull has ended, with all that was sent for or with less."""
        flight = self._pulls.pop(arrival.name)
        replica, running = flight.replica, flight.running
        pull = running.ticket.decision.pull
        assert pull is not None
        came = whole_blocks(arrival.size, self._block_bytes)
        wanted = whole_blocks(arrival.wanted, self._block_bytes)
        seconds = arrival.at - arrival.began
        tokens = came * self._block
        # What was not expected in time, as the decision has it, is not missed.
        complete = came == wanted or tokens + self._block > pull.tokens
        self._engine.pulled(running.ticket, Pulled(tokens, int(arrival.size), seconds, complete), now)
        self._measured.pulled_tokens += tokens
        if not replica.dead:
            lacking = wanted - came
            replica.model.arrived(arrival.name, lacking, now)
            for rider, blocks in flight.riders:
                replica.model.arrived(rider, max(0, lacking - flight.blocks + blocks), now)
            self._stage.set_wake(replica, now)

    def _flight_with(self, replica: Replica, hashes: Sequence[int], blocks: int) -> str | None:
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
