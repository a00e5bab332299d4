"""Mooncake's format: one request a line, with a time and the ids of its blocks, and no sessions.

Ids stand for the same tokens throughout the file. A request whose blocks go on from an earlier one's is
taken to be the next turn of that one's session, since a session's prompt is what grows so.
"""

from collections.abc import Iterable
from struct import Struct as Packing
from typing import Final

import msgspec

from router.core.hashing import hash64
from router.simulator.replay.trace import TraceSession, TraceTurn

BLOCK_TOKENS: Final = 512

# The format has no answer's end, only the next request's time. Taking what the answer may have lasted off
# the gap between two requests leaves what the client thought.
_ANSWER_TPS: Final = 50.0

_ID: Final = Packing("<Q")


class Request(msgspec.Struct, frozen=True):
    """A line of the file."""

    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    """One for each block of the prompt, the last of them mostly partial."""


_DECODER: Final = msgspec.json.Decoder(Request)


def decode(line: bytes) -> Request:
    """Read one line. Raises `ValueError` or msgspec's error where it is no request."""
    request = _DECODER.decode(line)
    full, blocks = request.input_length // BLOCK_TOKENS, len(request.hash_ids)
    if request.input_length < 1:
        raise ValueError(f"input_length: must be at least 1, not {request.input_length}")
    if not request.timestamp >= 0 or request.output_length < 0:
        raise ValueError("timestamp and output_length must not be negative")
    if not full <= blocks <= full + 1:
        raise ValueError(
            f"hash_ids: {blocks} ids of {BLOCK_TOKENS} tokens do not make an input of {request.input_length}"
        )
    if any(not 0 <= block < 1 << 64 for block in request.hash_ids):
        raise ValueError("hash_ids: an id is below 0 or above 2^64")
    return request


class _Growing:
    """A session as far as it was seen."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.turns: list[TraceTurn] = []
        self.blocks = 0
        self.last = began


def sessions(requests: Iterable[Request]) -> tuple[TraceSession, ...]:
    """The sessions that the requests make, in order of their beginning.

    A request continues the session whose latest prompt is the longest that it strictly begins with, full
    blocks compared. A session is continued once from each of its turns: a second request that goes on from
    the same prompt begins a session of its own.
    """
    ordered = sorted(requests, key=lambda request: request.timestamp)
    begun: list[_Growing] = []
    ends: dict[int, _Growing] = {}
    """Sessions by the hash of their latest prompt's last full block."""
    for request in ordered:
        hashes = _chain(request.hash_ids[: request.input_length // BLOCK_TOKENS])
        session = next((ends.pop(block) for block in reversed(hashes[:-1]) if block in ends), None)
        if session is None:
            session = _Growing(request.timestamp)
            begun.append(session)
        gap_s = (request.timestamp - session.last) / 1000
        answer_s = session.turns[-1].output_tokens / _ANSWER_TPS if session.turns else 0.0
        session.turns.append(
            TraceTurn(
                at_s=(request.timestamp - session.began) / 1000,
                prompt_tokens=request.input_length,
                output_tokens=request.output_length,
                think_s=max(0.0, gap_s - answer_s),
                kept=session.blocks,
                fresh=tuple(hashes[session.blocks :]),
            )
        )
        session.blocks, session.last = len(hashes), request.timestamp
        if hashes:
            ends[hashes[-1]] = session
    start = ordered[0].timestamp if ordered else 0.0
    return tuple(
        TraceSession(f"s{number}", (session.began - start) / 1000, tuple(session.turns), lead_blocks=0)
        for number, session in enumerate(begun)
    )


def _chain(ids: Iterable[int]) -> list[int]:
    parent = 0
    hashes = []
    for block in ids:
        parent = hash64(_ID.pack(block), parent)
        hashes.append(parent)
    return hashes
