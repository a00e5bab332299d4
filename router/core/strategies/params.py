"""What strategies are built from that are compiled, and what the parameters of several share.

Apart from the strategies themselves, since pydantic looks into dataclasses of parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Final, TypeAlias

from router.core.prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class NoParams:
    """Parameters of a strategy that has none: every key is refused."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


NO_PARAMS: Final = NoParams()


class Parameterless:
    """What a strategy without parameters is built from, like any other."""

    Params: TypeAlias = NoParams

    __slots__ = ()

    def __init__(self, params: NoParams = NO_PARAMS) -> None:
        pass


def check_bound(relative: float, absolute: float) -> None:
    """Raise `ValueError` for a bound below the mean, where all replicas could exceed it, or not finite."""
    if not 1.0 <= relative < inf:
        raise ValueError(f"relative is {relative}: it must be a number from 1 up")
    if not 0.0 <= absolute < inf:
        raise ValueError(f"absolute is {absolute}: it must be a number from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedParams:
    """How evenly sessions are placed: a replica is skipped while its footprint exceeds both bounds."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    relative: float = 1.1
    """Times the candidates' mean footprint, from 1 up."""
    absolute: float = 50000.0
    """Tokens above the candidates' mean footprint, from 0 up: keeps sessions of an emptyish fleet with
    their owners, so that several routers place alike."""
    prices: Prices = field(default_factory=Prices)
    """What the options of a later turn cost, beside what is known of the replicas."""

    def __post_init__(self) -> None:
        check_bound(self.relative, self.absolute)
