"""The network between replicas, in virtual time: transfers that share the bandwidth of both their ends.

Each replica sends and receives at the same rate, both at once. Of the transfers that a replica sends, each
has an equal part, and likewise of those that it receives; one is as fast as the smaller of its two parts.
"""

from collections import Counter
from typing import NamedTuple

from router.base.ids import ReplicaId


class Arrival(NamedTuple):
    """A transfer that has ended."""

    name: str
    size: float
    """Bytes that came."""
    wanted: float
    """Bytes that were sent for."""
    began: float
    at: float


def whole_blocks(size: float, block_bytes: int) -> int:
    """How many blocks have come with so many bytes: what shares leave of rounding is no byte that lacks."""
    return int(size / block_bytes + 1e-6)


class _Transfer:
    __slots__ = ("began", "deadline", "left", "name", "rate", "size", "source", "target")

    def __init__(
        self, name: str, source: ReplicaId, target: ReplicaId, size: float, began: float, deadline: float
    ) -> None:
        self.name = name
        self.source = source
        self.target = target
        self.size = size
        self.left = size
        self.began = began
        self.deadline = deadline
        self.rate = 0.0


class Network:
    """All transfers under way. Times are seconds, sizes bytes."""

    def __init__(self, gbps: float) -> None:
        """`gbps`: gigabits a second of each replica, either way."""
        self._bytes_per_s = gbps * 1e9 / 8.0
        self._transfers: dict[str, _Transfer] = {}
        self._now = 0.0
        self._ended: list[Arrival] = []

    def start(
        self, name: str, source: ReplicaId, target: ReplicaId, size: float, now: float, deadline: float
    ) -> None:
        """Begin a transfer; at the deadline it ends with what has come."""
        self._pass_until(now)
        self._transfers[name] = _Transfer(name, source, target, size, now, deadline)
        self._share()

    def cut(self, replica: ReplicaId, now: float, *, target: ReplicaId | None = None) -> None:
        """A replica is gone: its transfers end with what has come; with `target`, only what goes there."""
        self._pass_until(now)
        for transfer in [
            t
            for t in self._transfers.values()
            if (
                replica in (t.source, t.target)
                if target is None
                else (t.source, t.target) == (replica, target)
            )
        ]:
            self._end(transfer, transfer.size - transfer.left, now)
        self._share()

    def next_time(self) -> float | None:
        """When the next one ends; `None` where there is none."""
        if self._ended:
            return self._now
        return min(map(self._ends_at, self._transfers.values()), default=None)

    def advance(self, now: float) -> list[Arrival]:
        """Let time pass until `now`. Returns those that ended since the last call, in order."""
        self._pass_until(now)
        ended, self._ended = self._ended, []
        return ended

    def _ends_at(self, transfer: _Transfer) -> float:
        return min(self._now + transfer.left / transfer.rate, transfer.deadline)

    def _pass_until(self, now: float) -> None:
        while self._transfers:
            following = min(self._transfers.values(), key=self._ends_at)
            at = max(self._now, self._ends_at(following))
            if at > now:
                break
            self._carry(at)
            whole = at < following.deadline
            self._end(following, following.size if whole else following.size - following.left, at)
            self._share()
        self._carry(now)

    def _carry(self, until: float) -> None:
        for transfer in self._transfers.values():
            transfer.left = max(0.0, transfer.left - transfer.rate * (until - self._now))
        self._now = max(self._now, until)

    def _end(self, transfer: _Transfer, came: float, now: float) -> None:
        del self._transfers[transfer.name]
        self._ended.append(Arrival(transfer.name, came, transfer.size, transfer.began, now))

    def _share(self) -> None:
        sent = Counter(transfer.source for transfer in self._transfers.values())
        received = Counter(transfer.target for transfer in self._transfers.values())
        for transfer in self._transfers.values():
            transfer.rate = self._bytes_per_s / max(sent[transfer.source], received[transfer.target])
