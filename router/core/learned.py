"""What the engine learns of one replica in one life of it, from how its turns went.

Gathers the estimators of `router.core.estimate`, and decides which turn teaches which. Knows no fleet.
"""

from typing import Final

from router.core.estimate.holding import Holding
from router.core.estimate.prefill import PrefillCurve

# A turn that was expected to wait for longer than this share of its time says more of the queue than of the
# replica.
_WAITED_MOST: Final = 0.25

# Once it has learned from so many turns, a replica learns from ten a second at most: a small model serves
# thousands, and each would cost as much as half a decision.
_MANY: Final = 100
_EVERY_S: Final = 0.1

SEED_TOKENS_PER_S: Final = 8000.0
"""Prefill rate where the policy says nothing."""


class Learned:
    """Estimates of one replica. Read `curve` and `holding`; feed it through the methods."""

    __slots__ = ("_next_at", "_prefill", "_taught", "curve", "holding")

    def __init__(self, seed_tokens_per_s: float) -> None:
        self._prefill = PrefillCurve(seed_tokens_per_s)
        self.curve = self._prefill.curve
        """Seconds to a first token. Replaced whole."""
        self.holding = Holding()
        """How long turns go on after their first token."""
        self._taught = 0
        self._next_at = 0.0

    def first_token(
        self,
        prompt: float,
        cached: float,
        reloaded: float,
        waited_s: float,
        ttft_s: float,
        now: float,
        *,
        shared: bool = False,
    ) -> None:
        """A streamed turn's first token came after `ttft_s`, of which it is believed to have waited
        `waited_s`. `cached` tokens were reported; `reloaded` of them are believed to have come from the host.
        `shared`: whether other turns were there.
        """
        if waited_s > _WAITED_MOST * ttft_s or (
            self._taught >= _MANY and 0.0 <= self._next_at - now <= _EVERY_S
        ):
            return
        self._taught += 1
        self._next_at = now + _EVERY_S
        # The last token is always computed.
        missing = max(1.0, prompt - cached)
        if self._prefill.observe(
            missing, prompt, ttft_s - waited_s, min(reloaded, prompt - missing), shared=shared
        ):
            self.curve = self._prefill.curve
