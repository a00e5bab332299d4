"""Strategy `ring`: plain consistent hashing by session. Knows nothing of load or of what is cached."""

from random import Random

from router.core.decide import Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import find, least_loaded, within_limits
from router.core.strategies.params import Parameterless


class RingOnly(Parameterless):
    """The session's owner on the ring; where that is no candidate or over a limit, the next on the ring.

    Routers that see the same fleet choose alike. A turn without a session goes to the least loaded.
    """

    __slots__ = ()

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        eligible, relaxed = within_limits(view.candidates)
        if turn.session is None:
            return Choice(least_loaded(turn, view, eligible), "no session, least loaded" + relaxed)
        reason = "owner on the ring"
        for replica in view.ring.order(turn.session):
            candidate = find(eligible, replica)
            if candidate is not None:
                return Choice(candidate, reason + relaxed)
            reason = "next on the ring"
        return Choice(least_loaded(turn, view, eligible), "none on the ring, least loaded" + relaxed)
