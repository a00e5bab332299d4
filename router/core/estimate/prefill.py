"""How long a replica takes to a first token: a curve over tokens computed, behind how many, and reloaded.

Learned from first tokens.

Knows no turns: it is told how many tokens there were of each, and how long that took.
"""

from math import inf
from typing import Final

from router.base.values import Value
from router.core.estimate.fit import Coefficient, Fit

# Seconds from dispatch to first token beside all prefilling: the way there and back, and as much again for
# the steps of others. Some tens of milliseconds on any engine.
_SEED_BASE_S: Final = 0.01
_LEAST_BASE_S: Final = 1e-4
_MOST_BASE_S: Final = 2.0

# Tokens a second: a small model on two cores, and ten times what any accelerator does.
_LEAST_RATE: Final = 50.0
_MOST_RATE: Final = 5_000_000.0

# A share of the cost of a token without context, for each token before it. The seed doubles the cost at ten
# million tokens and says little; the least is none, the most makes it a hundredfold at 200k.
_SEED_BEND: Final = 1e-7
_BEND_DOUBT: Final = 50.0
_LEAST_BEND: Final = 1e-9
_MOST_BEND: Final = 100.0 / 200_000.0

# Tokens a second from host to device: 400 Gb/s at 160 KiB a token, and from a slow disk's to a small model's.
_SEED_RELOAD: Final = 300_000.0
_LEAST_RELOAD: Final = 1e3
_MOST_RELOAD: Final = 1e8

# A first token that took longer says that something else went wrong.
_MOST_S: Final = 3600.0

_DOUBT: Final = 5.0
"""Factor by which the seeds may be off."""


class Curve(Value):
    """Seconds to the first token as a function of what is to be computed. A value."""

    __match_args__ = (
        "base_s",
        "token_s",
        "bend_s",
        "reload_s",
        "shared_s",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        base_s: float,
        token_s: float,
        bend_s: float,
        reload_s: float,
        shared_s: float = 0.0,
    ) -> None:
        self.base_s: Final = base_s
        """For a prompt that needs next to nothing computed."""
        self.token_s: Final = token_s
        """For each new token with nothing before it."""
        self.bend_s: Final = bend_s
        """More for each new token and each token before it: attention."""
        self.reload_s: Final = reload_s
        """For each token that is brought back from the host: KV bytes of a token ÷ bandwidth."""
        self.shared_s: Final = shared_s
        """More where other turns are there: a step of theirs that has begun, and theirs in each of its
        own."""

    def seconds(
        self, missing: float, context: float, reloaded: float = 0.0, *, shared: bool = False
    ) -> float:
        """To compute the last `missing` tokens of a prompt of `context` tokens, once begun, where `reloaded`
        of the others come from the host. `shared`: whether other turns are there."""
        computing = missing * (self.token_s + self.bend_s * (context - 0.5 * missing))
        begun = self.base_s + self.shared_s if shared else self.base_s
        return begun + computing + reloaded * self.reload_s

    def work_s(self, missing: float, context: float) -> float:
        """To compute them, without the base: what others must wait for."""
        return missing * (self.token_s + self.bend_s * (context - 0.5 * missing))


class PrefillCurve:
    """Learns a `Curve`. Each coefficient stays within bounds, and none is negative: more never takes less
    time."""

    __slots__ = ("_fit", "curve")

    def __init__(self, seed_tokens_per_s: float) -> None:
        """`seed_tokens_per_s`: the rate to assume of a short prompt before anything is known."""
        token = 1.0 / min(_MOST_RATE, max(_LEAST_RATE, seed_tokens_per_s))
        self._fit = Fit(
            (
                Coefficient(_SEED_BASE_S, _DOUBT, _LEAST_BASE_S, _MOST_BASE_S),
                Coefficient(token, _DOUBT, 1.0 / _MOST_RATE, 1.0 / _LEAST_RATE),
                Coefficient(token * _SEED_BEND, _BEND_DOUBT, token * _LEAST_BEND, token * _MOST_BEND),
                Coefficient(1.0 / _SEED_RELOAD, _DOUBT, 1.0 / _MOST_RELOAD, 1.0 / _LEAST_RELOAD),
                Coefficient(_SEED_BASE_S, _DOUBT, _LEAST_BASE_S, _MOST_BASE_S),
            )
        )
        self.curve = Curve(*self._fit.values)
        """What is believed. Read-only; replaced whole."""

    def observe(
        self, missing: float, context: float, seconds: float, reloaded: float = 0.0, *, shared: bool = False
    ) -> bool:
        """Learn from a first token that came `seconds` after its prompt's turn in the engine had come.

        Whether `curve` has changed. What cannot be, from a clock that was set, is ignored.
        """
        if not 0.0 < seconds <= _MOST_S or not 0.0 < missing <= context - reloaded <= context < inf:
            return False
        if not self._fit.observe(
            (1.0, missing, missing * (context - 0.5 * missing), reloaded, 1.0 if shared else 0.0), seconds
        ):
            return False
        self.curve = Curve(*self._fit.values)
        return True
