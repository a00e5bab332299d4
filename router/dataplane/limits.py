"""The bounds that the data plane holds every client and replica to."""

import sys
from dataclasses import dataclass
from typing import Final

_OF_PATIENCE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds. The defaults are those of the configuration file."""

    body: int = 64 * 2**20
    """One request body, or one answer that must be held whole."""
    clients: int = sys.maxsize
    """Client connections at once. One more is answered 503: each may need a second one, to a replica."""
    held_bytes: int = 2 * 2**30
    """All request bodies, and answers gathered whole, held at once, over all clients."""
    head: int = 64 * 2**10
    """One request or response head."""
    first_byte_s: float = 600.0
    """From dispatch to the first answer byte, and between two pieces of an answer."""
    total_s: float | None = None
    """From the request to the end of its answer; `None` = no limit."""
    idle_s: float = 75.0
    """A client connection without a request, an upload that stands still, and an answer that is not taken."""
    head_s: float = 20.0
    """From the first byte of a request head to its end."""
    connect_s: float = 3.0
    """One connection attempt to a replica."""
    upstream_idle_s: float = 4.0
    """An idle connection to a replica is dropped after this: uvicorn closes its own after 5 s, and a
    request sent into that close is lost."""
    upstream_idle_connections: int = 512
    """Idle connections kept a replica."""

    def wait_s(self, patience_s: float | None) -> float | None:
        """For how long a turn may wait for a replica, by the limits and by its client's patience.

        Somewhat less than the client waits, so that it hears why. `None` = they do not say.
        """
        if patience_s is None:
            return self.total_s
        wait_s = patience_s * _OF_PATIENCE
        return wait_s if self.total_s is None else min(wait_s, self.total_s)
