"""Runs a simulated replica: in a test as a context manager, or for the command line until a signal."""

import asyncio
import errno
import signal
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from aiohttp import web

from router.base.errors import HomingError
from router.base.system import system_words
from router.base.tasks import TaskOwner
from router.kv.config import Peer
from router.simulator.agent import KvBeside, SimulatedAgent
from router.simulator.api import Api
from router.simulator.calls import Record
from router.simulator.events import KvEventPublisher
from router.simulator.faults import Fault, FaultPlan
from router.simulator.model import EngineModel
from router.simulator.settings import ReplicaSettings

# A served replica is watched by people, one in a test by the test: only the second looks far back.
_KEPT_SERVED = 64
_KEPT_IN_TESTS = 1_000


class SimulatedReplica:
    """A replica on a port of its own. `async with` starts it; a busy port raises `HomingError`."""

    def __init__(
        self,
        settings: ReplicaSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep: int = _KEPT_IN_TESTS,
        on_death: Callable[[], None] | None = None,
        kv: KvBeside | None = None,
    ) -> None:
        """`port` 0 takes a free one and keeps it over restarts. `on_death` is called where a fault kills
        the replica. `kv`: the KV agent beside it, which lives and dies with it."""
        self.settings = settings or ReplicaSettings()
        self.host = host
        self.port = port
        self._keep = keep
        self._on_death = on_death
        self._faults = FaultPlan()
        self._api: Api | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._events: KvEventPublisher | None = None
        self._kv = kv
        self._kv_port = 0 if kv is None else kv.config.port
        self._kv_peers: tuple[Peer, ...] = ()
        self._agent: SimulatedAgent | None = None
        self._tasks = TaskOwner()

    @property
    def kv_port(self) -> int:
        """Where its KV agent listens, once it was started."""
        return self._kv_port

    def meet(self, peers: Sequence[Peer]) -> None:
        """Its KV agent may pull from these as well, in this life and those to come."""
        self._kv_peers += tuple(peers)
        if self._agent is not None:
            self._agent.meet(peers)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def api(self) -> Api:
        """The present life, or the last. Raises `RuntimeError` before the first."""
        if self._api is None:
            raise RuntimeError("the simulated replica was never started")
        return self._api

    @property
    def model(self) -> EngineModel:
        return self.api.model

    @property
    def requests(self) -> deque[Record]:
        """What arrived in this life, the oldest first; health checks and metrics left out."""
        return self.api.records

    @property
    def in_flight(self) -> int:
        """Requests that the engine has."""
        return self.model.in_flight

    @property
    def alive(self) -> bool:
        return self._runner is not None

    def fault(self, text: str, *, count: int | None = None, path: str = "/") -> None:
        """Arm a fault for the next `count` requests to paths that start with `path`; `None` = until
        `clear_faults`. `refuse` and `die` without a count happen at once."""
        self.api.mishaps.arm(Fault.parse(text), count=count, path=path)

    def clear_faults(self) -> None:
        self._faults.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    async def start(self) -> None:
        """Begin a life: a cold cache and a new start time."""
        self._tasks = TaskOwner()
        if self._kv is not None:
            self._agent = SimulatedAgent(self._kv, self.settings)
            try:
                self._agent.start(self._kv_port)
            except OSError as error:
                where = f"{self._kv.config.host}:{self._kv_port}"
                raise HomingError(f"the KV agent cannot listen on {where}: {system_words(error)}") from error
            self._kv_port = self._agent.port
            self._agent.meet(self._kv_peers)
        self._api = Api(self.settings, self, keep=self._keep, faults=self._faults, agent=self._agent)
        if self.settings.kv_events:
            self._events = KvEventPublisher(self.host, self.settings.kv_events, self.settings.block_size)
            self._events.start()
            self._api.model.cache.listener = self._events
            self._api.on_tokens = self._events.learn
        # Cancelling the handler is how a client that leaves aborts its request.
        runner = web.AppRunner(
            self._api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await runner.setup()
        self._runner = runner
        try:
            await self._listen()
        except HomingError:
            await self.kill()
            raise

    async def kill(self) -> None:
        """End as a killed process does: connections break, nothing is finished. May be called again."""
        self._break_off()
        if self._events is not None:
            await self._events.close()
            self._events = None
        if self._agent is not None:
            await self._agent.close()
            self._agent = None
        await self._tasks.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if self._api is not None:
            await self._api.running.tasks.close()

    async def restart(self) -> None:
        """Kill and start anew on the same port. Faults that were armed stay so."""
        await self.kill()
        await self.start()

    # What faults do

    def refuse(self, seconds: float) -> None:
        """Refuse connections for `seconds` real seconds; what is in flight goes on."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        self._break_connections(self.api.busy)
        self._tasks.spawn(self._listen_again(seconds), name="listen again")

    def die(self) -> None:
        """End at once. `kill` or `restart` clears away what is left."""
        self._break_off()
        if self._on_death is not None:
            self._on_death()

    def _break_off(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._break_connections(set())
        if self._api is not None:
            self._api.close()

    def _break_connections(self, spared: set[object]) -> None:
        if self._runner is None or self._runner.server is None:
            return
        for connection in self._runner.server.connections:
            transport = connection.transport
            if transport is not None and transport not in spared:
                transport.abort()

    async def _listen_again(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._listen()

    async def _listen(self) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._runner.server, self.host, self.port)
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else system_words(error)
            raise HomingError(f"cannot listen on {self.host}:{self.port}: {why}") from error
        self.port = self._listener.sockets[0].getsockname()[1]


async def serve(
    settings: ReplicaSettings,
    host: str,
    port: int,
    *,
    kv: KvBeside | None = None,
    ready: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM, then answer 0; 1 where a fault killed the replica.

    `ready` is called with the URL once it listens. Raises `HomingError` where it cannot listen.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    died = False

    def on_death() -> None:
        nonlocal died
        died = True
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    async with SimulatedReplica(
        settings, host=host, port=port, keep=_KEPT_SERVED, on_death=on_death, kv=kv
    ) as replica:
        for number in signals:
            loop.add_signal_handler(number, stop.set)
        try:
            if ready is not None:
                ready(replica.url)
            await stop.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
    return 1 if died else 0
