"""The KV cache of a simulated replica: blocks on the device, shared by prefix, and a host tier behind it.

The rules are those of vLLM's block pool. Blocks that a request holds cannot be evicted. A freed block
keeps its hash, and can be hit, until it is taken for something else: blocks without a hash are taken first,
then the least recently freed, and of one request the tail before the head. A block is found only where all
its parents are. Requests that compute the same block at once have a copy each, and the oldest is hit.

Neighbouring blocks with the same history are kept as one run, so that a turn costs as many steps as its
session has turns, not as its prompt has blocks. This works because hashes are chained: two prompts that
share a block share all before it, so one comparison tells whether a whole run is shared, and a binary
search finds where two part. Runs that have a block in common are copies of one another from end to end:
where one is cut, all are. And no block outlives the last copy of the one before it, since whoever holds a
block holds one of those too, and frees it later.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from router.simulator.chains import shared_blocks
from router.simulator.host import HostCache


class Match(NamedTuple):
    """What of a prompt is cached, in blocks from its start: first the device's, then the host's."""

    device: int
    idle: int
    """How many of `device` no request holds: taking them lowers `BlockCache.free`."""
    host: int


class Lease:
    """The blocks that one request holds. Made by `BlockCache.acquire`, ended by `release`."""

    __slots__ = ("hashed", "hashes", "plain", "runs", "session")

    def __init__(self, hashes: Sequence[int], session: str | None = None) -> None:
        self.hashes = hashes
        self.session = session
        """Whose request it is, for whoever listens."""
        self.runs: list[_Run] = []
        """In the chain's order, without a gap."""
        self.hashed = 0
        """Blocks in `runs`, which others can share."""
        self.plain = 0
        """Blocks without a hash: not yet full, or beyond what `hashes` names."""

    @property
    def blocks(self) -> int:
        return self.hashed + self.plain


class _Run:
    """Consecutive blocks of one chain that were always held and freed together."""

    __slots__ = ("ahead", "behind", "hashes", "leases", "parent")

    def __init__(self, hashes: list[int], parent: int | None, leases: set[Lease]) -> None:
        self.hashes = hashes
        self.parent = parent
        """Hash of the block before the first; `None` at a chain's start."""
        self.leases = leases
        """Who holds it."""
        self.ahead: _Run = self
        """Its neighbours among those that nobody holds: the one evicted before it, and the one after."""
        self.behind: _Run = self


class _Idle:
    """The runs that nobody holds, the next to be evicted first. A list that can be entered anywhere."""

    def __init__(self) -> None:
        self._end = _Run([], None, set())
        """Behind the last and ahead of the first."""

    @property
    def first(self) -> _Run:
        """The next to be evicted. There must be one."""
        return self._end.behind

    def append(self, run: _Run) -> None:
        self.insert(run, self._end.ahead)

    def insert(self, run: _Run, ahead: _Run) -> None:
        """Enter a run right behind another."""
        run.ahead, run.behind = ahead, ahead.behind
        ahead.behind.ahead = run
        ahead.behind = run

    def remove(self, run: _Run) -> None:
        run.ahead.behind, run.behind.ahead = run.behind, run.ahead


class CacheListener(Protocol):
    """Hears what becomes of the device's blocks."""

    def stored(self, hashes: Sequence[int], parent: int | None, session: str | None) -> None: ...

    def removed(self, hashes: Sequence[int]) -> None: ...


