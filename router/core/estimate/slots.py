"""How long a turn waits until enough of a full replica's turns have ended: for KV blocks, or for a place.

A function of counts; it knows no replica and no time.
"""

from math import log


def wait_for_endings_s(needed: float, own: float, running: float, remaining_s: float) -> float:
    """Seconds until `needed` of `running` turns have ended, each of which has `remaining_s` left on average.

    `own` of `needed` are for the turn itself; whoever stands before it takes what the others leave at once,
    so that as many run until then. Of the last no place is taken again, and the fewer are left, the longer
    the next end takes: of n that end at random the k-th ends after remaining × (1/n + … + 1/(n − k + 1)).
    """
    if needed <= 0.0:
        return 0.0
    running = max(running, 1.0)
    # A part of a turn does not end.
    own = min(max(own, min(1.0, needed)), needed, running)
    before = max(0.0, needed - own)
    return remaining_s * (before / running + log((running + 0.5) / (running - own + 0.5)))
