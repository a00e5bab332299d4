"""Turns that wait in the router: who has to, who goes when a replica has room, and what is priced anew.

In which order they go is for the queue to say; where one would go, and what it means that it goes, for the
desk. Told the time; opens nothing and keeps no task.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from router.base.errors import ErrorKind, Refused
from router.core.decide import Decision
from router.core.member import Member
from router.core.observe import WaitEnd
from router.core.plan import QueueRules
from router.core.queue import TURN_TOKENS, Chosen, Held, TurnQueue
from router.core.request import Turn
from router.core.ticket import Ticket

# Held turns that are priced anew whenever turns are dispatched, whoever is next: what a replica holds, and
# what others would have to wait for, changes meanwhile. More where a replica stands idle, which may mean that
# a turn that waits for another had better go there.
_REPRICED: Final = 2
_REPRICED_IDLE: Final = 6

# More than this many are not priced in one go: it would hold up other turns. Whoever is next then goes by its
# last price, if that is recent or the replica would stand idle, or waits for the next time. A recent price is
# not looked after, unless a replica stands idle: then one of just now is not.
_REPRICED_MOST: Final = 6
_RECENT_S: Final = 1.0
_JUST_S: Final = 0.05

Rank: TypeAlias = tuple[float, float]
"""What decides of a turn's place in the queue beside its work: since when it waits, and the ageing."""


class Desk(Protocol):
    """Who decides where turns go, gives them to replicas, and tells of what became of them."""

    __slots__ = ()

    def choose(self, turn: Turn, now: float, plan: int, rank: Rank) -> Chosen: ...

    def admit(self, turn: Turn, now: float, *, plan: int = 0, chosen: Chosen | None = None) -> Ticket: ...

    def is_open(self, member: Member) -> bool: ...

    def has_idle(self) -> bool: ...

    def may_pull(self, decision: Decision, now: float) -> bool: ...

    def tell_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None: ...

    def tell_refused(self, turn: Turn, refusal: Refused, now: float) -> None: ...


