"""Strategy `bounded-ring`: consistent hashing by session, with a bound on the turns at one replica.

Knows nothing of what is cached. It pins nothing: once its owner is no longer too busy, a session is back
there, where its KV lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final, TypeAlias

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import bounded_owner, least_loaded, load, within_limits
from router.core.strategies.params import check_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """A replica is skipped while its load exceeds both bounds."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    relative: float = 1.25
    """Times the candidates' mean load, from 1 up."""
    absolute: float = 8.0
    """Turns above the candidates' mean load, from 0 up: keeps sessions of a nearly idle fleet in place."""

    def __post_init__(self) -> None:
        check_bound(self.relative, self.absolute)


_DEFAULTS: Final = Params()


class BoundedRing:
    """The first in the ring's order for the session whose load is within the bound.

    The prices are loads, in turns. A turn without a session goes to the least loaded.
    """

    Params: TypeAlias = Params

    __slots__ = ("_params",)

    def __init__(self, params: Params = _DEFAULTS) -> None:
        self._params = params

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        prices = tuple([load(c) for c in view.candidates])
        eligible, relaxed = within_limits(view.candidates)
        if turn.session is None:
            return Choice(least_loaded(turn, view, eligible), "no session, least loaded" + relaxed, prices)
        loads = [load(c) for c in eligible]
        chosen, reason = bounded_owner(
            turn.session, view, eligible, loads, self._params.relative, self._params.absolute
        )
        if chosen is None:
            return Choice(
                least_loaded(turn, view, eligible), "none on the ring, least loaded" + relaxed, prices
            )
        return Choice(chosen, reason + relaxed, prices)
