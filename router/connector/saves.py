"""Which blocks to save at each step: those that are full, confirmed and not yet saved, in the prompt's order.

A table of our own of each running request's blocks, and a cursor in it. Knows nothing of vLLM's values, of
the agent or of bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from router.kv.keys import BlockHash

NULL_BLOCK = 0
"""vLLM's block that stands for a block out of a sliding window: nothing is in it."""


class Full(NamedTuple):
    """A block that can be saved."""

    place: int
    """Counted in the prompt's blocks."""
    block_id: int
    hash: BlockHash


class _Table:
    __slots__ = ("block_ids", "cursor", "full", "loaded", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.block_ids: list[int] = []
        self.cursor = 0
        self.full = 0
        self.loaded = range(0)


class Saves:
    """The tables of all requests that are alive."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def arrive(self, request: str, tenant: str) -> None:
        """A request whose blocks are to be saved."""
        self._tables.setdefault(request, _Table(tenant))

    def tenant(self, request: str) -> str | None:
        """Whose blocks they are; `None`: the request is not known."""
        table = self._tables.get(request)
        return None if table is None else table.tenant

    def belongs(self, request: str, tenant: str) -> None:
        """Whose blocks they are, said by who knows better."""
        if (table := self._tables.get(request)) is not None:
            table.tenant = tenant

    def loaded(self, request: str, places: range) -> None:
        """The agent brought the blocks at these places: it need not be given them."""
        if (table := self._tables.get(request)) is not None:
            table.loaded = places

    def replace(self, request: str, block_ids: Sequence[int]) -> None:
        """The request was scheduled for the first time, or anew after a preemption."""
        if (table := self._tables.get(request)) is not None:
            table.block_ids = list(block_ids)
            table.full = table.cursor

    def extend(self, request: str, block_ids: Sequence[int]) -> None:
        """The request was given more blocks."""
        if (table := self._tables.get(request)) is not None:
            table.block_ids += block_ids

    def full(
        self,
        request: str,
        *,
        computed: int,
        hashes: Sequence[BlockHash],
        held: Callable[[str, BlockHash], bool],
    ) -> Iterator[Full]:
        """The blocks to save, when the first `computed` blocks are full and confirmed.

        A block counts as saved once the next one is asked for. `held` says what need not be.
        """
        table = self._tables.get(request)
        if table is None:
            return
        # A block without a hash holds a token that the scheduler has not seen yet: it is not confirmed.
        table.full = max(table.cursor, min(computed, len(hashes), len(table.block_ids)))
        while table.cursor < table.full:
            place = table.cursor
            block_id = table.block_ids[place]
            if block_id != NULL_BLOCK and place not in table.loaded and not held(table.tenant, hashes[place]):
                yield Full(place, block_id, hashes[place])
            table.cursor = place + 1

    def end(self, request: str) -> int:
        """The request is over; how many full blocks of it were not saved, for want of a slot."""
        table = self._tables.pop(request, None)
        return 0 if table is None else table.full - table.cursor
