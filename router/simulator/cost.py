"""How long the steps of a simulated engine take. Knows nothing of requests or blocks.

A step that decodes takes one interval, which may grow with the sequences that decode and with their tokens;
one that only prefills takes a fixed time beside its prompt tokens, which may cost more the more stand before
them. With the settings' defaults nothing grows and the fixed time is 0.
"""

from math import sqrt
from typing import NamedTuple

from router.simulator.settings import ReplicaSettings


class Pace(NamedTuple):
    """How steps follow each other while the same sequences decode and nothing is prefilled. In seconds."""

    step_s: float
    """The first step."""
    growth_s: float
    """How much longer each step takes than the one before: its sequences are a token longer."""

    def after_s(self, steps: int) -> float:
        return steps * self.step_s + self.growth_s * (steps * (steps - 1) / 2)

    def steps_within(self, seconds: float) -> int:
        """How many steps end in that time, give or take one: the division may round up."""
        if self.growth_s == 0:
            return int(seconds / self.step_s)
        first = self.step_s - self.growth_s / 2
        return int((sqrt(first * first + 2 * self.growth_s * max(0.0, seconds)) - first) / self.growth_s)


class StepCost:
    """The costs that some settings make."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._token_s = 1 / settings.prefill_tps
        self._token_growth = _inverse(settings.prefill_double_tokens)
        self._interval_s = 1 / settings.decode_tps
        self._seq_s = self._interval_s * _inverse(settings.decode_double_seqs)
        self._context_s = self._interval_s * _inverse(settings.decode_double_tokens)
        self.step_s = settings.step_ms / 1e3
        """What a step that only prefills takes beside its prompt tokens."""

    def prefill_s(self, behind: int, tokens: int) -> float:
        """Computing `tokens` prompt tokens that have `behind` others before them."""
        return tokens * self._token_s * (1 + (behind + tokens / 2) * self._token_growth)

    def pace(self, sequences: int, context_tokens: int) -> Pace:
        """Decoding so many sequences, at least one, that have so many tokens together."""
        step_s = self._interval_s + (sequences - 1) * self._seq_s + context_tokens * self._context_s
        return Pace(step_s, sequences * self._context_s)


def _inverse(value: float) -> float:
    return 1 / value if value else 0.0
