"""A turn in a replica's hands: counted when it is chosen, uncounted exactly once.

Keeps the two moments in order, and leaves to the books what they mean.
"""

from typing import Protocol

from router.core.decide import Decision
from router.core.member import Member
from router.core.model import Model
from router.core.observe import Outcome, Usage
from router.core.request import Turn


class Books(Protocol):
    """Who is told, once each, that a turn was accepted and that it ended."""

    __slots__ = ()

    def accepted(self, ticket: "Ticket", now: float) -> None: ...

    def ended(self, ticket: "Ticket", outcome: Outcome, now: float, usage: Usage | None) -> None: ...


class Ticket:
    """A turn that was given to a replica, from the choice to its end. Ends exactly once.

    `first_byte` and `end` may be called in any order and repeatedly; only the first of each counts, and
    nothing counts after the end.
    """

    __slots__ = (
        "_books",
        "_open",
        "began",
        "decision",
        "depth",
        "epoch",
        "first_byte_at",
        "kv_tokens",
        "member",
        "missing",
        "model",
        "pull_sharing",
        "ttft_s",
        "turn",
    )

    def __init__(
        self, books: Books, turn: Turn, decision: Decision, member: Member, model: Model, depth: int
    ) -> None:
        self.turn = turn
        self.decision = decision
        self._books = books
        self.member = member
        self.epoch = member.epoch
        """The life of the replica that has the turn; it may have begun another since."""
        self.model = model
        self.depth = depth
        """Leading segments of the prompt that were believed to lie there."""
        missing = decision.prompt_tokens - decision.cached_tokens
        self.missing = missing if missing > 0 and turn.computes and decision.pair is None else 0
        """Prompt tokens that the replica has yet to prefill: none where another one does."""
        self.kv_tokens = decision.prompt_tokens if turn.computes else 0
        """Prompt tokens whose KV it holds there."""
        self.pull_sharing = 0
        """By how many the path of its pull is shared; 0 where none is under way."""
        self._open = True
        self.first_byte_at: float | None = None
        self.began = decision.at
        """When the turn was first given to a replica: to an earlier one, where that failed it."""
        self.ttft_s: float | None = None
        """From then to the first answer byte; `None` until that comes."""

    def first_byte(self, now: float) -> None:
        """The replica accepted the turn (2xx) and its first answer byte is here.

        From now on the session lives there and its prompt is in the replica's cache.
        """
        if not self._open or self.ttft_s is not None:
            return
        self.ttft_s = now - self.began
        self.first_byte_at = now
        self.prefilled(now)
        self._books.accepted(self, now)

    def end(self, outcome: Outcome, now: float, usage: Usage | None = None) -> None:
        """The attempt is over: uncount it and learn from it."""
        if not self._open:
            return
        self._open = False
        self.prefilled(now)
        self._books.ended(self, outcome, now, usage)

    def prefilled(self, now: float) -> None:
        """The replica has computed the prompt."""
        if self.missing:
            if self.of_this_life:
                self.member.has_prefilled(self, self.missing, now)
            self.missing = 0
        if self.member.reloading:
            self.member.has_reloaded(self, now)

    @property
    def of_this_life(self) -> bool:
        """Whether the replica that has the turn has not begun another life since: else it counts no more."""
        return self.member.epoch == self.epoch
