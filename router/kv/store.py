"""What is held: blocks by key, whose they are, how long they stay, and who goes first when room is short.

Pure: time is an argument, in seconds of a monotonic clock, and where a block's bytes lie is a value that is
only handed back. Blocks form chains; a block is never stored before its parent nor given up before its
children, so that what is held of a session is always a prefix.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import log2
from typing import Generic, NamedTuple, TypeVar

from router.kv.keys import ROOT, BlockHash, BlockKey, SpaceId
from router.kv.ranking import Ranking, warmed


class Zone(StrEnum):
    """How long a block is meant to stay."""

    SYSTEM = "system"
    """System prompts and tool schemas: within a capped share, and given up only after long disuse."""
    SESSION = "session"


class Appended(StrEnum):
    """What became of a block that was offered."""

    STORED = "stored"
    SAME = "same"
    """It is held already, with the same bytes."""
    CONFLICT = "conflict"
    """It is held already, with other bytes: the first ones stay, the newcomer is refused."""
    ORPHAN = "orphan"
    """Its parent is not held."""
    QUOTA = "quota"
    """Its tenant has its share, and nothing of it can be given up."""


class SessionName(NamedTuple):
    """A session, within its tenant."""

    space: SpaceId
    tenant: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePolicy:
    """How room is given and taken."""

    capacity_bytes: int
    high_water: float = 0.70
    """Share of the capacity above which blocks are given up ahead of need."""
    system_share: float = 0.25
    """Share of the capacity for system blocks; beyond it they count as a session's."""
    system_idle_s: float = 3600.0
    """A system block that was of no use for so long may be given up like any other."""
    tenant_share: float = 1.0
    """Share of the capacity for one tenant."""
    session_window_s: float = 120.0
    """A session that was active so recently keeps its blocks while others have any."""
    half_life_s: float = 600.0
    """For a use to lose half its weight."""
    depth_doubling: int = 2048
    """Blocks before it in the prompt that double the cost of computing a block again."""


P = TypeVar("P")
_COLD = float("-inf")


class _Session:
    """What is held of a session: all blocks from the root to `tail`."""

    __slots__ = ("active", "change", "depth", "tail", "turns")

    def __init__(self) -> None:
        self.tail: BlockKey | None = None
        self.depth = 0
        self.turns = 0
        self.active = _COLD
        self.change = 0


class Block(Generic[P]):
    """A block that is held."""

    __slots__ = (
        "_policy", "ahead", "checksum", "children", "depth", "heat", "key", "leased_until", "owner", "parent",
        "place", "sharers", "size", "tails", "used", "zone",
    )  # fmt: skip

    def __init__(
        self, policy: StorePolicy, key: BlockKey, parent: BlockHash, place: P, checksum: int, size: int
    ) -> None:
        self._policy = policy
        self.key = key
        self.parent = parent
        self.depth = 1
        """1: a prompt's first block."""
        self.place = place
        self.checksum = checksum
        self.size = size
        self.zone = Zone.SESSION
        self.ahead = False
        """Brought here before anybody asked, and not used since."""
        self.children = 0
        self.leased_until = _COLD
        self.heat = _COLD
        self.used = _COLD
        """When it was of use last."""
        self.sharers = 1
        """Sessions that have used it, one after the other."""
        self.owner: _Session | None = None
        """The session that used it last."""
        self.tails: set[SessionName] = set()
        """Sessions of which it is the last block that is held."""

    def is_leaf(self) -> bool:
        return self.children == 0

    def worth(self) -> float:
        """Expected uses × cost of computing it again × how many share it × how long its session has lasted,
        in powers of two. A session of many turns goes on more likely than one that has had one."""
        turns = 1 if self.owner is None else max(1, min(self.owner.turns, 64))
        again = 1.0 + self.depth / self._policy.depth_doubling
        return self.heat + log2(again * self.sharers * turns)


class Held(NamedTuple):
    """What is held of a session."""

    name: SessionName
    blocks: int
    active: float
    """When it was active last."""


