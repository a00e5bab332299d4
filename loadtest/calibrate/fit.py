"""Searches the parameters that make a loss small. The same loss, the same result."""

from collections.abc import Callable, Mapping
from typing import Final

_START_FACTOR: Final = 2.0
_END_FACTOR: Final = 1.01


def pattern_search(
    start: Mapping[str, float], loss: Callable[[Mapping[str, float]], float]
) -> tuple[Mapping[str, float], float]:
    """Parameters above 0 and their loss: each in turn is multiplied and divided by a factor as long as that
    makes the loss smaller; where nothing does, the factor shrinks."""
    best, least = dict(start), loss(start)
    factor = _START_FACTOR
    while factor > _END_FACTOR:
        found = False
        for name in start:
            for by in (factor, 1 / factor):
                while (tried := loss(changed := {**best, name: best[name] * by})) < least:
                    best, least, found = changed, tried, True
        if not found:
            factor = factor**0.5
    return best, least
