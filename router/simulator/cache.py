"""The KV cache of a simulated replica: blocks on the device, shared by prefix, and a host tier behind it.

The rules are those of vLLM's block pool. Blocks that a request holds cannot be evicted. A freed block
keeps its hash, and can be hit, until it is taken for something else; the least recently freed goes first,
and of one request the tail before the head. A block is found only where all its parents are.

Neighbouring blocks with the same history are kept as one run, so that a turn costs as many steps as its
session has turns, not as its prompt has blocks. This works because hashes are chained: two prompts that
share a block share all before it, so one comparison tells whether a whole run is shared, and a binary
search finds where two part. It departs from vLLM in two small things: blocks without a hash are reused
before any that has one, and a block that two requests compute at once is kept once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from router.simulator.chains import shared_blocks
from router.simulator.host import HostCache


class _Run:
    """Consecutive blocks of one chain that were always held and freed together."""

    __slots__ = ("children", "hashes", "holders", "parent")

    def __init__(self, hashes: list[int], parent: "_Run | None", holders: int) -> None:
        self.hashes = hashes
        self.parent = parent
        self.holders = holders
        self.children = 0


class Match(NamedTuple):
    """What of a prompt is cached, in blocks from its start: first the device's, then the host's."""

    device: int
    idle: int
    """How many of `device` no request holds: taking them lowers `BlockCache.free`."""
    host: int


class Lease:
    """The blocks that one request holds. Made by `BlockCache.acquire`, ended by `release`."""

    __slots__ = ("hashed", "hashes", "last", "plain")

    def __init__(self, hashes: Sequence[int]) -> None:
        self.hashes = hashes
        self.last: _Run | None = None
        """The deepest run; its parents are held too."""
        self.hashed = 0
        """Blocks that others can share."""
        self.plain = 0
        """Blocks without a hash: not yet full, or beyond what `hashes` names."""

    @property
    def blocks(self) -> int:
        return self.hashed + self.plain


class BlockCache:
    """Device blocks with reference counts and an LRU over the free ones, and a host LRU behind it."""

    def __init__(self, blocks: int, host_blocks: int = 0) -> None:
        self.total = blocks
        self._bare = blocks
        """Free blocks without a hash."""
        self._idle_blocks = 0
        self._runs: dict[int, _Run] = {}
        """Every run by its first hash."""
        self._idle: OrderedDict[_Run, None] = OrderedDict()
        """Runs that no request holds, the least recently freed first. A run's children stand before it:
        they were freed no later than it was. So the first is always a leaf."""
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
        """Blocks on the device that a prompt can hit."""
        return sum(len(run.hashes) for run in self._runs.values())

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
        while device < limit and (run := self._runs.get(hashes[device])) is not None:
            shared = shared_blocks(run.hashes, hashes, device, limit)
            device += shared
            if run.holders == 0:
                idle += shared
            if shared < len(run.hashes):
                break
        return Match(device, idle, self._host.match(hashes, device, limit))

    def acquire(self, hashes: Sequence[int], limit: int) -> Lease:
        """Hold what the device has of the first `limit` blocks."""
        lease = Lease(hashes)
        self._hold(lease, min(limit, len(hashes)))
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
        run = lease.last
        while run is not None:
            run.holders -= 1
            if run.holders == 0:
                self._idle[run] = None
                self._idle_blocks += len(run.hashes)
            run = run.parent
        lease.last, lease.hashed, lease.plain = None, 0, 0

    def _hold(self, lease: Lease, limit: int) -> None:
        """Hold what the device has of the chain, on from what the lease already holds."""
        hashes = lease.hashes
        while lease.hashed < limit and (run := self._runs.get(hashes[lease.hashed])) is not None:
            shared = shared_blocks(run.hashes, hashes, lease.hashed, limit)
            parted = shared < len(run.hashes)
            if parted:
                run = self._split(run, shared)
            if run.holders == 0:
                self._idle.pop(run, None)  # the head of a split was never in it
                self._idle_blocks -= shared
            run.holders += 1
            lease.last = run
            lease.hashed += shared
            if parted:
                return

    def _split(self, run: _Run, at: int) -> _Run:
        """Cut a run in two and return its head. The tail stays the same object: leases end in it, and
        it keeps its place in the LRU. The caller holds the head at once."""
        head = _Run(run.hashes[:at], run.parent, run.holders)
        head.children = 1
        del run.hashes[:at]
        run.parent = head
        self._runs[head.hashes[0]] = head
        self._runs[run.hashes[0]] = run
        return head

    def _name(self, lease: Lease, full: int) -> None:
        """Give hashes to the lease's plain blocks up to `full`, which makes them shareable."""
        before = lease.hashed
        self._hold(lease, full)
        doubles = lease.hashed - before
        lease.plain -= doubles
        self._bare += doubles
        fresh = full - lease.hashed
        if fresh == 0:
            return
        lease.plain -= fresh
        # Read back from the host or computed anew, they are the device's.
        self._host.forget(lease.hashes, lease.hashed, full)
        names = list(lease.hashes[lease.hashed : full])
        last = lease.last
        if last is not None and last.holders == 1 and last.children == 0:
            last.hashes.extend(names)
        else:
            run = _Run(names, last, 1)
            if last is not None:
                last.children += 1
            self._runs[names[0]] = run
            lease.last = run
        lease.hashed = full

    def _take(self, wanted: int) -> None:
        """Turn `wanted` free blocks into used ones without a hash."""
        bare = min(wanted, self._bare)
        self._bare -= bare
        wanted -= bare
        while wanted > 0:
            run = next(iter(self._idle))
            kept = max(0, len(run.hashes) - wanted)
            evicted = run.hashes[kept:]
            first = run.hashes[0]
            del run.hashes[kept:]
            self._idle_blocks -= len(evicted)
            wanted -= len(evicted)
            if kept == 0:
                del self._idle[run], self._runs[first]
                if run.parent is not None:
                    run.parent.children -= 1
            self._host.put(evicted)
