"""Cuts prompts made of blocks into the segments that the router sees: a message, or a chunk of a long one.

As in the proxy, a cut stays where it is while the prompt only grows: each turn's end is one, and long
stretches are cut every so many tokens from their beginning. A segment's name stands for all the segments
before it, too: prompts that are cut at different places have no name in common from there on, though they
have the same blocks, as the index holds a segment only behind its predecessors.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from router.core.hashing import hash64
from router.core.request import Chain

BYTES_PER_TOKEN: Final = 4
"""What a token is as text here: the ratio that the router starts from and then finds confirmed."""

# The proxy cuts a long message every 4 KiB, which is this many tokens. Whole blocks would be found more
# exactly, at sixteen times the cost of every look at the index, and with an accuracy that no proxy has.
_CHUNK_TOKENS: Final = 1024

_NAME: Final = struct.Struct("<Q")
_MASK: Final = (1 << 64) - 1


class Segmenter:
    """The prompts of one session, in order."""

    def __init__(self, root: int, lead_blocks: int, block_tokens: int) -> None:
        """`root` names a prompt without a full block. `lead_blocks` are cut off from what follows, as tools
        and system prompt are segments of their own."""
        self._root = root
        self._lead = lead_blocks
        self._block_bytes = block_tokens * BYTES_PER_TOKEN
        self._chunk = max(1, _CHUNK_TOKENS // block_tokens)
        self._hashes: list[int] = []
        self._ends: list[int] = []
        self._blocks: list[int] = []
        """Full blocks up to and including each segment."""

    def cut(self, hashes: Sequence[int], kept: int, prompt_tokens: int) -> Chain:
        """The next prompt: all its blocks, of which `kept` are the last one's."""
        whole = bisect_right(self._blocks, kept)
        del self._hashes[whole:], self._ends[whole:], self._blocks[whole:]
        start = self._blocks[-1] if whole else 0
        while start < len(hashes):
            stop = min(start + self._chunk, len(hashes))
            if start < self._lead < stop:
                stop = self._lead
            before = self._hashes[-1] if self._hashes else 0
            self._hashes.append(hash64(_NAME.pack(hashes[stop - 1] & _MASK), before))
            self._ends.append(stop * self._block_bytes)
            self._blocks.append(stop)
            start = stop
        if not self._hashes:
            return Chain((self._root,), (prompt_tokens * BYTES_PER_TOKEN,), 1)
        # The tokens after the last full block have no name of their own; they lie behind it.
        self._ends[-1] = prompt_tokens * BYTES_PER_TOKEN
        # The opening: what is shared, and the beginning of what is not.
        opening = bisect_right(self._blocks, self._lead) + 1
        return Chain(tuple(self._hashes), tuple(self._ends), min(opening, len(self._hashes)))
