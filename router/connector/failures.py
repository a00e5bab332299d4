"""Blocks that failed to load, remembered for a while, so that nobody is offered them again at once.

The agent quarantines what is damaged; this covers what it cannot see, such as a block whose copy went stale.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

KEPT_S: Final = 2.0
"""Long enough for one burst of requests; what only came too late is offered again soon."""
_MOST: Final = 4096


class Failures:
    """A bounded memory of (tenant, hash) that forgets the oldest first."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def add(self, tenant: str, hashes: Iterable[bytes], now: float) -> None:
        """Remember these from now on."""
        for hash_ in hashes:
            self._until[tenant, hash_] = now + KEPT_S
            self._until.move_to_end((tenant, hash_))
        while len(self._until) > _MOST:
            self._until.popitem(last=False)

    def sound(self, tenant: str, hashes: Sequence[bytes], count: int, now: float) -> int:
        """How many of the first `count`, from the first on, are not known to have failed."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        if not self._until:
            return count
        return next((at for at in range(count) if (tenant, hashes[at]) in self._until), count)
