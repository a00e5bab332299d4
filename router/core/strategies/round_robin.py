"""Strategy `round-robin`: one after another. Knows nothing of load, of sessions or of their KV."""

from random import Random

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import within_limits
from router.core.strategies.params import Parameterless


class RoundRobin(Parameterless):
    """The next in turn by name; the view's serial says whose turn it is, so nothing is kept here."""

    __slots__ = ()

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        eligible, relaxed = within_limits(view.candidates)
        return Choice(eligible[view.serial % len(eligible)], "next in turn" + relaxed)
