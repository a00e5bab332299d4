"""A turn's prompt in a prefill replica's hands: counted when it is given there, uncounted exactly once.

The other half of a `Ticket`, which is the answer's. Leaves to the books what the moments mean.
"""

from typing import Protocol

from router.core.claims import Claim
from router.core.member import Member
from router.core.observe import Outcome, Usage
from router.core.pairing import Pairing
from router.core.ticket import Ticket


class LegBooks(Protocol):
    """Who is told, once, that a leg is over."""

    def leg_ended(self, leg: "Leg", outcome: Outcome, now: float, usage: Usage | None) -> None: ...


class Leg:
    """From the choice of the prefill replica to its answer. Ends exactly once."""

    __slots__ = (
        "_books",
        "_open",
        "attempt",
        "began",
        "claim",
        "claim_used",
        "epoch",
        "member",
        "missing",
        "number",
        "pairing",
        "patience_s",
        "sharing",
        "ticket",
    )

    def __init__(
        self,
        books: LegBooks,
        ticket: Ticket,
        pairing: Pairing,
        member: Member,
        claim: Claim | None,
        attempt: int,
        now: float,
    ) -> None:
        self._books = books
        self.ticket = ticket
        self.pairing = pairing
        self.member = member
        self.epoch = member.epoch
        self.claim = claim
        """What it may fetch. Put back at the end where it was not used; `None` where there is none, or it is
        of no use."""
        self.claim_used = False
        """The replica was sent it. From then on it is nobody else's."""
        self.attempt = attempt
        """0 for the turn's first prefill replica."""
        self.number = 0
        """Which of those it is that had this turn's prompt, whoever answers; for who reads of it."""
        self.began = now
        self.patience_s: float | None = None
        """What it may take, where it is to fetch; `None` = as long as any answer."""
        self.missing = max(1, pairing.prompt_tokens - pairing.cached_tokens)
        """Prompt tokens that the replica has yet to prefill."""
        self.sharing = 0
        """By how many the path of its fetch is shared; 0 where none is under way."""
        self._open = True

    def end(self, outcome: Outcome, now: float, usage: Usage | None = None) -> None:
        """The replica has computed the prompt (`COMPLETED`, with what it reported), or has not."""
        if not self._open:
            return
        self._open = False
        self.prefilled(now)
        self._books.leg_ended(self, outcome, now, usage)

    def prefilled(self, now: float) -> None:
        """Nothing of it is to be prefilled there any more."""
        if self.missing:
            if self.of_this_life:
                self.member.has_prefilled(self, self.missing, now)
            self.missing = 0
        if self.member.reloading:
            self.member.has_reloaded(self, now)

    @property
    def of_this_life(self) -> bool:
        """Whether the replica has not begun another life since: else it counts no more."""
        return self.member.epoch == self.epoch
