"""Keeps the garbage collector from stopping a server that has next to no garbage for it.

Reference counts free what a request leaves behind; the collector only looks for cycles. Its full passes
walk every object there is, and all turns wait meanwhile: tens of milliseconds for the modules alone.
"""

import gc
from typing import Final

# Container objects that outlive what made them, by default 700, before the youngest are looked through: a
# hundred turns in flight leave more than that. The older generations follow in the usual steps.
_YOUNG: Final = 20_000


def settle_heap() -> None:
    """Call once everything is loaded: what is there now stays, and is not looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
