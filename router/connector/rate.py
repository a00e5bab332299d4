"""How fast this engine computes prompts, learned from its own steps.

A load is worth waiting for only as long as computing would take.
"""

from typing import Final

_WEIGHT: Final = 0.2
_LEAST_TOKENS: Final = 128
"""Smaller steps are decodes, or cost more for being started than for their tokens."""


class PrefillRate:
    """A running mean of the seconds a token takes, in steps that are mostly prompts."""

    __slots__ = ("_seconds_a_token",)

    def __init__(self) -> None:
        self._seconds_a_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """A step that computed `tokens` took `seconds`, from its schedule to its output."""
        if tokens < _LEAST_TOKENS or seconds <= 0:
            return
        sample = seconds / tokens
        known = self._seconds_a_token
        self._seconds_a_token = sample if known is None else known + _WEIGHT * (sample - known)

    def seconds(self, tokens: int) -> float | None:
        """How long computing so many tokens takes; `None` while nothing was computed."""
        return None if self._seconds_a_token is None else tokens * self._seconds_a_token
