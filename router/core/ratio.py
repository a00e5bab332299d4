"""Tokens per prompt byte of one model, learned from what replicas report: nothing is tokenized here."""

from math import exp, log
from typing import Final

LEAST: Final = 0.02
MOST: Final = 1.5
"""No tokenizer leaves this range on a real prompt: 50 bytes a token, or more tokens than bytes (a short
prompt in a long chat template)."""

# A prompt of this many bytes counts half. The chat template's own tokens, some tens, are noise in a short
# prompt and nothing in a long one.
_HALF_WEIGHT_BYTES: Final = 2_000

# Weight of a long prompt once the first few are in: 0.7¹⁰ = 3 % of an old error is left after ten turns.
_GAIN: Final = 0.3

# A report within 0.1 % of the value teaches nothing.
_NEGLIGIBLE: Final = 0.001

# One report counts as at most twice or half the present value, so an absurd one moves it by 2^0.3, 23 %.
_STEP: Final = log(2.0)


class TokenRatio:
    """A running estimate, in the log domain, where twice too many is as far off as half too few."""

    __slots__ = ("_log", "_weight", "value")

    def __init__(self, seed: float = 0.25) -> None:
        """`seed`: tokens a byte to assume before any report. It weighs as much as one long prompt."""
        self.value = min(MOST, max(LEAST, seed))
        """Tokens per prompt byte, within [`LEAST`, `MOST`]. Read-only."""
        self._log = log(self.value)
        self._weight = 1.0

    def observe(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from a prompt whose length in tokens was reported. A length of zero or less says nothing."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        off = log(min(MOST, max(LEAST, prompt_tokens / prompt_bytes))) - self._log
        weight = prompt_bytes / (prompt_bytes + _HALF_WEIGHT_BYTES)
        self._weight += weight
        gain = weight * max(_GAIN, 1.0 / self._weight)
        if -_NEGLIGIBLE < off < _NEGLIGIBLE:
            return
        self._log += gain * min(_STEP, max(-_STEP, off))
        self.value = min(MOST, max(LEAST, exp(self._log)))
