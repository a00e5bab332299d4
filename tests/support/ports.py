"""Free ports in pairs, for what listens at a fixed distance."""

import socket

from router.simulator.events import REPLAY_PORT


def free_pair() -> int:
    """A port that is free, as is the one at the replay's distance above it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + REPLAY_PORT))
            except (OSError, OverflowError):
                continue
            return port
