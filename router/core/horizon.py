"""How much unprefilled work to keep on its way to one replica: enough that it never runs dry, and no more.

What is beyond that waits in the router, where its order can still change. Knows no turns: it is told what
was sent and whether the replica had run dry.
"""

from typing import Final

SEED_TOKENS: Final = 8192
"""A step of an engine takes so many tokens on large cards by default. With less on its way, a step has less
to do than it could; more is learned."""

_MOST_TOKENS: Final = 8 * SEED_TOKENS

# A replica that ran dry idled for a round trip. One in twenty-odd refills may find it so: 1.1 × 0.995²⁰ ≈ 1.
_GROW: Final = 1.1
_SHRINK: Final = 0.995


class Horizon:
    """One replica's horizon, in tokens to prefill."""

    __slots__ = ("_largest", "tokens")

    def __init__(self) -> None:
        self.tokens = float(SEED_TOKENS)
        """Read-only."""
        self._largest = 0

    def refill(self, pending_tokens: int) -> None:
        """There is more for the replica, which has this much left to prefill of what it was sent."""
        if pending_tokens > 0:
            self.tokens = max(float(SEED_TOKENS), self.tokens * _SHRINK)
            return
        # A turn above the horizon ends with nothing behind it, however long it kept the replica busy.
        if 0 < self._largest < self.tokens:
            self.tokens = min(float(_MOST_TOKENS), self.tokens * _GROW)
        self._largest = 0

    def sent(self, tokens: int) -> None:
        """A turn with so many tokens to prefill is on its way to the replica."""
        self._largest = max(self._largest, tokens)
