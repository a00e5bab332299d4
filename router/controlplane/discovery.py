"""Runs the sources that replicas are found by, and keeps one roster of what they say.

Each source has a task of its own. What a source cannot find out changes nothing: the replicas that it named
last stay, the fault shows, and routing goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from router.base.clock import Clock
from router.base.ids import ReplicaId
from router.base.tasks import TaskOwner
from router.controlplane.roster import MAX_REPLICAS, Listed, Roster

_log = logging.getLogger(__name__)

CONFIG: Final = "config"
"""The source that is no task: what the config lists."""

SOURCES: Final = (CONFIG, "file", "dns", "kubernetes")
"""Where two name the same replica, the earlier has its way."""

# So often those that leave are looked after.
_SWEEP_S: Final = 1.0

# A source that ends, which none should, is begun again after this.
_AGAIN_S: Final = 5.0


class Report(Protocol):
    """Whom a source tells."""

    def found(self, listed: Sequence[Listed], but: str = "") -> None:
        """These are all replicas, as far as the source knows. `but` = what it could not make out."""
        ...

    def failed(self, fault: str) -> None:
        """The source could not find out; in words."""
        ...


class Source(Protocol):
    """A way to find replicas."""

    async def run(self, report: Report) -> None:
        """Watch until cancelled. Raises nothing for what others do."""
        ...


class SourceStatus(NamedTuple):
    """What a source knows, for people and metrics."""

    source: str
    replicas: int
    fault: str
    """What it could not find out the last time it tried; "" if it could."""
    age_s: float | None
    """Seconds since it last could; `None` = never yet."""
    faults: int
    """How often it could not."""


class _Watched:
    """One source under way: the `Report` that it is given."""

    def __init__(self, name: str, owner: "Discovery") -> None:
        self.name = name
        self.replicas = 0
        self.fault = ""
        self.faults = 0
        self.found_at: float | None = None
        self.answered = asyncio.Event()
        """Once it has said anything, be it that it cannot."""
        self.task: asyncio.Task[object] | None = None
        self._owner = owner

    def found(self, listed: Sequence[Listed], but: str = "") -> None:
        if len(listed) > MAX_REPLICAS:
            self.failed(
                f"names {len(listed)} replicas, which is more than the {MAX_REPLICAS} that can be meant"
            )
            return
        self._say(but, "and the rest is in use")
        self.replicas = len(listed)
        self._owner.take(self, listed)
        self.answered.set()

    def failed(self, fault: str) -> None:
        self._say(fault, "and the replicas that it named last stay")
        self.answered.set()

    def _say(self, fault: str, follows: str) -> None:
        if fault:
            self.faults += 1
        if fault and fault != self.fault:
            _log.warning("discovery: %s: %s, %s", self.name, fault, follows)
        elif self.fault and not fault:
            _log.info("discovery: %s: well again", self.name)
        self.fault = fault


class Discovery:
    """The roster and its sources.

    `changed` is told of every other fleet: those listed, and who of them leaves. `is_busy` says whether turns
    run on a replica.
    """

    def __init__(
        self,
        clock: Clock,
        changed: Callable[[Sequence[Listed], frozenset[ReplicaId]], None],
        is_busy: Callable[[ReplicaId], bool],
        *,
        hold_s: float = 30.0,
    ) -> None:
        self._clock = clock
        self._changed = changed
        self._is_busy = is_busy
        self._roster = Roster(SOURCES, hold_s=hold_s)
        self._watched: dict[str, _Watched] = {}
        self._conflicts: tuple[str, ...] = ()
        self._tasks = TaskOwner()
        self._sweeping = False

    @property
    def fleet(self) -> tuple[Listed, ...]:
        """All replicas, those that leave included."""
        return self._roster.fleet

    @property
    def leaving(self) -> frozenset[ReplicaId]:
        return self._roster.leaving

    def list_config(self, listed: Sequence[Listed]) -> None:
        """What the config lists."""
        self._settle(self._roster.list(CONFIG, listed, self._clock.now()))

    def set_sources(self, sources: Mapping[str, Source]) -> None:
        """Run these, each by its name in `SOURCES`, in the place of those that run. Needs a running loop.

        What a source of the same name has found stays until the new one answers.
        """
        for name, watched in tuple(self._watched.items()):
            if watched.task is not None:
                watched.task.cancel()
            del self._watched[name]
            if name not in sources:
                self._settle(self._roster.list(name, (), self._clock.now()))
        for name, source in sources.items():
            watched = self._watched[name] = _Watched(name, self)
            watched.task = self._tasks.spawn(_keep(source, watched), name=f"discovery {name}")
        if not self._sweeping:
            self._sweeping = True
            self._tasks.spawn(self._sweep(), name="discovery sweep")

    async def first_answers(self, timeout_s: float) -> None:
        """Wait until each source has said something, `timeout_s` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for watched in tuple(self._watched.values()):
                    await watched.answered.wait()

    async def close(self) -> None:
        """End all sources. May be called again."""
        await self._tasks.close()

    def take(self, watched: _Watched, listed: Sequence[Listed]) -> None:
        """A source has answered. For sources that still run."""
        if self._watched.get(watched.name) is watched:
            watched.found_at = self._clock.now()
            self._settle(self._roster.list(watched.name, listed, watched.found_at))

    def status(self) -> tuple[SourceStatus, ...]:
        """Each source but the config."""
        now = self._clock.now()
        return tuple(
            SourceStatus(
                watched.name,
                watched.replicas,
                watched.fault,
                now - watched.found_at if watched.found_at is not None else None,
                watched.faults,
            )
            for watched in self._watched.values()
        )

    def _settle(self, changed: bool) -> None:
        for line in self._roster.conflicts:
            if line not in self._conflicts:
                _log.warning("discovery: %s", line)
        self._conflicts = self._roster.conflicts
        if changed:
            self._changed(self._roster.fleet, self._roster.leaving)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            if self._roster.leaving:
                self._settle(self._roster.sweep(self._clock.now(), self._is_busy))


async def _keep(source: Source, watched: _Watched) -> None:
    while True:
        try:
            await source.run(watched)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the search for good
            _log.exception("discovery: %s failed", watched.name)
            watched.failed(f"the router's own search failed: {type(error).__name__}")
        await asyncio.sleep(_AGAIN_S)
