"""What the engine learns of one replica in one life of it, from how its turns went.

Gathers the estimators of `router.core.estimate`, and decides which turn teaches which. Replicas that do the
same are learned of together: one curve for all, which the turns of each teach, and of each how fast it is. So
one that has few turns, or only short ones, is not believed slow for want of any that would tell. Knows no
fleet.
"""

from typing import Final

from router.core.estimate.holding import Holding
from router.core.estimate.prefill import Curve, PrefillCurve
from router.core.estimate.scale import Scale

# A turn that was expected to wait for longer than this share of its time says more of the queue than of the
# replica.
_WAITED_MOST: Final = 0.25

# How slow a replica may be beside the others, and how fast. A turn counts a quarter: first tokens differ by
# up to a step of the engine, which is no difference in speed.
_MOST_TIMES: Final = 100.0
_TURN: Final = 0.25

# Once it has learned from so many turns, a replica learns from ten a second at most: a small model serves
# thousands, and each would cost as much as half a decision.
_MANY: Final = 100
_EVERY_S: Final = 0.1

SEED_TOKENS_PER_S: Final = 8000.0
"""Prefill rate where the policy says nothing."""


class Learned:
    """Estimates of one replica. Read `curve` and `holding`; feed it through the methods."""

    __slots__ = ("_next_at", "_prefill", "_slowness", "_taught", "curve", "holding")

    def __init__(self, seed_tokens_per_s: float) -> None:
        self._prefill = PrefillCurve(seed_tokens_per_s)
        self._slowness: Scale | None = None
        """Its times beside those of the curve that it shares; `None` where it shares none."""
        self.curve = self._prefill.curve
        """Seconds to a first token. Replaced whole."""
        self.holding = Holding()
        """How long turns go on after their first token."""
        self._taught = 0
        self._next_at = 0.0

    def share(self, prefill: PrefillCurve) -> None:
        """Learn together with all that were given the same. What it has learned alone is forgotten."""
        if prefill is not self._prefill:
            self._prefill = prefill
            self._slowness = Scale(1.0, least=1.0 / _MOST_TIMES, most=_MOST_TIMES)
            self.settle()

    def settle(self) -> None:
        """Go by what the others have taught meanwhile."""
        curve = self._prefill.curve
        if self._slowness is None:
            self.curve = curve
            return
        times = self._slowness.value
        self.curve = Curve(
            curve.base_s * times,
            curve.token_s * times,
            curve.bend_s * times,
            curve.reload_s * times,
            curve.shared_s * times,
        )

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
        took_s = ttft_s - waited_s
        reloaded = min(reloaded, prompt - missing)
        if self._slowness is not None:
            expected_s = self._prefill.curve.seconds(missing, prompt, reloaded, shared=shared)
            self._slowness.observe(took_s / expected_s, _TURN)
            took_s /= self._slowness.value
        changed = self._prefill.observe(missing, prompt, took_s, reloaded, shared=shared)
        if changed or self._slowness is not None:
            self.settle()
