"""A worker's loads: what has been copied, and that each load is reported exactly once.

A load that is never reported keeps its blocks for ever; one that is reported twice, or that the scheduler
does not know, kills the engine. A state machine without clock, socket or tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

OVERDUE_S: Final = 1.0
"""How long after its deadline a load is ended, should nobody else have ended it."""


class LoadOrder(NamedTuple):
    """Scheduler → worker: a request waits for these blocks."""

    request: str
    load: int | None
    """The agent's name for it; `None`: the agent is not there, nothing will come."""
    block_ids: tuple[int, ...]
    deadline_s: float


class Outcome(NamedTuple):
    """What came of a load."""

    request: str
    loaded: int
    """Blocks, from the first on."""
    missing: tuple[int, ...]
    """The engine's blocks that hold nothing."""
    reason: str
    seconds: float


@dataclass(slots=True)
class Load:
    """A load that goes on."""

    order: LoadOrder
    began: float
    copied: int = 0
    """Blocks that are in the engine."""
    stale: bool = False
    """A slot was given to another block before it was copied: nothing after it is of use."""
    given_up: str | None = None
    """Why it is to end, whatever else comes, once nothing is being copied for it."""


class Loads:
    """The loads that have not been reported yet."""

    __slots__ = ("_active", "_ended")

    def __init__(self) -> None:
        self._active: dict[str, Load] = {}
        self._ended: list[Outcome] = []

    def __len__(self) -> int:
        return len(self._active)

    @property
    def active(self) -> Sequence[Load]:
        """Those that go on, oldest first. A copy: ending one while walking over them is fine."""
        return tuple(self._active.values())

    def begin(self, order: LoadOrder, now: float) -> bool:
        """Whether it is a new one. A second order for a request whose load goes on is dropped: the request is
        parked once, and is let go once."""
        if order.request in self._active:
            return False
        self._active[order.request] = Load(order, now)
        return True

    def overdue(self, now: float) -> Sequence[Load]:
        """Those that should have ended by now."""
        return [
            load for load in self._active.values() if now > load.began + load.order.deadline_s + OVERDUE_S
        ]

    def end(self, request: str, reason: str, now: float) -> bool:
        """What has been copied by now is all there will be. Whether the load had not ended yet."""
        load = self._active.pop(request, None)
        if load is None:
            return False
        missing = load.order.block_ids[load.copied :]
        self._ended.append(Outcome(request, load.copied, missing, reason, now - load.began))
        return True

    def take_ended(self) -> list[Outcome]:
        """Those that ended since the last call: to be reported now."""
        ended, self._ended = self._ended, []
        return ended
