"""The turns that wait in the router, and in what order they leave it. Told the time; answers who is next.

Every held turn stands in the line of the replica where it would go now: that is *tentative*, and where a turn
goes is for the engine to say. Knows neither strategies nor sockets.

**Order.** A turn is *due* when it has waited for its work ÷ `ageing`, less the lead of its priority; the one
that is due first goes first. So the least work goes first, and whoever arrives after a turn is due cannot
pass it. Work is the time to prefill what is missing, and the time for which the reply will hold its share of
the replica's KV. Between tenants, the one goes first whose tokens so far, with those of its next turn, are
least (fair queuing by finish time): with whatever priority a tenant asks for, it passes its own turns only.

**Room.** A replica is given turns while it has less than its horizon to prefill, and only such as fit its
free KV. One that does not fit is passed by others that do until it is due; from then on it keeps its place,
and room gathers for it.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge, nsmallest
from itertools import count, islice, takewhile
from math import exp
from typing import Final, TypeAlias

from router.base.ids import TenantId
from router.core.decide import Decision
from router.core.member import Member
from router.core.plan import QueueRules
from router.core.request import Turn

# What a turn costs beyond its missing tokens, in tokens: a step of its own, more or less. Else turns with
# nothing missing would count for nothing, and a tenant could have any number of them.
TURN_TOKENS: Final = 128

# Tenants remembered beyond those that wait.
_MAX_TENANTS: Final = 1024

# Turns that left so long ago count e times less when the rate is asked for: some ten seconds to halve.
_RATE_WINDOW_S: Final = 15.0

_MAX_RETRY_AFTER_S: Final = 300.0

# Deadlines of turns that have left, beyond as many as turns wait, before they are cleared away.
_SPARE_DEADLINES: Final = 64


Chosen: TypeAlias = tuple[Decision, Member, int]
"""A decision, its replica, and how many leading segments of the prompt are believed to lie there."""


class Held:
    """A turn that waits. It leaves once: dispatched, refused, or with its client."""

    __slots__ = (
        "arrived",
        "chosen",
        "deadline",
        "due",
        "plan",
        "priced_at",
        "rules",
        "serial",
        "since",
        "size",
        "tokens",
        "turn",
        "waiting",
    )

    def __init__(
        self,
        turn: Turn,
        plan: int,
        rules: QueueRules,
        chosen: Chosen,
        *,
        now: float,
        lead_s: float,
        wait_s: float,
        size: int,
        serial: int,
    ) -> None:
        """`size`: bytes of its body. `lead_s`: how much longer it counts as having waited."""
        self.turn = turn
        self.plan = plan
        self.rules = rules
        self.chosen = chosen
        self.arrived = now
        self.deadline = now + wait_s
        self.since = now - lead_s
        """When it would have to have come to have its place without its priority."""
        self.size = size
        self.serial = serial
        self.waiting = False
        self.priced_at = now
        self.tokens = 0
        """Missing at its tentative replica, and what any turn costs."""
        self.due = 0.0
        self.price()

    def price(self) -> None:
        """Work out what its decision means for its place in the line."""
        decision, member, _ = self.chosen
        missing = decision.prompt_tokens - decision.cached_tokens
        self.tokens = missing + TURN_TOKENS
        self.due = due_at(self.since, self.rules.ageing, member, missing, decision.prompt_tokens)


def due_at(since: float, ageing: float, member: Member, missing: int, prompt_tokens: int) -> float:
    """When a turn that waits since then is due at a replica. Until then, those with less to do pass it."""
    learned = member.learned
    curve = learned.curve
    work_s = curve.work_s(missing, prompt_tokens)
    if member.reach_tokens:
        # What it takes the place of has to be computed again, as far as living sessions want it.
        work_s += missing * curve.token_s * min(1.0, member.working_set.tokens / member.reach_tokens)
    if member.capacity_tokens:
        work_s += learned.holding.mean_s * prompt_tokens / member.capacity_tokens
    return since + work_s / ageing


_Entry = tuple[float, int, Held]


class Line:
    """The held turns of one replica: each tenant's, and all of them, the first due first."""

    __slots__ = ("_dues", "_prompts", "_shortest", "_tokens", "tenants", "tokens")

    def __init__(self) -> None:
        self.tenants: dict[TenantId, list[_Entry]] = {}
        """Read-only."""
        self.tokens = 0
        """Missing tokens of all. Read-only."""
        self._dues: list[tuple[float, int]] = []
        self._tokens: list[int] = []
        self._prompts: list[int] = []
        self._shortest = 0
        """Of the prompts; 0 = to be looked up."""

    def __len__(self) -> int:
        return len(self._dues)

    def add(self, held: Held) -> None:
        place = (held.due, held.serial)
        insort(self.tenants.setdefault(held.turn.tenant, []), (*place, held))
        at = bisect_left(self._dues, place)
        self._dues.insert(at, place)
        self._tokens.insert(at, held.tokens)
        prompt = held.chosen[0].prompt_tokens
        self._prompts.insert(at, prompt)
        if prompt < self._shortest:
            self._shortest = prompt
        self.tokens += held.tokens

    def remove(self, held: Held) -> None:
        place = (held.due, held.serial)
        entries = self.tenants[held.turn.tenant]
        del entries[bisect_left(entries, (*place, held))]
        if not entries:
            del self.tenants[held.turn.tenant]
        at = bisect_left(self._dues, place)
        del self._dues[at]
        del self._tokens[at]
        if self._prompts.pop(at) <= self._shortest:
            self._shortest = 0
        self.tokens -= held.tokens

    def shortest(self) -> int:
        """Tokens of the shortest prompt. Raises `ValueError` where nobody waits."""
        if not self._shortest:
            self._shortest = min(self._prompts)
        return self._shortest

    def first_prompt(self) -> int:
        """Tokens of the prompt that is due first. Raises `IndexError` where nobody waits."""
        return self._prompts[0]

    def ahead(self, due: float) -> tuple[int, int]:
        """Tokens of those that are due before: missing ones, and those of their whole prompts."""
        at = bisect_left(self._dues, (due,))
        return sum(self._tokens[:at]), sum(self._prompts[:at])


