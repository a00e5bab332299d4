"""Which replicas there are: what the config lists and what sources find, made into one fleet.

A replica that no source names any longer leaves: it gets no further turns, keeps those that it has, and is
gone when they have ended and some time has passed, since a source may have been wrong for a moment and the
replica's cache is worth keeping. Knows neither sources nor sockets.
"""

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from router.base.ids import ReplicaId
from router.core.fleet import ReplicaSpec

MAX_REPLICAS: Final = 4096
"""Of one source. A name that resolves to more, or a file that lists more, is a mistake."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A replica, and what it is spoken to with. Its key never shows."""

    spec: ReplicaSpec
    api_key: str | None = None
    """`None` = it wants none."""
    tls: ssl.SSLContext | None = None
    """`None` = plain HTTP."""

    def __repr__(self) -> str:
        return f"Listed({self.spec})"


class Roster:
    """The fleet by name. Methods answer whether it has changed. Times are monotonic seconds."""

    def __init__(self, sources: Iterable[str], *, hold_s: float = 30.0, most_s: float = 900.0) -> None:
        """Where two `sources` name the same replica, the earlier has its way.

        A replica that leaves stays for `hold_s` at least, and `most_s` at most, whatever still runs there.
        """
        self._listed: dict[str, tuple[Listed, ...]] = dict.fromkeys(sources, ())
        self._hold_s = hold_s
        self._most_s = most_s
        self._fleet: dict[ReplicaId, Listed] = {}
        self._leaving: dict[ReplicaId, float] = {}
        self.conflicts: tuple[str, ...] = ()
        """What is listed and left out, since another replica has its name or its address: a line each."""

    @property
    def fleet(self) -> tuple[Listed, ...]:
        """Those that leave included."""
        return tuple(self._fleet.values())

    @property
    def leaving(self) -> frozenset[ReplicaId]:
        return frozenset(self._leaving)

    def list(self, source: str, listed: Iterable[Listed], now: float) -> bool:
        """These are all that the source names."""
        self._listed[source] = tuple(listed)
        return self._settle(now)

    def sweep(self, now: float, is_busy: Callable[[ReplicaId], bool]) -> bool:
        """Let go of those that leave and have nothing more to do."""
        gone = [
            replica
            for replica, since in self._leaving.items()
            if now - since >= (self._most_s if is_busy(replica) else self._hold_s)
        ]
        for replica in gone:
            del self._fleet[replica], self._leaving[replica]
        return bool(gone)

    def _settle(self, now: float) -> bool:
        present = self._merge()
        urls = {listed.spec.url for listed in present.values()}
        before = dict(self._fleet), self.leaving
        for replica, listed in before[0].items():
            if replica in present:
                self._leaving.pop(replica, None)
            elif listed.spec.url in urls:
                # The same engine under another name: it must not be two.
                self._leaving.pop(replica, None)
                del self._fleet[replica]
            else:
                self._leaving.setdefault(replica, now)
        self._fleet.update(present)
        return before != (self._fleet, self.leaving)

    def _merge(self) -> dict[ReplicaId, Listed]:
        present: dict[ReplicaId, Listed] = {}
        names: dict[str, ReplicaId] = {}
        conflicts = []
        for source, all_listed in self._listed.items():
            for listed in all_listed:
                spec = listed.spec
                if spec.id in present:
                    url = present[spec.id].spec.url
                    if url != spec.url:
                        conflicts.append(f"{source}: {spec.id} at {spec.url} is left out: {url} has its name")
                elif spec.url in names:
                    conflicts.append(
                        f"{source}: {spec.id} is left out: {spec.url} is {names[spec.url]} already"
                    )
                else:
                    present[spec.id] = listed
                    names[spec.url] = spec.id
        self.conflicts = tuple(conflicts)
        return present