class Changes(NamedTuple):
    """What became of sessions since a number."""

    number: int
    """Ask with this one next time."""
    held: tuple[Held, ...]
    gone: tuple[SessionName, ...]
    complete: bool
    """All there is, not just what changed: whatever is not in `held` is not held."""


@dataclass(slots=True)
class StoreCounts:
    """What has happened so far."""

    stored: int = 0
    same: int = 0
    conflicts: int = 0
    orphans: int = 0
    over_quota: int = 0
    damaged: int = 0
    ahead_used: int = 0
    ahead_wasted_bytes: int = 0
    evicted: dict[Zone, int] = field(default_factory=lambda: dict.fromkeys(Zone, 0))


_GONE_KEPT = 20_000


class Store(Generic[P]):
    """Blocks and sessions of one place."""

    def __init__(self, policy: StorePolicy) -> None:
        self.policy = policy
        self.counts = StoreCounts()
        self.used_bytes = 0
        self._blocks: dict[BlockKey, Block[P]] = {}
        self._ranking: Ranking[BlockKey, Block[P]] = Ranking(self._blocks.get)
        self._rankings: dict[str, Ranking[BlockKey, Block[P]]] = {}
        self._tenants: Counter[str] = Counter()
        self._system_bytes = 0
        self._children: Counter[BlockKey] = Counter()
        self._sessions: OrderedDict[SessionName, _Session] = OrderedDict()
        """In the order of their last change."""
        self._gone: OrderedDict[SessionName, int] = OrderedDict()
        self._change = 0
        self._forgotten = 0
        """Changes up to this number are not all known any more."""

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    @property
    def sessions(self) -> int:
        """How many sessions have a block here."""
        return len(self._sessions)

    def tenant_bytes(self, tenant: str) -> int:
        """What a tenant's blocks take."""
        return self._tenants[tenant]

    # Looking.

    def get(self, key: BlockKey) -> Block[P] | None:
        """The block; asking is no use of it."""
        return self._blocks.get(key)

    def prefix(self, space: SpaceId, tenant: str, hashes: Iterable[BlockHash]) -> list[Block[P]]:
        """The longest run of these blocks from the first on."""
        found: list[Block[P]] = []
        for hash_ in hashes:
            block = self._blocks.get(BlockKey(space, tenant, hash_))
            if block is None:
                break
            found.append(block)
        return found

    def lease(self, blocks: Iterable[Block[P]], until: float) -> None:
        """Keep them until then, whatever room is wanted."""
        for block in blocks:
            block.leased_until = max(block.leased_until, until)

    def use(self, blocks: Iterable[Block[P]], session: SessionName | None, now: float) -> None:
        """They were of use just now, to that session."""
        owner = None if session is None else self._sessions.get(session)
        for block in blocks:
            block.heat = warmed(block.heat, now, self.policy.half_life_s)
            block.used = now
            self.counts.ahead_used += block.ahead
            block.ahead = False
            if owner is not None and block.owner is not owner:
                block.owner = owner
                block.sharers += 1

    # Keeping.

    def offer(self, key: BlockKey, parent: BlockHash, checksum: int) -> Appended:
        """What `append` would say, apart from room: whether the bytes are worth sending. Counts conflicts."""
        held = self._blocks.get(key)
        if held is not None:
            if held.checksum == checksum:
                return Appended.SAME
            self.counts.conflicts += 1
            return Appended.CONFLICT
        if parent != ROOT and key._replace(hash=parent) not in self._blocks:
            return Appended.ORPHAN
        return Appended.STORED

    def append(
        self, key: BlockKey, parent: BlockHash, checksum: int, place: P, *, size: int, zone: Zone,
        session: str, now: float,
    ) -> Appended:  # fmt: skip
        """Hold a block whose bytes lie at `place`. Anything but `STORED`: it is not held, and `place` is the
        caller's to free. Make room first (`evict`): the capacity is not looked at here, the quota is."""
        outcome = self.offer(key, parent, checksum)
        name = SessionName(key.space, key.tenant, session) if session else None
        if outcome is Appended.STORED and self.quota_excess(key.tenant, size):
            outcome = Appended.QUOTA
        match outcome:
            case Appended.SAME:
                self._again(self._blocks[key], name, now)
            case Appended.CONFLICT:
                pass
            case Appended.ORPHAN:
                self.counts.orphans += 1
            case Appended.QUOTA:
                self.counts.over_quota += 1
            case Appended.STORED:
                self._insert(Block(self.policy, key, parent, place, checksum, size), zone, name, now)
        return outcome

    def active(self, session: SessionName, now: float) -> None:
        """A turn of the session begins: its blocks are protected for a while."""
        found = self._sessions.get(session)
        if found is not None:
            found.turns += 1
            found.active = now

    def release(self, session: SessionName, now: float) -> list[Block[P]]:
        """The session is over: the blocks that only it used are removed and returned."""
        found = self._sessions.get(session)
        if found is None or found.tail is None:
            return []
        removed: list[Block[P]] = []
        block = self._blocks.get(found.tail)
        while (
            block is not None
            and block.is_leaf()
            and block.sharers == 1
            and block.zone is Zone.SESSION
            and block.leased_until <= now
            and block.tails <= {session}
        ):
            parent = self._parent(block)
            self._remove(block)
            removed.append(block)
            block = parent
        found.active = _COLD
        found.turns = 0
        return removed

    # Giving up.

    @property
    def excess_bytes(self) -> int:
        """How much lies above the water mark."""
        return max(0, self.used_bytes - int(self.policy.high_water * self.policy.capacity_bytes))

    def quota_excess(self, tenant: str, size: int) -> int:
        """How much of a tenant's must go before `size` bytes more are its due."""
        return max(
            0, self._tenants[tenant] + size - int(self.policy.tenant_share * self.policy.capacity_bytes)
        )

    def evict(
        self,
        need_bytes: int,
        now: float,
        *,
        tenant: str | None = None,
        hard: bool = False,
        only: Callable[[Block[P]], bool] | None = None,
    ) -> list[Block[P]]:
        """Remove and return blocks of at least `need_bytes` together, or as many as may go.

        `hard`: blocks of active sessions may go too, after all others. Leased blocks never do, and system
        blocks only after long disuse. `only`: of those of which it is true.
        """
        ranking = self._ranking if tenant is None else self._rankings.get(tenant)
        if ranking is None or need_bytes <= 0:
            return []
        removed: list[Block[P]] = []
        window = now - self.policy.session_window_s
        freed = 0
        for spare_active in (True, False) if hard else (True,):

            def may_go(block: Block[P], *, spare: bool = spare_active) -> bool:
                if block.leased_until > now or (only is not None and not only(block)):
                    return False
                if block.zone is Zone.SYSTEM and block.used > now - self.policy.system_idle_s:
                    return False
                return not (spare and block.owner is not None and block.owner.active > window)

            for block in ranking.cheapest(may_go):
                self._remove(block)
                self.counts.evicted[block.zone] += 1
                removed.append(block)
                freed += block.size
                if freed >= need_bytes:
                    return removed
        return removed

    def damaged(self, block: Block[P]) -> None:
        """Its bytes are not what they were: it is not held any more, whoever depends on it."""
        if self._blocks.get(block.key) is block:
            self._remove(block)
            self.counts.damaged += 1

    def discard(self, block: Block[P]) -> list[Block[P]]:
        """Give up one leaf; it, or nothing where it is none or not held."""
        if self._blocks.get(block.key) is not block or not block.is_leaf():
            return []
        self._remove(block)
        return [block]

    def clear(self) -> list[Block[P]]:
        """Remove and return all there is."""
        removed = list(self._blocks.values())
        for block in removed:
            self._remove(block)
        return removed

    # Telling.

    def chain(self, session: SessionName) -> list[Block[P]]:
        """What is held of a session, from the root on."""
        found = self._sessions.get(session)
        blocks: list[Block[P]] = []
        block = None if found is None or found.tail is None else self._blocks.get(found.tail)
        while block is not None:
            blocks.append(block)
            if block.parent == ROOT:
                return blocks[::-1]
            block = self._parent(block)
        return []

    def changes(self, since: int) -> Changes:
        """What changed after `since`; all there is, where that is not known any more."""
        complete = since < self._forgotten or since > self._change or since == 0
        held: list[Held] = []
        for name, session in reversed(self._sessions.items()):
            if not complete and session.change <= since:
                break
            held.append(Held(name, session.depth, session.active))
        gone: list[SessionName] = []
        if not complete:
            for name, change in reversed(self._gone.items()):
                if change <= since:
                    break
                gone.append(name)
        return Changes(self._change, tuple(held), tuple(gone), complete)

    def __iter__(self) -> Iterator[Block[P]]:
        return iter(self._blocks.values())

    # Inside.

    def _insert(self, block: Block[P], zone: Zone, session: SessionName | None, now: float) -> None:
        key = block.key
        room = self.policy.system_share * self.policy.capacity_bytes - self._system_bytes
        if zone is Zone.SYSTEM and block.size <= room:
            block.zone = Zone.SYSTEM
            self._system_bytes += block.size
        parent = self._parent(block)
        if parent is not None:
            block.depth = parent.depth + 1
            parent.children += 1
        block.children = self._children[key]
        self._children[key._replace(hash=block.parent)] += 1
        self._blocks[key] = block
        self.used_bytes += block.size
        self._tenants[key.tenant] += block.size
        if session is not None:
            known = self._session(session, now)
            block.owner = known
            # One that already has children fills a gap that damage has left.
            if block.is_leaf() or known.tail is None:
                self._move_tail(session, known, block)
        block.heat = warmed(block.heat, now, self.policy.half_life_s)
        block.used = now
        if block.is_leaf():
            self._rank(block)
        self.counts.stored += 1

    def _again(self, block: Block[P], session: SessionName | None, now: float) -> None:
        """A block that is held was stored once more."""
        self.counts.same += 1
        # Whoever stores it has computed it: that it was here was of no use.
        self.counts.ahead_wasted_bytes += block.size * block.ahead
        block.ahead = False
        if session is not None:
            known = self._session(session, now)
            if known.tail is None or block.depth > known.depth:
                self._move_tail(session, known, block)
        self.use([block], session, now)

    def _session(self, name: SessionName, now: float) -> _Session:
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = _Session()
            found.turns = 1
            self._gone.pop(name, None)
        found.active = now
        return found

    def _move_tail(self, name: SessionName, session: _Session, block: Block[P] | None) -> None:
        if session.tail is not None and (before := self._blocks.get(session.tail)) is not None:
            before.tails.discard(name)
        self._change += 1
        if block is None:
            del self._sessions[name]
            self._gone[name] = self._change
            self._gone.move_to_end(name)
            if len(self._gone) > _GONE_KEPT:
                self._forgotten = self._gone.popitem(last=False)[1]
            return
        block.tails.add(name)
        session.tail = block.key
        session.depth = block.depth
        session.change = self._change
        self._sessions.move_to_end(name)

    def _remove(self, block: Block[P]) -> None:
        del self._blocks[block.key]
        self.used_bytes -= block.size
        self.counts.ahead_wasted_bytes += block.size * block.ahead
        self._tenants[block.key.tenant] -= block.size
        if not self._tenants[block.key.tenant]:
            del self._tenants[block.key.tenant]
            self._rankings.pop(block.key.tenant, None)
        if block.zone is Zone.SYSTEM:
            self._system_bytes -= block.size
        above = block.key._replace(hash=block.parent)
        self._children[above] -= 1
        if not self._children[above]:
            del self._children[above]
        parent = self._parent(block)
        for name in tuple(block.tails):
            self._move_tail(name, self._sessions[name], parent)
        if parent is not None:
            parent.children -= 1
            if parent.is_leaf():
                self._rank(parent)

    def _rank(self, block: Block[P]) -> None:
        tenant = block.key.tenant
        ranking = self._rankings.get(tenant)
        if ranking is None:
            ranking = self._rankings[tenant] = Ranking(self._blocks.get)
        for one in (self._ranking, ranking):
            one.add(block.key, block)
            one.compact(len(self._blocks))

    def _parent(self, block: Block[P]) -> Block[P] | None:
        return None if block.parent == ROOT else self._blocks.get(block.key._replace(hash=block.parent))
