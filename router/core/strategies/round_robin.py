"""Strategy `round-robin`: one after another. Knows nothing of load, of sessions or of their KV."""

from random import Random
from typing import TypeAlias

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import NO_PARAMS, NoParams, within_limits


class RoundRobin:
    """The next in turn by name; the view's serial says whose turn it is, so nothing is kept here."""

    Params: TypeAlias = NoParams

    __slots__ = ()

    def __init__(self, params: NoParams = NO_PARAMS) -> None:
        pass

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        eligible, relaxed = within_limits(view.candidates)
        return Choice(eligible[view.serial % len(eligible)], "next in turn" + relaxed)
