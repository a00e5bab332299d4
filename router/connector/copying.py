"""What a worker needs to have its blocks copied. `copies` does it with torch."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Pair(NamedTuple):
    """A block of the engine, and a part of the arena that is its copy or its source."""

    block_id: int
    part: memoryview


class Copies(Protocol):
    """Both directions. What is returned tells when the copy is complete."""

    def load(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        """From the arena into the engine."""

    def save(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        """From the engine into the arena, after everything that the engine has computed by now, and before it
        writes to these blocks again."""
