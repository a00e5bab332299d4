"""Strategy `two-choices`: of two replicas drawn at random, the less loaded.

Several routers with stale figures do not all run to the same replica, as they would to the least loaded.
"""

from random import Random

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import load, within_limits
from router.core.strategies.params import Parameterless


class TwoChoices(Parameterless):
    """The less loaded of two different candidates drawn at random; of equals, either."""

    __slots__ = ()

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        eligible, relaxed = within_limits(view.candidates)
        count = len(eligible)
        if count == 1:
            return Choice(eligible[0], "the only one" + relaxed)
        # `Random.sample` takes several times as long for two of a few.
        first = int(rng.random() * count)
        second = int(rng.random() * (count - 1))
        if second >= first:
            second += 1
        one, other = eligible[first], eligible[second]
        # Each order of a pair is equally likely, so keeping the first of equals is a fair draw.
        return Choice(other if load(other) < load(one) else one, "less loaded of two" + relaxed)
