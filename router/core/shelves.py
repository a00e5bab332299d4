"""What is believed to lie on which replica: the prefix index, with shelves for what each replica holds.

A replica has a shelf for its device, and where it has a host tier another one for all that it reaches, device
and host together: what the device gives up goes to the host, and so both are one order of last use, cut at
two places.
"""

from typing import Any, Final

from router.core.member import Member
from router.core.memory import ShelfMemory
from router.core.model import Models
from router.core.prefix import PrefixIndex

# A replica that has not told its capacity is believed to hold this many tokens: a small 80 GiB card's
# share for a mid-size model. Too high costs wrong predictions, too low forgets what is there.
_UNKNOWN_CAPACITY_TOKENS: Final = 600_000


class Shelves:
    """The shelves of one fleet's replicas. `models` says how many tokens a prompt byte is."""

    __slots__ = ("_index", "_models")

    def __init__(self, index: PrefixIndex, models: Models) -> None:
        self._index = index
        self._models = models

    # --- one replica's ------------------------------------------------------------------------------

    def open(self) -> int:
        """A shelf for a replica's life, to be fitted once the member has it."""
        return self._index.open_shelf(None)

    def close(self, member: Member) -> None:
        """Its life is over."""
        self.drop_host(member)
        self._index.close_shelf(member.shelf)

    def clear(self, member: Member) -> None:
        """Nothing lies there any more."""
        self.close(member)
        member.shelf = member.reach = self.open()
        self.fit(member)

    def drop_host(self, member: Member) -> None:
        """Its host holds nothing."""
        if member.reach != member.shelf:
            self._index.close_shelf(member.reach)
            member.reach = member.shelf

    def fit(self, member: Member) -> None:
        """Let its shelves hold as many bytes as its KV holds tokens: of its base model, which it lists first,
        or of the first of its models that anything is known of."""
        index = self._index
        capacity = member.capacity_tokens or _UNKNOWN_CAPACITY_TOKENS
        model = next((card.id for card in member.cards if card.id in self._models), "")
        tokens_per_byte = self._models.of(model).ratio.value
        share = member.delivery.share
        reach = member.reach_tokens
        if reach is not None and reach <= capacity:
            self.drop_host(member)
        if reach is None or reach <= capacity:
            # One that has not told for once keeps what is believed of its host.
            near = 1.0 if member.reach != member.shelf else share
            index.resize(member.shelf, capacity * near / tokens_per_byte)
            return
        if member.reach == member.shelf:
            member.reach = self.open()
            index.load(member.reach, index.dump(member.shelf))
        index.resize(member.shelf, capacity / tokens_per_byte)
        index.resize(member.reach, reach * share / tokens_per_byte)

    def segments(self, member: Member) -> int:
        """How many are listed for its device."""
        return self._index.segments(member.shelf)

    # --- prompts ------------------------------------------------------------------------------------

    def touch(self, member: Member, hashes: tuple[Any, ...], ends: tuple[int, ...]) -> None:
        """It has computed this prompt."""
        self._index.touch(member.shelf, hashes, ends)
        if member.reach != member.shelf:
            self._index.touch(member.reach, hashes, ends)

    def depths(self, hashes: tuple[Any, ...]) -> dict[int, int]:
        """How many leading segments of a prompt each shelf lists, for those that list any."""
        depths: dict[int, int] = {}
        if hashes:
            for shelf, deep in self._index.match(hashes):
                depths[shelf] = deep
        return depths

    # --- memory -------------------------------------------------------------------------------------

    def dump(self, member: Member) -> tuple[ShelfMemory, ShelfMemory | None]:
        """What is listed for its device; and, where it has a host tier, for all that it reaches."""
        index = self._index
        return index.dump(member.shelf), index.dump(member.reach) if member.reach != member.shelf else None

    def load(self, member: Member, shelf: ShelfMemory, reach: ShelfMemory | None) -> None:
        """Take in what `dump` told."""
        self.fit(member)
        self._index.load(member.shelf, shelf)
        if member.reach != member.shelf:
            self._index.load(member.reach, reach if reach is not None else shelf)
