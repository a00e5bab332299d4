"""The host tier of a simulated replica: blocks that the device evicted, the least recently evicted go first.

A block lies on the host or on the device, never on both. Blocks that came together are kept as one run, so
that a turn costs as many steps as its session has runs, and not as its prompt has blocks. A run is found by
its first block: the block before it is on the device or ends another run, or lies in the midst of one from
which this run branches off.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from router.simulator.chains import shared_blocks


class _Run:
    """Blocks of one chain that came together, in the chain's order."""

    __slots__ = ("hashes",)

    def __init__(self, hashes: list[int]) -> None:
        self.hashes = hashes


class HostCache:
    """An LRU of `blocks` blocks. Of those that came together the last of the chain goes first."""

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self.used = 0
        self._runs: OrderedDict[_Run, None] = OrderedDict()
        self._heads: dict[int, _Run] = {}
        """Every run by its first hash."""

    def __iter__(self) -> Iterator[int]:
        """The blocks, the next to go first."""
        for run in self._runs:
            yield from reversed(run.hashes)

    def match(self, hashes: Sequence[int], start: int, limit: int) -> int:
        """How many blocks of a chain are here from `start` on, where `start` is the first that the device
        has not, and before `limit`."""
        at = start
        while at < limit and (run := self._heads.get(hashes[at])) is not None:
            at += shared_blocks(run.hashes, hashes, at, limit)
        return at - start

    def put(self, hashes: list[int]) -> None:
        """Take in consecutive blocks of a chain, none of which is here. The list is kept."""
        if self.total == 0:
            return
        run = _Run(hashes)
        self._runs[run] = None
        self._heads[hashes[0]] = run
        self.used += len(hashes)
        while (excess := self.used - self.total) > 0:
            oldest = next(iter(self._runs))
            if excess < len(oldest.hashes):
                del oldest.hashes[-excess:]
                self.used -= excess
            else:
                self._drop(oldest)

    def forget(self, hashes: Sequence[int], start: int, limit: int) -> None:
        """Drop those that `match` finds: the device has them."""
        at = start
        while at < limit and (run := self._heads.get(hashes[at])) is not None:
            shared = shared_blocks(run.hashes, hashes, at, limit)
            if shared == len(run.hashes):
                self._drop(run)
            else:
                # What is left keeps its place in the LRU.
                del self._heads[run.hashes[0]], run.hashes[:shared]
                self._heads[run.hashes[0]] = run
                self.used -= shared
            at += shared

    def _drop(self, run: _Run) -> None:
        del self._runs[run], self._heads[run.hashes[0]]
        self.used -= len(run.hashes)