class Waiting:
    """The turns that wait for a replica. Single-threaded; its desk's."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._queue = TurnQueue()
        self._repriced = 0
        """Held turns priced anew in this round of dispatching, or the last."""
        self._again_at: float | None = None
        """When there was more to price than was priced in one go; `None` where there was not."""

    def __len__(self) -> int:
        return len(self._queue)

    def enter(
        self,
        turn: Turn,
        now: float,
        *,
        plan: int,
        rules: QueueRules,
        lead_s: float,
        wait_s: float | None,
        size: int,
    ) -> Ticket | Held:
        """Let a turn go to its replica, or wait for it. Raises `Refused`.

        `lead_s`: how much longer it counts as having waited. `wait_s`: how long its client waits, if less
        than the policy allows. `size`: bytes of its body.
        """
        desk, queue = self._desk, self._queue
        try:
            chosen = desk.choose(turn, now, plan, (now - lead_s, rules.ageing))
        except Refused as refusal:
            desk.tell_refused(turn, refusal, now)
            raise
        decision, member, _ = chosen
        missing = decision.prompt_tokens - decision.cached_tokens
        if member.due:
            member.pass_prefill(now)
        if member.line is None and member.has_room(rules) and member.has_blocks(decision.prompt_tokens):
            if queue:
                queue.served(turn.tenant, missing + TURN_TOKENS)
            member.sent(missing)
            return desk.admit(turn, now, plan=plan, chosen=chosen)
        wait_s = rules.wait_s if wait_s is None else min(wait_s, rules.wait_s)
        held = queue.hold(turn, plan, rules, chosen, now=now, lead_s=lead_s, wait_s=wait_s, size=size)
        if held is None:
            full = Refused(
                ErrorKind.QUEUE_FULL,
                f"{len(queue)} turns wait for a replica already, as many as the policy lets (queue.max,"
                " queue.bytes); try again later",
                retry_after_s=queue.retry_after_s(now),
            )
            desk.tell_refused(turn, full, now)
            raise full
        if queue.first(member, now) is not held:
            return held
        # Those before it do not fit.
        queue.leave(held, now)
        queue.served(turn.tenant, held.tokens)
        member.sent(missing)
        return desk.admit(turn, now, plan=plan, chosen=(_as_sent(decision, member, now), *chosen[1:]))

    def dispatch(self, now: float) -> tuple[list[tuple[Held, Ticket]], list[tuple[Held, Refused]]]:
        """The turns that go to a replica now, and those that wait no longer and are refused."""
        queue = self._queue
        went: list[tuple[Held, Ticket]] = []
        refused: list[tuple[Held, Refused]] = []
        retry_after_s = queue.retry_after_s(now)
        for held in queue.pushed_out():
            message = "the queue is full, and this turn's tenant has more in it than others; try again later"
            refusal = Refused(ErrorKind.QUEUE_FULL, message, retry_after_s=retry_after_s)
            refused.append((held, refusal))
            self._gave_up(held, WaitEnd.PUSHED_OUT, refusal, now)
        for held in queue.expired(now):
            message = f"no replica had room for this turn within {now - held.arrived:.0f} s; try again later"
            refusal = Refused(ErrorKind.QUEUE_EXPIRED, message, retry_after_s=retry_after_s)
            refused.append((held, refusal))
            self._gave_up(held, WaitEnd.EXPIRED, refusal, now)
        self._again_at = None
        if not queue:
            return went, refused
        self._repriced = 0
        self._move_stranded(now, refused)
        most, age_s = (_REPRICED_IDLE, _JUST_S) if self._desk.has_idle() else (_REPRICED, _RECENT_S)
        self._reprice(queue.longest_unpriced(most, now - age_s), now, refused)
        todo = deque(queue.members)
        while todo:
            member = todo.popleft()
            if not self._desk.is_open(member):
                continue
            if member.due:
                member.pass_prefill(now)
            pending = member.pending_tokens
            sent = False
            while (following := queue.first(member, now)) is not None:
                held = following
                decision = held.chosen[0]
                if decision.pull is not None and not self._desk.may_pull(decision, now):
                    # Others that were priced with it have used what its source may give.
                    if self._repriced >= _REPRICED_MOST:
                        self._again_at = now
                        break
                    todo.extend(self._reprice((held,), now, refused))
                    continue
                if held.priced_at != now and self._repriced < _REPRICED_MOST:
                    todo.extend(self._reprice((held,), now, refused))
                    continue
                if held.priced_at < now - _RECENT_S and (sent or member.pending_tokens):
                    break
                if not sent:
                    sent = True
                    member.horizon.refill(pending)
                queue.leave(held, now)
                queue.served(held.turn.tenant, held.tokens)
                went.append((held, self._send(held, now)))
        return went, refused

    def _move_stranded(self, now: float, refused: list[tuple[Held, Refused]]) -> None:
        """Price anew those that wait for a replica which is given no more turns, some at a time."""
        stranded = [
            held
            for member in self._queue.members
            if not self._desk.is_open(member)
            for held in self._queue.standing(member)
        ]
        self._reprice(stranded[:_REPRICED_MOST], now, refused)
        if len(stranded) > _REPRICED_MOST:
            self._again_at = now

    def leave(self, held: Held, now: float) -> None:
        """The client of a turn has gone. Nothing happens where it waits no longer."""
        if self._queue.leave(held, now):
            self._desk.tell_waited(held.turn, now - held.arrived, WaitEnd.LEFT)

    def longest_held(self, most: int) -> list[Held]:
        """So many of them at most, those first that have waited longest."""
        return self._queue.longest_held(most)

    def wake_at(self) -> float | None:
        """When `dispatch` may have something to do although nothing happens; `None` = never."""
        if self._again_at is not None:
            return self._again_at
        at = self._queue.wake_at()
        for member in self._queue.members:
            if member.due and at is not None:
                at = min(at, member.due[0][0])
        return at

    def _send(self, held: Held, now: float) -> Ticket:
        decision, member, depth = held.chosen
        turn, waited_s = held.turn, now - held.arrived
        member.sent(decision.prompt_tokens - decision.cached_tokens)
        decision = _as_sent(decision, member, now).replace(at=now, waited_s=waited_s)
        self._desk.tell_waited(turn, waited_s, WaitEnd.DISPATCHED)
        return self._desk.admit(turn, now, plan=held.plan, chosen=(decision, member, depth))

    def _reprice(
        self, turns: Iterable[Held], now: float, refused: list[tuple[Held, Refused]]
    ) -> list[Member]:
        """Decide anew where they would go. Returns the replicas whose lines they changed to."""
        queue = self._queue
        joined = []
        for held in turns:
            before = held.chosen[1]
            held.priced_at = now
            self._repriced += 1
            try:
                with queue.aside(held):
                    held.chosen = self._desk.choose(
                        held.turn, now, held.plan, (held.since, held.rules.ageing)
                    )
            except Refused as refusal:
                queue.leave(held, now)
                refused.append((held, refusal))
                self._gave_up(held, WaitEnd.NO_REPLICA, refusal, now)
            else:
                if held.chosen[1] is not before:
                    joined.append(held.chosen[1])
        return joined

    def _gave_up(self, held: Held, end: WaitEnd, refusal: Refused, now: float) -> None:
        self._desk.tell_waited(held.turn, now - held.arrived, end)
        self._desk.tell_refused(held.turn, refusal, now)


def _as_sent(decision: Decision, member: Member, now: float) -> Decision:
    """The decision as things are when its turn goes: it was priced behind those that it passes now, and
    perhaps a moment ago."""
    if decision.pair is not None:
        # Its wait is for another replica's prefill, too.
        return decision
    c = decision.chosen
    wait_s = member.before_s(now)
    slot_s = member.slot_s(decision.prompt_tokens, 0.0, member.free_tokens())
    link_s = member.link_s(now) if c.host_tokens else 0.0
    if wait_s == c.wait_s and slot_s == c.slot_s and link_s == c.link_s:
        return decision
    sent = c.replace(wait_s=wait_s, slot_s=slot_s, link_s=link_s, ahead_tokens=0)
    return decision.replace(candidates=tuple([sent if each is c else each for each in decision.candidates]))
