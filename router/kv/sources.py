"""Where blocks can be pulled from: configured peers, each with its connections, budget, breaker and speed.

Dials only what the configuration names. What is pulled is `pulling`'s business.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Final

from router.kv import messages as m
from router.kv.breaker import Breaker, BreakerPolicy, BreakerState
from router.kv.config import Peer
from router.kv.keys import Namespace, nearest_difference
from router.kv.remote import Remote, RemoteFault, dial
from router.kv.wire import Type

_log = logging.getLogger(__name__)

_RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_SPEED_BYTES: Final = 256 << 10
"""A pull of fewer says more of the round trip than of the speed."""
_SPEED_WEIGHT: Final = 0.25
_RESEMBLE: Final = 3
"""Namespaces that differ in more fields were not meant to be the same."""


class Source:
    """A peer, connected whenever it is there: one connection for questions, one for blocks."""

    def __init__(
        self,
        peer: Peer,
        *,
        secret: bytes,
        own_name: str,
        max_block: int,
        breaker: BreakerPolicy,
        max_pulls: int,
    ) -> None:
        self.peer = peer
        self.breaker = Breaker(breaker)
        self.control: Remote | None = None
        self.bulk: Remote | None = None
        self.pulls = 0
        """In progress."""
        self.max_pulls = max_pulls
        self.bytes_per_s = 0.0
        """Of its latest pulls; 0 = not known."""
        self.pulled_bytes = 0
        self.succeeded = 0
        self.failed: dict[str, int] = {}
        """By reason."""
        self.trouble: str | None = "not dialled yet"
        """Why it is not connected."""
        self.mismatch: tuple[str, ...] = ()
        """What tells its namespace from ours; see `compare`."""
        self.on_change: Callable[[], None] | None = None
        self._secret = secret
        self._own_name = own_name
        self._max_block = max_block
        self._ours: Namespace | None = None
        self._told: tuple[str, ...] = ()
        self._random = Random()

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def is_connected(self) -> bool:
        return self.control is not None and self.bulk is not None

    def unusable(self, now: float) -> str:
        """Why nothing can be pulled from it at the moment; `""`: it can."""
        if not self.is_connected:
            return "unreachable"
        if self.mismatch:
            return f"namespace:{self.mismatch[0].partition(':')[0]}"
        if self.breaker.state(now) is BreakerState.OPEN:
            return "breaker"
        return "busy" if self.pulls >= self.max_pulls else ""

    def ended(self, reason: str, *, size: int, seconds: float, now: float) -> None:
        """A pull has ended: `done`, or why not. `cancelled` and `gone` say nothing of the source."""
        self.pulled_bytes += size
        if size >= _SPEED_BYTES and seconds > 0:
            speed = size / seconds
            self.bytes_per_s += (speed - self.bytes_per_s) * (_SPEED_WEIGHT if self.bytes_per_s else 1.0)
        if reason == "done":
            self.succeeded += 1
            self.breaker.record(success=True, now=now)
        else:
            self.failed[reason] = self.failed.get(reason, 0) + 1
            if reason not in {"cancelled", "gone", "full"}:
                self.breaker.record(success=False, now=now)

    def compare(self, ours: Namespace | None) -> None:
        """Hold the peer's namespaces against the one that this agent's engine has.

        A pool takes any number of them: there, one that resembles ours is only worth a word.
        """
        if ours is not None and ours != self._ours and self.control is not None:
            self.control.tell(Type.SPACES, m.Spaces([ours.as_dict()]))
        self._ours = ours
        theirs = () if self.control is None else self.control.spaces
        others = [space for space in theirs if space != ours]
        before, self.mismatch = self._told, ()
        if ours is None or not others or (ours in theirs and not self.peer.is_pool):
            return
        differences = nearest_difference(ours, others)
        if not self.peer.is_pool:
            self.mismatch = differences
        elif len(differences) > _RESEMBLE:
            return
        if differences != before:
            self._told = differences
            what = "others' blocks in the pool are" if self.peer.is_pool else "its blocks are"
            _log.warning("%s: %s not ours to use: %s", self.name, what, "; ".join(differences))

    async def run(self) -> None:
        """Keep it connected, until cancelled."""
        failures = 0
        while True:
            try:
                lost = await self._connect()
            except RemoteFault as error:
                trouble = str(error)
            else:
                failures = 0
                self.trouble = None
                self._changed()
                trouble = await lost
            if trouble != self.trouble:
                _log.warning("KV source %s: %s", self.name, trouble)
            self.trouble = trouble
            self._drop(trouble)
            self._changed()
            rest = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
            failures += 1
            await asyncio.sleep(rest * self._random.uniform(0.8, 1.2))

    def close(self) -> None:
        """End its connections."""
        self._drop("closed")

    async def _connect(self) -> "asyncio.Future[str]":
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def over(reason: str) -> None:
            if not lost.done():
                lost.set_result(reason)

        try:
            for attribute in ("control", "bulk"):
                remote = await dial(
                    self.peer.host,
                    self.peer.port,
                    secret=self._secret,
                    name=self._own_name,
                    role="agent",
                    max_block=self._max_block,
                )
                remote.on_lost_call = over
                setattr(self, attribute, remote)
                if remote.lost is not None:
                    over(remote.lost)
                if remote.name != self.name:
                    raise RemoteFault("name", f"it calls itself {remote.name}, not {self.name}")
        except RemoteFault as error:
            self._drop(str(error))
            raise
        assert self.control is not None
        if self._ours is not None:
            self.control.tell(Type.SPACES, m.Spaces([self._ours.as_dict()]))
        self.control.on_spaces_call = self._spaces_changed
        self._spaces_changed()
        return lost

    def _spaces_changed(self) -> None:
        self.compare(self._ours)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _drop(self, reason: str) -> None:
        control, bulk, self.control, self.bulk = self.control, self.bulk, None, None
        for remote in (control, bulk):
            if remote is not None:
                remote.close(reason)


def states(sources: "list[Source]", now: float) -> list[m.SourceState]:
    """What is told of them."""
    return [
        m.SourceState(one.name, one.unusable(now) or one.breaker.state(now).value, one.bytes_per_s, one.pulls)
        for one in sources
    ]
