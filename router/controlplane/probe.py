"""Asks every replica, over and over, whether it is well, how it is loaded and what it serves.

Each replica is asked by a task of its own, so one that hangs delays nobody else. What comes back goes to
the engine; what does not come back is not reported, and the age of the last report shows it.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

import aiohttp

from router.base.clock import Clock
from router.base.ids import ReplicaId
from router.base.system import is_own_shortage, system_words
from router.base.tasks import TaskOwner
from router.controlplane.metrics_text import parse_report
from router.controlplane.models_json import parse_models
from router.controlplane.ports import ProbedFleet
from router.core.fleet import ReplicaSpec

_log = logging.getLogger(__name__)

_MAX_HEALTH_BYTES: Final = 64 * 1024
_MAX_METRICS_BYTES: Final = 4 * 1024 * 1024
_MAX_MODELS_BYTES: Final = 1024 * 1024

# Below the 5 s after which uvicorn closes an idle connection: one that the server is about to close
# would make a well replica look dead.
_KEEPALIVE_S: Final = 4.0

# Probes of many replicas drift apart instead of arriving together.
_JITTER: Final = 0.1

# However late a round ends, the replica is left alone for this share of the interval.
_LEAST_PAUSE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTiming:
    """How often replicas are asked, and how long an answer may take."""

    interval_s: float = 1.0
    timeout_s: float = 2.0
    """For each single request, from connecting to the last byte."""
    models_every_s: float = 30.0
    models_retry_s: float = 5.0
    """When the model list could not be read."""
    silent_after: int = 4
    """Looks in a row that a replica fails before it is given up on: twice as many as take it down, since what
    waits for it can be lost only once."""


class _Watch:
    """One replica under watch."""

    __slots__ = (
        "answered",
        "complaint",
        "failed",
        "listed",
        "metrics_fault",
        "models_due",
        "models_fault",
        "spec",
        "start_time",
        "stranger",
        "task",
        "well",
    )

    def __init__(self, spec: ReplicaSpec, answered: asyncio.Future[None]) -> None:
        self.spec = spec
        self.answered = answered
        """Done after the first round, whatever came of it."""
        self.task: asyncio.Task[object] | None = None
        self.well = False
        self.failed = 0
        """Looks in a row."""
        self.start_time: float | None = None
        self.models_due = 0.0
        self.listed = False
        """A model list of its has been read."""
        self.stranger = ""
        """Why it is no inference server, as far as it has shown; "" where nothing says so."""
        self.metrics_fault = ""
        self.models_fault = ""
        """What was wrong at the last look, "" if nothing was."""
        self.complaint = ""
        """What of it was logged last, so that a lasting fault is logged once."""


class _ProbeError(Exception):
    """A request that brought nothing usable; the message completes `replica a: …`."""


class _ShortageError(_ProbeError):
    """The router could not even ask, for want of something of its own."""


class Prober:
    """Watches the engine's replicas. Must be used on a running event loop; opens one client session.

    `api_keys` are the replicas' own keys, sent as `Authorization: Bearer`; `tls` is what `https` replicas are
    spoken to with, which is whom the system trusts where it names nothing. None of the methods raises for
    what a replica does.
    """

    def __init__(
        self,
        fleet: ProbedFleet,
        clock: Clock,
        rng: Random,
        *,
        timing: ProbeTiming | None = None,
        api_keys: Mapping[ReplicaId, str] | None = None,
        tls: Mapping[ReplicaId, ssl.SSLContext] | None = None,
        on_silent: Callable[[ReplicaId, str], None] | None = None,
        on_looked: Callable[[], None] | None = None,
    ) -> None:
        """`on_silent` is told of a replica that is given up on, and why, after each look from then on;
        `on_looked` is called after every look, whatever it showed."""
        self._fleet = fleet
        self._clock = clock
        self._rng = rng
        self._timing = timing if timing is not None else ProbeTiming()
        self._api_keys = api_keys or {}
        self._tls = tls or {}
        self._on_silent = on_silent
        self._on_looked = on_looked
        self._watches: dict[ReplicaId, _Watch] = {}
        self._tasks = TaskOwner()
        self._session: aiohttp.ClientSession | None = None

    def configure(
        self,
        timing: ProbeTiming,
        api_keys: Mapping[ReplicaId, str],
        tls: Mapping[ReplicaId, ssl.SSLContext],
    ) -> None:
        """Look at replicas so from their next look on."""
        self._timing = timing
        self._api_keys = api_keys
        self._tls = tls

    def set_replicas(self) -> None:
        """Watch exactly the replicas that the engine has: start with new ones, leave those that went.

        A replica whose URL changed is a new one. The first call starts the probing.
        """
        if self._session is None:
            self._session = self._open_session()
        wanted = {replica: self._fleet.spec(replica) for replica in self._fleet.replica_ids()}
        for replica, watch in tuple(self._watches.items()):
            spec = wanted.get(replica)
            if spec is None or spec.url != watch.spec.url:
                del self._watches[replica]
                self._leave(watch)
        for replica, spec in wanted.items():
            if replica not in self._watches:
                watch = _Watch(spec, asyncio.get_running_loop().create_future())
                self._watches[replica] = watch
                watch.task = self._tasks.spawn(
                    self._keep_watch(self._session, watch), name=f"probe {replica}"
                )

    async def first_round(self, timeout_s: float) -> tuple[ReplicaId, ...]:
        """Start, and wait until each replica was asked once, `timeout_s` at most. Returns the rest."""
        self.set_replicas()
        watches = tuple(self._watches.values())
        if watches:
            await asyncio.wait([watch.answered for watch in watches], timeout=timeout_s)
        return tuple(watch.spec.id for watch in watches if not watch.answered.done())

    async def close(self) -> None:
        """End all probing. May be called again; the prober cannot be started after it."""
        await self._tasks.close()
        for watch in self._watches.values():
            watch.answered.cancel()
        self._watches.clear()
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # A compressed answer may unfold to any size, so none is asked for and none is unfolded.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "homing"},
        )

    def _leave(self, watch: _Watch) -> None:
        watch.answered.cancel()
        if watch.task is not None:
            watch.task.cancel()

    async def _keep_watch(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        while True:
            interval_s = self._timing.interval_s
            began = self._clock.now()
            try:
                await self._round(session, watch)
            except Exception:  # noqa: BLE001 - a fault of ours in one round must not end the watch for good
                _log.exception("replica %s: probing failed", watch.spec.id)
                self._fleet.probe_failed(watch.spec.id, "the router's own probe failed", self._clock.now())
            if self._on_looked is not None:
                self._on_looked()
            if not watch.answered.done():
                watch.answered.set_result(None)
            spent_s = self._clock.now() - began
            next_s = interval_s * self._rng.uniform(1.0 - _JITTER, 1.0 + _JITTER)
            await asyncio.sleep(max(next_s - spent_s, interval_s * _LEAST_PAUSE))

    async def _round(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        """One look at a replica: is it well, and if so, how is it loaded, and what does it serve?"""
        replica = watch.spec.id
        try:
            await self._get(session, watch, "/health", _MAX_HEALTH_BYTES)
        except _ShortageError as error:
            # It speaks for the replica no more than against it.
            watch.metrics_fault = str(error)
            self._complain(watch)
            return
        except _ProbeError as error:
            self._failed(watch, str(error))
            return
        if not watch.well:
            # It may have come back as another process, with other models.
            watch.models_due = self._clock.now()
        if not watch.listed and self._clock.now() >= watch.models_due:
            # Many a server that is none of vLLM's says 200 to every path. It must not be given a turn.
            await self._look_at_models(session, watch)
            if watch.stranger:
                self._failed(watch, watch.stranger)
                return
        watch.well = True
        watch.failed = 0
        self._fleet.probe_passed(replica, self._clock.now())
        await self._look_at_metrics(session, watch)
        if self._clock.now() >= watch.models_due:
            await self._look_at_models(session, watch)
        self._complain(watch)

    def _failed(self, watch: _Watch, why: str) -> None:
        replica = watch.spec.id
        watch.well = False
        watch.failed += 1
        self._fleet.probe_failed(replica, why, self._clock.now())
        if watch.failed >= self._timing.silent_after and self._on_silent is not None:
            self._on_silent(replica, why)

    async def _look_at_metrics(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        try:
            text = await self._get(session, watch, "/metrics", _MAX_METRICS_BYTES)
        except _ProbeError as error:
            watch.metrics_fault = str(error)
            return
        watch.metrics_fault = ""
        report = parse_report(text)
        now = self._clock.now()
        if report.start_time is not None:
            if watch.start_time is not None and report.start_time != watch.start_time:
                watch.models_due = now
            watch.start_time = report.start_time
        self._fleet.report(watch.spec.id, report, now)

    async def _look_at_models(self, session: aiohttp.ClientSession, watch: _Watch) -> None:
        try:
            cards = parse_models(await self._get(session, watch, "/v1/models", _MAX_MODELS_BYTES))
        except (_ProbeError, ValueError) as error:
            watch.models_fault = str(error)
            watch.models_due = self._clock.now() + self._timing.models_retry_s
            if isinstance(error, ValueError) and not watch.listed:
                watch.stranger = f"/v1/models answered, and not with a list of models: {error}"
            return
        watch.models_fault = watch.stranger = ""
        watch.listed = True
        now = self._clock.now()
        watch.models_due = now + self._timing.models_every_s
        self._fleet.models(watch.spec.id, cards, now)

    async def _get(self, session: aiohttp.ClientSession, watch: _Watch, path: str, most_bytes: int) -> bytes:
        """The body of a good answer. Raises `_ProbeError` for anything else, with the reason in words."""
        headers = {}
        if (api_key := self._api_keys.get(watch.spec.id)) is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        try:
            async with session.get(
                watch.spec.url + path,
                headers=headers,
                allow_redirects=False,
                ssl=self._tls.get(watch.spec.id, True),
                timeout=aiohttp.ClientTimeout(total=self._timing.timeout_s),
            ) as response:
                if not 200 <= response.status < 300:
                    raise _ProbeError(f"{path} answered {response.status}")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise _ProbeError(f"{path} answered compressed, which was not asked for")
                return await _read(response, path, most_bytes)
        except TimeoutError:
            raise _ProbeError(f"{path} did not answer within {self._timing.timeout_s:g} s") from None
        except aiohttp.ClientConnectorDNSError as error:
            kind = _ShortageError if is_own_shortage(error.os_error) else _ProbeError
            raise kind("its host name cannot be resolved") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise _ProbeError(f"no connection: {system_words(error.certificate_error)}") from None
        except aiohttp.ClientConnectorError as error:
            kind = _ShortageError if is_own_shortage(error.os_error) else _ProbeError
            raise kind(f"no connection: {system_words(error.os_error)}") from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError):
            raise _ProbeError(f"the connection ended before {path} was answered") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise _ProbeError(f"{path} gave no proper HTTP answer: {type(error).__name__}") from None

    def _complain(self, watch: _Watch) -> None:
        """Log when a well replica begins or ceases to give its figures: routing goes on without them."""
        fault = "; ".join(filter(None, (watch.metrics_fault, watch.models_fault)))
        if fault == watch.complaint:
            return
        watch.complaint = fault
        if fault:
            _log.warning("replica %s: %s; routing goes on without", watch.spec.id, fault)
        else:
            _log.info("replica %s: its metrics and models can be read again", watch.spec.id)


async def _read(response: aiohttp.ClientResponse, path: str, most_bytes: int) -> bytes:
    chunks = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most_bytes:
            # The rest stays unread, so the client closes this connection.
            raise _ProbeError(f"{path} answered more than {most_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
