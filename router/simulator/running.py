"""Runs requests in a simulated replica's engine: what each fetches first, what is heard of it, its end."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import aiohttp

from router.base.tasks import TaskOwner
from router.simulator.agent import Prospect, SimulatedAgent
from router.simulator.body import Body
from router.simulator.calls import Call, Record
from router.simulator.driver import Driver
from router.simulator.handoffs import PATH, Fetch, Handoffs
from router.simulator.metrics import TtftHistogram
from router.simulator.model import EngineModel, Job
from router.simulator.refusals import Refusal
from router.simulator.settings import ReplicaSettings
from router.simulator.wire import Wire

# Between two simulated replicas.
_FETCH_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)

# What a real connector has as its defaults.
_MIN_TOKENS: Final = 64
_HEADROOM: Final = 1.5


class Listening:
    """Hears of one request and passes it on: to its stream, its record and whoever waits."""

    __slots__ = (
        "_at",
        "_body",
        "_finish",
        "_record",
        "_running",
        "_then",
        "_wire",
        "cached",
        "done",
        "on_start",
    )

    def __init__(
        self,
        running: "Running",
        wire: Wire | None,
        record: Record,
        finish: str,
        *,
        body: Body | None = None,
        then: Callable[[int], None] | None = None,
    ) -> None:
        self._running = running
        self._wire = wire
        self._record = record
        self._finish = finish
        self._body = body
        self._then = then
        self._at = 0
        self.on_start: Callable[[], None] | None = None
        """Called when the prompt is computed."""
        self.cached = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def started(self, cached_tokens: int, ttft_s: float) -> None:
        self.cached = self._record.cached_tokens = cached_tokens
        self._running.ttft.observe(ttft_s)
        if self.on_start is not None:
            self.on_start()
        if self._body is not None and self._wire is not None:
            self._body.send([*self._wire.start(), self._wire.token(0)])
            self._at = 1

    def made(self, tokens: int) -> None:
        if self._body is not None and self._wire is not None:
            self._body.send(map(self._wire.token, range(self._at, self._at + tokens)))
            self._at += tokens

    def finished(self) -> None:
        self._running.ended[self._finish] += 1
        if self._body is not None and self._wire is not None:
            self._body.send(self._wire.end(self.cached))
        if self._then is not None:
            self._then(self.cached)
        if not self.done.done():
            self.done.set_result(None)


class Running:
    """All requests of one life. `agent`: the KV agent beside the replica, if any."""

    def __init__(
        self,
        settings: ReplicaSettings,
        model: EngineModel,
        driver: Driver,
        handoffs: Handoffs,
        agent: SimulatedAgent | None,
    ) -> None:
        self._settings = settings
        self._model = model
        self._driver = driver
        self._handoffs = handoffs
        self._agent = agent
        self.ttft = TtftHistogram()
        self.ended = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.tasks = TaskOwner()
        """Pulls under way."""

    def abort(self, job_id: str) -> None:
        """Nobody waits for it any more. Nothing happens where it has ended."""
        if self._driver.abort(job_id):
            self.ended["abort"] += 1

    async def run(self, call: Call, job: Job, listening: Listening) -> None:
        """Wait for the engine; whoever stops waiting aborts the request there."""
        agent, wish = self._agent, call.wish
        prospect: Prospect | None = None
        if agent is not None and wish is not None and call.fetch is None:
            # The last token is always computed.
            prompt = job.hashes[: (job.prompt_tokens - 1) // self._settings.block_size]
            prospect = await agent.prospect(wish.request, wish.tenant, wish.params, prompt)
            listening.on_start = partial(agent.keep, prospect, prompt)
            job = job._replace(pulled=self.wanted(prospect, prompt))
        self._driver.submit(job, listening)
        offer = None
        pull: asyncio.Task[object] | None = None
        try:
            if call.fetch is not None:
                await self._fetch(call.fetch, job)
            elif agent is not None and prospect is not None and job.pulled:
                pull = self.tasks.spawn(self._pull(agent, prospect, job), name=f"sim pull {job.id}")
            await listening.done
            offer = call.offer
            if agent is not None and prospect is not None:
                agent.keep(prospect, job.hashes)
        finally:
            if pull is not None:
                pull.cancel()
            self.abort(job.id)
            if offer is not None:
                self._handoffs.keep(offer, job.hashes, partial(self._driver.let_go, job.id))
            elif job.keep:
                self._driver.let_go(job.id)

    async def _fetch(self, fetch: Fetch, job: Job) -> None:
        """Bring what a request waits for from another replica, which then keeps it no longer."""
        url = f"http://{fetch.host}:{fetch.port}{PATH}"
        asked = {"engine": fetch.engine, "request": fetch.request}
        came = 0
        try:
            async with (
                aiohttp.ClientSession(timeout=_FETCH_TIMEOUT) as session,
                session.post(url, json=asked) as got,
            ):
                sent = (await got.json())["hashes"] if got.status == 200 else None
        except (OSError, aiohttp.ClientError, TimeoutError):
            sent = None
        if sent is not None:
            came = self._handoffs.came(job.hashes, sent, fetch.blocks)
        elif self._settings.load_failure == "fail":
            raise Refusal(500, "KV load failure", kind="InternalServerError")
        self._driver.arrived(job.id, fetch.blocks - came)

    def wanted(self, prospect: Prospect, hashes: Sequence[int]) -> int:
        """How many blocks from the first on are worth loading: 0 where that saves little or there is no room,
        as a real connector decides."""
        blocks = prospect.blocks
        match = self._model.cache.match(hashes, blocks)
        more = blocks - match.device - match.host
        if more * self._settings.block_size < _MIN_TOKENS or more * _HEADROOM > self._model.cache.free:
            return 0
        return blocks

    async def _pull(self, agent: SimulatedAgent, prospect: Prospect, job: Job) -> None:
        came = 0
        try:
            came = await agent.pull(prospect)
        finally:
            self._driver.arrived(job.id, job.pulled - came)
