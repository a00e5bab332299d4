"""Strategy `least-loaded`: the replica with the least to do. Knows nothing of sessions or of their KV."""

from random import Random
from typing import TypeAlias

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import NO_PARAMS, NoParams, least_loaded, load, within_limits


class LeastLoaded:
    """The least load; equals are told apart so that an idle fleet spreads (see `common.least_loaded`).

    The prices are loads, in turns.
    """

    Params: TypeAlias = NoParams

    __slots__ = ()

    def __init__(self, params: NoParams = NO_PARAMS) -> None:
        pass

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        eligible, relaxed = within_limits(view.candidates)
        return Choice(
            least_loaded(turn, view, eligible),
            "least loaded" + relaxed,
            tuple([load(c) for c in view.candidates]),
        )
