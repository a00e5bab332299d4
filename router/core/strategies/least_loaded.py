"""Strategy `least-loaded`: the replica with the least to do. Knows nothing of sessions or of their KV."""

from random import Random

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import least_loaded, load, within_limits
from router.core.strategies.params import Parameterless


class LeastLoaded(Parameterless):
    """The least load; equals are told apart so that an idle fleet spreads (see `common.least_loaded`).

    The prices are loads, in turns.
    """

    __slots__ = ()

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        eligible, relaxed = within_limits(view.candidates)
        return Choice(
            least_loaded(turn, view, eligible),
            "least loaded" + relaxed,
            tuple([load(c) for c in view.candidates]),
        )
