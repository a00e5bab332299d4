"""How far a replica's cache keeps to what the router believes of it, from the cached tokens it reports.

Knows no index and no turns: it is told what was believed and what was delivered, and says by how much to
trust the one and how much of the capacity to count on.
"""

from typing import Final

# Below this a report says more of block sizes and chat templates than of the cache.
_LEAST_TOKENS: Final = 256

# An engine reuses whole blocks and computes at least the last token: so much less is not a shortfall.
_ROUNDING_TOKENS: Final = 64

# The belief before any report weighs as much as four of them: one evicted prompt is no reason to give up on
# a replica.
_SEED_WEIGHT: Final = 4.0

# Weight of a report once there were sixteen: a single prompt lost moves trust by less than its half step, and
# 0.95⁴⁵ = 10 % of an old ratio is left after 45 turns.
_GAIN: Final = 0.05

# Trust moves in eighths, so that replicas that deliver about alike compare as equal. Where one of two equal
# holders looked better by a hair, it would be given all that they share.
_STEPS: Final = 8

# A turn that found less than half of what was believed found it evicted: what is cached goes block by block
# from its tail, and a prompt that is soon followed by the next is lost whole or not at all. Smaller gaps are
# the belief's own errors, such as a reply whose reasoning is not sent again.
_LOST: Final = 0.5

# What is counted on shrinks by a tenth with each prompt lost and grows by a two-hundredth with each found, so
# it settles where one in twenty is lost. It never shrinks below an eighth: an engine that loses more (one
# with caching off, or several behind one port) is told by trust.
_SHRINK: Final = 0.9
_GROW: Final = 1.005
_LEAST_SHARE: Final = 0.125


class Delivery:
    """One life of one replica: what it delivered of what it was believed to hold."""

    __slots__ = ("_ratio", "_weight", "share", "trust")

    def __init__(self) -> None:
        self.trust = 1.0
        """Tokens to expect for each token believed to be cached, 0 … 1 in eighths. Read-only."""
        self.share = 1.0
        """How much of its KV capacity keeps what this router sent there, above 0 … 1: others, or blocks in
        use, take the rest. Read-only."""
        self._ratio = 1.0
        self._weight = _SEED_WEIGHT

    def observe(self, believed: float, delivered: int) -> bool:
        """Learn from a prompt of which `believed` tokens should have been cached and `delivered` were.

        Whether `share` has shrunk. More than was believed counts as all of it: others send prompts, too.
        """
        if believed < _LEAST_TOKENS:
            return False
        found = 1.0 if delivered + _ROUNDING_TOKENS >= believed else delivered / believed
        self._weight += 1.0
        self._ratio += max(_GAIN, 1.0 / self._weight) * (found - self._ratio)
        self.trust = round(self._ratio * _STEPS) / _STEPS
        if found < _LOST:
            self.share = max(_LEAST_SHARE, self.share * _SHRINK)
            return True
        self.share = min(1.0, self.share * _GROW)
        return False