class BlockCache:
    """Device blocks with their holders and an LRU over the free ones, and a host LRU behind it."""

    def __init__(self, blocks: int, host_blocks: int = 0) -> None:
        self.listener: CacheListener | None = None
        self.total = blocks
        self._bare = blocks
        """Free blocks without a hash."""
        self._copies: dict[int, list[_Run]] = {}
        """By first hash all runs that begin with it, the oldest first. They are equal in all their blocks."""
        self._children: dict[int, int] = {}
        """How many different runs go on from a block, by its hash."""
        self._idle = _Idle()
        self._idle_blocks = 0
        self._host = HostCache(host_blocks)

    @property
    def free(self) -> int:
        """Blocks that can be taken: those without a hash and those that no request holds."""
        return self._bare + self._idle_blocks

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def cached(self) -> int:
        """Blocks on the device that a prompt can hit; copies count once."""
        return sum(len(copies[0].hashes) for copies in self._copies.values())

    @property
    def host_total(self) -> int:
        return self._host.total

    @property
    def host_used(self) -> int:
        return self._host.used

    def match(self, hashes: Sequence[int], limit: int) -> Match:
        """How much of the first `limit` blocks is cached. Changes nothing, not even the LRU order."""
        limit = min(limit, len(hashes))
        device = idle = 0
        while device < limit and (copies := self._copies.get(hashes[device])) is not None:
            run = copies[0]
            shared = shared_blocks(run.hashes, hashes, device, limit)
            device += shared
            if not run.leases:
                idle += shared
            if shared < len(run.hashes):
                break
        return Match(device, idle, self._host.match(hashes, device, limit))

    def acquire(self, hashes: Sequence[int], limit: int, session: str | None = None) -> Lease:
        """Hold what the device has of the first `limit` blocks."""
        lease = Lease(hashes, session)
        limit = min(limit, len(hashes))
        while lease.hashed < limit and (copies := self._copies.get(hashes[lease.hashed])) is not None:
            shared = shared_blocks(copies[0].hashes, hashes, lease.hashed, limit)
            if shared < len(copies[0].hashes):
                self._cut(copies, shared)
                copies = self._copies[hashes[lease.hashed]]
                limit = lease.hashed + shared
            run = copies[0]
            if not run.leases:
                self._idle.remove(run)
                self._idle_blocks -= shared
            run.leases.add(lease)
            lease.runs.append(run)
            lease.hashed += shared
        return lease

    def grow(self, lease: Lease, blocks: int, full: int) -> bool:
        """Let `lease` hold `blocks` blocks, of which the first `full` have all their tokens.

        Takes free blocks, evicting where it must. Answers False, and changes nothing, where there are
        not enough.
        """
        wanted = blocks - lease.blocks
        if wanted > 0:
            if wanted > self.free:
                return False
            self._take(wanted)
            lease.plain += wanted
        full = min(full, len(lease.hashes))
        if full > lease.hashed:
            self._name(lease, full)
        return True

    def reload(self, lease: Lease, blocks: int) -> bool:
        """Move the next `blocks` blocks of the chain from host to device. False where there is no room."""
        start = lease.hashed
        if not self.grow(lease, start + blocks, 0):
            return False
        # Taking blocks may have pushed others into a full host tier, and these out at its end: they are
        # being read, so they count as read.
        self._name(lease, start + blocks)
        return True

    def release(self, lease: Lease) -> None:
        """Give everything back. Blocks with a hash stay cached until they are taken. May be called again."""
        self._bare += lease.plain
        for run in reversed(lease.runs):
            run.leases.remove(lease)
            if not run.leases:
                self._idle.append(run)
                self._idle_blocks += len(run.hashes)
        lease.runs, lease.hashed, lease.plain = [], 0, 0

    def _cut(self, copies: list[_Run], at: int) -> None:
        """Cut a run and its copies in two. The tails stay the same objects, in the same list."""
        first = copies[0].hashes[0]
        heads = []
        for tail in copies:
            head = _Run(tail.hashes[:at], tail.parent, set(tail.leases))
            del tail.hashes[:at]
            tail.parent = head.hashes[-1]
            for lease in tail.leases:
                lease.runs.insert(lease.runs.index(tail), head)
            if not tail.leases:
                self._idle.insert(head, tail)
            heads.append(head)
        self._copies[first] = heads
        self._copies[copies[0].hashes[0]] = copies
        self._children[heads[0].hashes[-1]] = 1

    def _name(self, lease: Lease, full: int) -> None:
        """Give hashes to the lease's plain blocks up to `full`, which makes them shareable."""
        lease.plain -= full - lease.hashed
        while lease.hashed < full and (copies := self._copies.get(lease.hashes[lease.hashed])) is not None:
            lease.hashed += self._copy(lease, copies, full)
        if lease.hashed < full:
            # Read back from the host or computed anew, they are the device's.
            self._host.forget(lease.hashes, lease.hashed, full)
            self._add(lease, list(lease.hashes[lease.hashed : full]))
            lease.hashed = full

    def _copy(self, lease: Lease, copies: list[_Run], full: int) -> int:
        """Name blocks that others have named before. Returns how many."""
        shared = shared_blocks(copies[0].hashes, lease.hashes, lease.hashed, full)
        if shared < len(copies[0].hashes):
            self._cut(copies, shared)
            copies = self._copies[lease.hashes[lease.hashed]]
        run = _Run(copies[0].hashes.copy(), copies[0].parent, {lease})
        if self.listener is not None:
            self.listener.stored(run.hashes, run.parent, lease.session)
        copies.append(run)
        lease.runs.append(run)
        return shared

    def _add(self, lease: Lease, names: list[int]) -> None:
        """Name blocks that nobody has named."""
        last = lease.runs[-1] if lease.runs else None
        if self.listener is not None:
            self.listener.stored(names, None if last is None else last.hashes[-1], lease.session)
        parent = None
        if last is not None:
            parent = last.hashes[-1]
            if (
                len(last.leases) == 1
                and parent not in self._children
                and len(self._copies[last.hashes[0]]) == 1
            ):
                last.hashes.extend(names)
                return
            self._children[parent] = self._children.get(parent, 0) + 1
        run = _Run(names, parent, {lease})
        self._copies[names[0]] = [run]
        lease.runs.append(run)

    def _take(self, wanted: int) -> None:
        """Turn `wanted` free blocks into used ones without a hash."""
        bare = min(wanted, self._bare)
        self._bare -= bare
        wanted -= bare
        while wanted > 0:
            run = self._idle.first
            copies = self._copies[run.hashes[0]]
            kept = len(run.hashes) - wanted
            if kept > 0 and len(copies) > 1:
                self._cut(copies, kept)
                kept = 0
            taken = len(run.hashes) - max(0, kept)
            wanted -= taken
            self._idle_blocks -= taken
            if kept > 0:
                evicted = run.hashes[kept:]
                del run.hashes[kept:]
                if self.listener is not None:
                    self.listener.removed(evicted)
                self._host.put(evicted)
            else:
                self._forget(run, copies)

    def _forget(self, run: _Run, copies: list[_Run]) -> None:
        """Drop a run that nobody holds and whose blocks are taken."""
        if self.listener is not None:
            self.listener.removed(run.hashes)
        self._idle.remove(run)
        copies.remove(run)
        if copies:
            return
        del self._copies[run.hashes[0]]
        if run.parent is not None:
            left = self._children[run.parent] - 1
            if left:
                self._children[run.parent] = left
            else:
                del self._children[run.parent]
        self._host.put(run.hashes)
