"""What turns leave behind: once a replica has begun to answer, and once it is over.

Sessions, prefixes, what replicas deliver and how fast they are, all is learned here from tickets; what it
says of their health is weighed elsewhere (`conditions`).
"""

from typing import Final

from router.core.claims import Claims
from router.core.conditions import Conditions
from router.core.members import Members
from router.core.observe import FAILURES, NEUTRAL, Ended, Outcome, Usage
from router.core.pulling import Pulling
from router.core.session import SessionTable
from router.core.shelves import Shelves
from router.core.teller import Teller
from router.core.ticket import Books, Ticket

# Idle sessions are dropped so often and so many at once: more than can come in between.
_EXPIRE_EVERY_S: Final = 0.05
_EXPIRE_MOST: Final = 2048


class Settling(Books):
    """The books that tickets tell of their two moments. `pulling` is `None` where nothing is pulled."""

    __slots__ = (
        "_claims",
        "_conditions",
        "_expire_at",
        "_members",
        "_pulling",
        "_sessions",
        "_shelves",
        "_teller",
    )

    def __init__(
        self,
        members: Members,
        sessions: SessionTable,
        shelves: Shelves,
        conditions: Conditions,
        claims: Claims,
        pulling: Pulling | None,
        teller: Teller,
    ) -> None:
        self._members = members
        self._sessions = sessions
        self._shelves = shelves
        self._conditions = conditions
        self._claims = claims
        self._pulling = pulling
        self._teller = teller
        self._expire_at = 0.0

    def accepted(self, ticket: Ticket, now: float) -> None:
        """The ticket's replica has begun to answer it. For the ticket to call."""
        turn, member = ticket.turn, ticket.member
        if self._pulling is not None:
            self._pulling.landed(ticket, now)
        hashes, ends = turn.chain.hashes, turn.chain.ends
        # A turn without a prompt leaves nothing behind that a session could have a home by.
        if not hashes or not turn.computes or not self._members.has(member, ticket.epoch):
            return
        self._shelves.touch(member, hashes, ends)
        if turn.stream:
            # A whole answer is accepted as it ends, so there is no time in which it runs.
            member.answering[ticket] = None
        if turn.session is None:
            return
        _, before = self._sessions.bind(
            ticket.model.key(turn.session),
            home=member.id,
            epoch=member.epoch,
            resident_tokens=ticket.decision.prompt_tokens,
            tail=hashes[-1],
            reply_tokens=0,
            model=turn.model,
            tenant=turn.tenant,
            source=turn.session_source,
            now=now,
        )
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_EVERY_S
            self._sessions.expire(now, _EXPIRE_MOST)
        if before is not None and self._teller.observer is not None:
            session, after = turn.session, member.id
            self._teller.tell(lambda o: o.on_moved(session, before, after, now))

    def ended(self, ticket: Ticket, outcome: Outcome, now: float, usage: Usage | None) -> None:
        """The ticket is over. For the ticket to call."""
        turn, member = ticket.turn, ticket.member
        if ticket.of_this_life:
            member.in_flight -= 1
            member.kv_tokens -= ticket.kv_tokens
        if self._pulling is not None:
            self._pulling.landed(ticket, now)
        began = ticket.first_byte_at
        still_has = self._members.has(member, ticket.epoch)
        if began is not None and outcome is Outcome.COMPLETED and turn.stream and still_has:
            member.learned.holding.observe(now - began)
        if still_has and ticket in member.answering:
            del member.answering[ticket]
            # What it had can be evicted from now on: it counts as used now.
            self._shelves.touch(member, turn.chain.hashes, turn.chain.ends)
        if outcome in FAILURES:
            self._conditions.failed(member, ticket.epoch, outcome, ticket.decision.attempt, now)
        elif (member.failing or not member.well) and outcome not in NEUTRAL:
            self._conditions.succeeded(member, ticket.epoch, now)
        if usage is not None and usage.prompt_tokens is not None:
            hashes, ends = turn.chain.hashes, turn.chain.ends
            if ends and turn.response_id is None:
                ticket.model.ratio.observe(ends[-1], usage.prompt_tokens)
                if usage.cached_tokens is not None and still_has:
                    self._delivered(ticket, usage.prompt_tokens, usage.cached_tokens, now)
            if turn.session is not None and ticket.ttft_s is not None:
                reply = usage.completion_tokens or 0
                self._sessions.credit(
                    ticket.model.key(turn.session),
                    home=member.id,
                    epoch=ticket.epoch,
                    tail=hashes[-1] if hashes else 0,
                    resident_tokens=usage.prompt_tokens + reply,
                    reply_tokens=reply,
                )
        if turn.last and turn.session is not None and outcome not in FAILURES:
            # One that failed will be sent again.
            key = ticket.model.key(turn.session)
            self._sessions.forget(key)
            self._claims.end_session(key)
        if self._teller.observer is not None:
            decision = ticket.decision
            ttft_s = ticket.ttft_s if turn.stream else None
            self._teller.ended(Ended(turn, decision, outcome, usage, ttft_s, now - decision.at, now))

    def _delivered(self, ticket: Ticket, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Hold what was believed of a replica's cache, and of its speed, against what it reports."""
        turn, decision, member = ticket.turn, ticket.decision, ticket.member
        alone = decision.pull is None and decision.pair is None
        whole = turn.stream and turn.computes and not decision.attempt and alone
        if whole and ticket.ttft_s is not None:
            chosen = decision.chosen
            member.learned.first_token(
                prompt_tokens,
                cached_tokens,
                min(chosen.host_tokens, cached_tokens),
                max(chosen.wait_s, chosen.slot_s, chosen.link_s),
                ticket.ttft_s,
                now,
                shared=bool(chosen.in_flight or chosen.foreign),
            )
        if self._pulling is not None:
            self._pulling.delivered(ticket, prompt_tokens, cached_tokens, now)
        if not ticket.depth:
            return
        ends = turn.chain.ends
        # By the prompt's own length, so that the ratio's error is no part of it.
        believed = prompt_tokens * ends[ticket.depth - 1] / ends[-1] if ends[-1] else 0.0
        if member.delivery.observe(believed, cached_tokens):
            self._shelves.fit(member)