@dataclass(slots=True)
class _Share:
    """What a tenant has in the queue."""

    turns: int = 0
    size: int = 0

    def of(self, rules: QueueRules) -> float:
        """Its share of what fits, of turns or of bytes, whichever is more."""
        return max(self.turns / rules.most, self.size / rules.most_bytes)


class TurnQueue:
    """All held turns. Single-threaded; the engine's."""

    __slots__ = (
        "_clock",
        "_deadlines",
        "_done",
        "_held",
        "_left",
        "_left_at",
        "_lines",
        "_pushed_out",
        "_serials",
        "_shares",
        "size",
    )

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the bodies of all held turns. Read-only."""
        self._lines: dict[Member, Line] = {}
        # In order of when they were last priced, the longest ago first.
        self._held: OrderedDict[Held, None] = OrderedDict()
        self._shares: dict[TenantId, _Share] = {}
        self._deadlines: list[_Entry] = []
        self._pushed_out: list[Held] = []
        self._serials = count()
        # Fair queuing: how far each tenant is, in tokens, and how far the last one served was as it began.
        self._done: dict[TenantId, float] = {}
        self._clock = 0.0
        self._left = 0.0
        self._left_at = 0.0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def members(self) -> tuple[Member, ...]:
        """The replicas that have a line."""
        return tuple(self._lines)

    # --- in and out ---------------------------------------------------------------------------------

    def hold(
        self,
        turn: Turn,
        plan: int,
        rules: QueueRules,
        chosen: Chosen,
        *,
        now: float,
        lead_s: float,
        wait_s: float,
        size: int,
    ) -> Held | None:
        """Let a turn wait; `None` where the queue is full and no tenant has more in it than this one.

        Where one has, the last of its turns are pushed out. `size`: bytes of the turn's body. `lead_s`: how
        much longer it counts as having waited.
        """
        if len(self._held) >= rules.most or self.size + size > rules.most_bytes:
            in_the_way = self._in_the_way(turn.tenant, rules, size)
            if in_the_way is None:
                return None
            for last in in_the_way:
                self.leave(last, now)
                self._pushed_out.append(last)
        held = Held(
            turn,
            plan,
            rules,
            chosen,
            now=now,
            lead_s=lead_s,
            wait_s=wait_s,
            size=size,
            serial=next(self._serials),
        )
        share = self._shares.setdefault(turn.tenant, _Share())
        share.turns += 1
        share.size += size
        self.size += size
        heappush(self._deadlines, (held.deadline, held.serial, held))
        held.waiting = True
        self._join(held)
        return held

    def leave(self, held: Held, now: float) -> bool:
        """Take it out, for whatever reason. False where it is out already."""
        if not held.waiting:
            return False
        held.waiting = False
        self._part(held)
        tenant = held.turn.tenant
        share = self._shares[tenant]
        share.turns -= 1
        share.size -= held.size
        if not share.turns:
            del self._shares[tenant]
        self.size -= held.size
        if len(self._deadlines) > _SPARE_DEADLINES + 2 * len(self._held):
            # Most turns leave long before their time is up.
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
            heapify(self._deadlines)
        self._left = self._left_lately(now) + 1.0
        self._left_at = now
        return True

    @contextmanager
    def aside(self, held: Held) -> Iterator[None]:
        """It is priced anew and does not stand in its own way; then it joins the line of its `chosen`."""
        self._part(held)
        try:
            yield
        finally:
            held.price()
            self._join(held)

    def served(self, tenant: TenantId, tokens: int) -> None:
        """A tenant's turn goes to a replica while others wait: it counts towards its tenant's share.

        Nothing is carried over from one time that turns wait to the next.
        """
        if not self._held:
            self._done.clear()
            self._clock = 0.0
            return
        begins = max(self._clock, self._done.get(tenant, 0.0))
        self._clock = begins
        self._done[tenant] = begins + tokens
        if len(self._done) > _MAX_TENANTS + len(self._shares):
            # Half of them begin anew from where the others are.
            self._clock = sorted(self._done.values())[len(self._done) // 2]
            self._done = {name: done for name, done in self._done.items() if done > self._clock}

    def _join(self, held: Held) -> None:
        member = held.chosen[1]
        line = self._lines.get(member)
        if line is None:
            line = self._lines[member] = member.line = Line()
        line.add(held)
        self._held[held] = None

    def _part(self, held: Held) -> None:
        member = held.chosen[1]
        line = self._lines[member]
        line.remove(held)
        if not line:
            del self._lines[member]
            member.line = None
        del self._held[held]

    def _in_the_way(self, tenant: TenantId, rules: QueueRules, size: int) -> list[Held] | None:
        """Who has to go for one more turn of a tenant: each time the last of the tenant with the largest
        share, while one more would not make that this one's. `None` where that does not make room."""
        shares = {name: _Share(share.turns, share.size) for name, share in self._shares.items()}
        own = shares.get(tenant, _Share())
        wanted = _Share(own.turns + 1, own.size + size).of(rules)
        turns, held_bytes = len(self._held), self.size
        lasts: dict[TenantId, Iterator[_Entry]] = {}
        going: list[Held] = []
        while turns >= rules.most or held_bytes + size > rules.most_bytes:
            largest = max(shares, key=lambda name: shares[name].of(rules), default=tenant)
            if largest == tenant or shares[largest].of(rules) <= wanted:
                return None
            if largest not in lasts:
                lasts[largest] = self._from_the_last(largest)
            last = next(lasts[largest])[2]
            going.append(last)
            turns -= 1
            held_bytes -= last.size
            shares[largest].turns -= 1
            shares[largest].size -= last.size
        return going

    def _from_the_last(self, tenant: TenantId) -> Iterator[_Entry]:
        """A tenant's turns of all lines, the last due first."""
        lines = [line.tenants[tenant] for line in self._lines.values() if tenant in line.tenants]
        return merge(*map(reversed, lines), reverse=True)

    # --- who is next --------------------------------------------------------------------------------

    def first(self, member: Member, now: float) -> Held | None:
        """Who goes next to a replica; `None` where nobody does for now."""
        line = member.line
        if line is None:
            return None
        # None of these changes while one is looked for.
        most = member.fitting_tokens()
        if most is not None and line.shortest() > most:
            return None
        first: Held | None = None
        first_fits = False
        least = 0.0
        rules: QueueRules | None = None
        room = False
        for tenant, entries in line.tenants.items():
            done = max(self._clock, self._done.get(tenant, 0.0))
            for due, _, held in entries:
                if held.rules is not rules:
                    rules = held.rules
                    room = member.has_room(rules)
                if not room:
                    break
                fits = most is None or held.chosen[0].prompt_tokens <= most
                if fits or due <= now:
                    if first is None or done + held.tokens < least:
                        first, least = held, done + held.tokens
                        first_fits = fits
                    break
        return first if first_fits else None

    def expired(self, now: float) -> list[Held]:
        """Take out those whose time is up."""
        expired = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or not deadlines[0][2].waiting):
            held = heappop(deadlines)[2]
            if self.leave(held, now):
                expired.append(held)
        return expired

    def pushed_out(self) -> list[Held]:
        """Those that were pushed out since the last call."""
        pushed_out, self._pushed_out = self._pushed_out, []
        return pushed_out

    def standing(self, member: Member) -> list[Held]:
        """All in a replica's line, in no order to rely on."""
        line = member.line
        return (
            [entry[2] for entries in line.tenants.values() for entry in entries] if line is not None else []
        )

    def longest_unpriced(self, most: int, since: float) -> list[Held]:
        """So many at most of those that were not priced after that time, the longest ago first."""
        return list(takewhile(lambda held: held.priced_at <= since, islice(self._held, most)))

    def longest_held(self, most: int) -> list[Held]:
        """So many at most, those first that have waited longest. Looks at every turn: for people."""
        return nsmallest(most, self._held, key=lambda held: (held.arrived, held.serial))

    def wake_at(self) -> float | None:
        """When the next turn's time is up; `None` where none waits."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].waiting:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def retry_after_s(self, now: float) -> float:
        """How long those who wait now will take to leave, at the rate at which turns left lately."""
        lately = self._left_lately(now)
        if lately < 1.0:
            return _MAX_RETRY_AFTER_S if self._held else 1.0
        return min(_MAX_RETRY_AFTER_S, max(1.0, len(self._held) * _RATE_WINDOW_S / lately))

    def _left_lately(self, now: float) -> float:
        """Turns that left, each counting the less the longer ago it was: `_RATE_WINDOW_S` × the rate."""
        return self._left * exp(min(0.0, self._left_at - now) / _RATE_WINDOW_S)
