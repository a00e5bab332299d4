"""Puts other settings in force: loaded and checked first, compared, then swapped whole.

Settings with a fault, or with a change that a running router cannot take up, change nothing: the faults go
to the log, to the metrics and to whoever asks. Knows neither files nor what settings do.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from router.base.clock import Clock
from router.base.errors import SettingsError
from router.settings.compare import Settings, differences, refused_changes
from router.settings.load import lines_of
from router.settings.submitted import submit_policies

_log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What came of settings that were to be put in force."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


class Reload(NamedTuple):
    """One attempt to put settings in force."""

    outcome: Outcome
    cause: str
    """Who or what asked for it, in words."""
    at: float
    """Monotonic seconds."""
    changes: tuple[str, ...] = ()
    """One line each: what is different from before, or would be where it was refused."""
    faults: tuple[str, ...] = ()
    """Why it was refused, complete lines."""


Read = Callable[[Container[str]], Settings]
"""Reads the settings anew. Its argument names the operator's own code that policies may use: only the start
loads code. Raises `SettingsError` with every fault."""


class Reloader:
    """Holds the settings in force. Attempts to put others there wait for one another, and raise nothing: what
    came of each is its answer."""

    def __init__(
        self, settings: Settings, read: Read, apply: Callable[[Settings], None], clock: Clock
    ) -> None:
        """`apply` puts checked settings in force; it raises only where it has changed nothing."""
        self._settings = self._as_read = settings
        self._read = read
        self._apply = apply
        self._clock = clock
        self._code = frozenset(policy.value.strategy for policy in settings.loaded.policies)
        self._lock = asyncio.Lock()
        self._counts = dict.fromkeys(Outcome, 0)
        self.last: Reload | None = None
        """The latest attempt; `None` before the first."""

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._settings

    @property
    def as_read(self) -> Settings:
        """Those that were read last, which are in force but for policies that were put since: whoever watches
        files watches theirs."""
        return self._as_read

    @property
    def refused(self) -> bool:
        """Whether the latest attempt was."""
        return self.last is not None and self.last.outcome is Outcome.REFUSED

    def tally(self) -> dict[str, int]:
        """Attempts by outcome."""
        return {outcome.value: count for outcome, count in self._counts.items()}

    async def reload(self, cause: str) -> Reload:
        """Read the settings anew, in a thread: a file system may hang."""
        reload = await self._take(cause, lambda: self._read(self._code))
        if reload.outcome is not Outcome.REFUSED:
            self._as_read = self._settings
        return reload

    async def put_policies(self, text: bytes, cause: str) -> Reload:
        """Take the policies of a YAML text, the first as the default, until the settings are read anew."""

        def load() -> Settings:
            loaded = submit_policies(text, self._settings.loaded, self._code)
            return replace(self._settings, loaded=loaded)

        return await self._take(cause, load)

    async def _take(self, cause: str, load: Callable[[], Settings]) -> Reload:
        async with self._lock:
            now = self._clock.now()
            changes: tuple[str, ...] = ()
            try:
                after = await asyncio.to_thread(load)
                changes = differences(self._settings, after)
                if faults := lines_of(refused_changes(self._settings, after)):
                    raise SettingsError(faults)
                if changes:
                    self._apply(after)
            except SettingsError as error:
                return self._refused(Reload(Outcome.REFUSED, cause, now, changes, tuple(error.faults)))
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the watch over the files
                _log.exception("%s: taking up the settings failed", cause)
                fault = f"the router failed to take them up: {type(error).__name__}: {error}"
                return self._refused(Reload(Outcome.REFUSED, cause, now, changes, (fault,)))
            # Also where nothing differs: its lines and folders are those of the files as they are.
            self._settings = after
            return self._done(Reload(Outcome.APPLIED if changes else Outcome.UNCHANGED, cause, now, changes))

    def _refused(self, reload: Reload) -> Reload:
        _log.error("%s: refused, the settings in force stay", reload.cause)
        _each(logging.ERROR, reload.faults)
        return self._keep(reload)

    def _done(self, reload: Reload) -> Reload:
        if reload.changes:
            _log.info("%s: in force, %d changes", reload.cause, len(reload.changes))
            _each(logging.INFO, reload.changes)
        else:
            _log.info("%s: nothing has changed", reload.cause)
        return self._keep(reload)

    def _keep(self, reload: Reload) -> Reload:
        self._counts[reload.outcome] += 1
        self.last = reload
        return reload


def _each(level: int, lines: Sequence[str]) -> None:
    for line in lines:
        _log.log(level, "  %s", line)
