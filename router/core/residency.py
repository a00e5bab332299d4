"""What a replica's own events say lies in its cache: how many tokens of which session.

Blocks are known by hash, their place by the parent chain, and whose they are by the session that first stored
them. A session holds as far as its deepest block goes, through blocks of others where it shares them: no
tokenizer is needed. Knows no event's format and no feed; what it cannot place it leaves out.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from router.base.ids import SessionKey

_MAX_BLOCKS: Final = 2_000_000
"""About 120 bytes each. No engine has so many: a feed that names more is not to be believed."""

_MAX_SESSIONS: Final = 100_000

MAX_AT_ONCE: Final = 65_536
"""Blocks that are stored at once: a prompt of a million tokens in blocks of 16."""

# To look for a block in a run, and for the start of a chain from its end, takes the longer the more there
# are: a feed that is made to take long must not hold up the turns.
_MAX_RUN: Final = 512
_MAX_RUNS_OF_A_CHAIN: Final = 1_024


class _Run:
    """Consecutive blocks of one chain."""

    __slots__ = ("base", "cut", "hashes", "number", "parent")

    def __init__(self, base: int, parent: "_Run | None") -> None:
        self.base = base
        """Blocks of the chain before the first of these."""
        self.parent = parent
        """The run that holds the block before the first; `None` at a chain's start."""
        self.number: int = 0 if parent is None else parent.number + 1
        """Runs of the chain before this one."""
        self.hashes: list[int] = []
        self.cut = False
        """Some of its blocks were evicted: what is stored in their place is another run, so that nobody who
        was further down is believed to hold it."""

    @property
    def end(self) -> int:
        return self.base + len(self.hashes)


class Residency:
    """One replica's cache by its events."""

    __slots__ = ("_block_tokens", "_blocks", "_sessions")

    def __init__(self) -> None:
        self._block_tokens = 0
        self._blocks: dict[int, _Run] = {}
        # The run that a session's last block lies in, and that block's depth; the one stored last comes last.
        self._sessions: OrderedDict[SessionKey, tuple[_Run, int]] = OrderedDict()

    def __len__(self) -> int:
        """Blocks."""
        return len(self._blocks)

    def stored(
        self,
        hashes: Sequence[int],
        parent: int | None,
        block_tokens: int,
        session: SessionKey | None,
    ) -> bool:
        """Blocks that follow one another are there, behind `parent`, by or for a session.

        False where they cannot be placed, as the parent is not known or the chain is too long or branches too
        often: then nothing is known of the session. At most `MAX_AT_ONCE`.
        """
        if block_tokens < self._block_tokens or not hashes:
            return True  # a block that is not full yet: nobody hits it but in the whole
        self._block_tokens = block_tokens
        if len(self._blocks) + len(hashes) > _MAX_BLOCKS:
            self.clear()
        depth, run = 0, None
        if parent is not None:
            run = self._blocks.get(parent)
            if run is None:
                return self._misplaced(session)
            depth = self._depth(run, parent)
        for hash_ in hashes:
            known = self._blocks.get(hash_)
            if known is not None:
                run = known
            else:
                if run is None or run.cut or run.end != depth or len(run.hashes) >= _MAX_RUN:
                    run = _Run(depth, run)
                    if run.number >= _MAX_RUNS_OF_A_CHAIN:
                        return self._misplaced(session)
                run.hashes.append(hash_)
                self._blocks[hash_] = run
            depth += 1
        if session is not None and run is not None:
            self._sessions[session] = (run, depth)
            self._sessions.move_to_end(session)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return True

    def removed(self, hashes: Iterable[int]) -> None:
        """Blocks are gone. Those behind them are out of reach, and forgotten until they are stored again."""
        for hash_ in hashes:
            run = self._blocks.get(hash_)
            if run is None:
                continue
            place = self._depth(run, hash_) - 1 - run.base
            for gone in run.hashes[place:]:
                del self._blocks[gone]
            del run.hashes[place:]
            run.cut = True

    def clear(self) -> None:
        """Nothing is there."""
        self._blocks.clear()
        self._sessions.clear()

    def tokens(self, session: SessionKey) -> int | None:
        """Leading tokens of the session's last prompt and reply that are there; `None` = nothing is known.

        Never too many. Too few where blocks of its were evicted and stored again by another session.
        """
        found = self._sessions.get(session)
        if found is None:
            return None
        run, depth = found
        reach = min(depth, run.end)
        while (parent := run.parent) is not None:
            if parent.end < run.base:
                reach = min(reach, parent.end)
            run = parent
        return reach * self._block_tokens

    def _misplaced(self, session: SessionKey | None) -> bool:
        if session is not None:
            self._sessions.pop(session, None)
        return False

    @staticmethod
    def _depth(run: _Run, hash_: int) -> int:
        """How many blocks of the chain there are up to and including this one."""
        # Nearly always the last: chains grow and are evicted at their end.
        return run.end if run.hashes[-1] == hash_ else run.base + run.hashes.index(hash_) + 1
