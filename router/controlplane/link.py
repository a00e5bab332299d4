"""Messages between a worker and the process that started it, over a socket pair. Knows not what they mean.

The pair ends with either process, so each side learns at once of the other's end.
"""

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Final, cast

_HEAD: Final = 5
"""Bytes before each message: four for its length, one for its kind."""

MAX_MESSAGE: Final = 1 << 20
_MOST_WAITING: Final = 8 << 20
"""Bytes that wait for the other side to read them. Beyond it does not keep up, or hangs."""


class Kind(IntEnum):
    """What a message is."""

    READY = 1
    """From a worker: it serves."""
    STOP = 2
    """To a worker: end, as the message says."""
    REMEMBER = 3
    """To a worker: write down what is known; and its answer, once it has."""
    TURN = 4
    """A turn that was answered, for the other workers to hear."""
    RESPONSE = 5
    """A response that is stored, likewise."""


HEARSAY: Final = frozenset({Kind.TURN, Kind.RESPONSE})
"""Goes from a worker to all others. Each does without, so it may be lost."""


class Link(asyncio.Protocol):
    """One end. `on_message` gets each message, `on_lost` is called once when the other end is gone, or talks
    nonsense."""

    def __init__(self, on_message: Callable[[Kind, bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._begun = bytearray()
        self.lost = 0
        """Messages that were not sent, since too much waited."""

    def send(self, kind: Kind, message: bytes = b"") -> None:
        """Never waits. What nobody takes, or is too long, is lost and counted."""
        transport = self._transport
        waiting = transport.get_write_buffer_size() if transport is not None else _MOST_WAITING
        if transport is None or len(message) > MAX_MESSAGE or (waiting >= _MOST_WAITING and kind in HEARSAY):
            self.lost += 1
            return
        transport.write(len(message).to_bytes(4, "big") + bytes((kind,)) + message)

    def close(self) -> None:
        """Hang up. May be called again."""
        if self._transport is not None:
            self._transport.close()

    # --- for the event loop -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        begun = self._begun
        begun += data
        at = 0
        while len(begun) - at >= _HEAD:
            size = int.from_bytes(begun[at : at + 4], "big")
            if size > MAX_MESSAGE or begun[at + 4] not in _KINDS:
                self.close()
                return
            if len(begun) - at < _HEAD + size:
                break
            kind, message = Kind(begun[at + 4]), bytes(begun[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
            self._on_message(kind, message)
        del begun[:at]

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._on_lost()


_KINDS: Final = frozenset(kind.value for kind in Kind)
