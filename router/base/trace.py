"""W3C trace context: what a client's headers say of its trace, and what a replica is told.

Knows no spans and no sampling.
"""

import re
from binascii import hexlify
from random import Random
from typing import Final, NamedTuple

from router.base.values import Value

# Of version 00, exactly this; of a later one, this and whatever follows a further dash.
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")

TRACE_ID_BYTES: Final = 16
TRACE_ID_DIGITS: Final = 2 * TRACE_ID_BYTES
SPAN_ID_BYTES: Final = 8
_IDS_DIGITS: Final = TRACE_ID_DIGITS + 1 + 2 * SPAN_ID_BYTES

# Turns whose ids are drawn at once.
_DRAWN: Final = 64
_DRAWN_BYTES: Final = (_DRAWN + 1) * TRACE_ID_BYTES
_STEP: Final = TRACE_ID_DIGITS + 1
# No half of an id may be 0, which its last bit rules out.
_NOT_ZERO: Final = int.from_bytes((b"\0" * 7 + b"\1") * (_DRAWN_BYTES // 8), "big")

_SAMPLED: Final = 0x01
_RANDOM: Final = 0x02
"""The trace id is random to its last bit: for whoever samples by it."""

# A header line's, by the flags.
_ENDS: Final = (b"-00\r\n", b"-01\r\n", b"-02\r\n", b"-03\r\n")

# Ids within a turn follow each other, so that the attempt that has a replica's id needs no book.
_WAIT: Final = 1
_ATTEMPTS: Final = 2
# Beyond any number of attempts.
_PREFILLS: Final = 1 << 16


class Parent(NamedTuple):
    """The span that a request came from."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether it is recorded."""
        return bool(self.flags & _SAMPLED)


class Trace(Value):
    """A turn's place in a trace."""

    __match_args__ = (
        "trace_id",
        "span_id",
        "parent_id",
        "flags",
        "state",
        "sampled",
        "told",
        "began",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        trace_id: bytes,
        span_id: int,
        parent_id: int,
        flags: int,
        state: str,
        sampled: bool,
        told: bytes,
        began: float,
    ) -> None:
        self.trace_id: Final = trace_id
        self.span_id: Final = span_id
        """The turn's own span; those within it have the ids that follow. At most 2⁶³."""
        self.parent_id: Final = parent_id
        """The client's span; 0 where the trace begins here."""
        self.flags: Final = flags
        self.state: Final = state
        """The client's `tracestate`; "" where there is none."""
        self.sampled: Final = sampled
        """Whether spans are recorded."""
        self.told: Final = told
        """Header lines for a replica: all of them where nothing is recorded, else those but `traceparent`."""
        self.began: Final = began
        """When the request was whole, monotonic seconds."""

    def wait_id(self) -> int:
        """The id of the span of its wait in the router."""
        return self.span_id + _WAIT

    def attempt_id(self, attempt: int) -> int:
        """The id of the span of an attempt, counted from 0."""
        return self.span_id + _ATTEMPTS + attempt

    def prefill_id(self, number: int) -> int:
        """The id of the span of a prompt in a prefill replica's hands, counted from 0 over all attempts."""
        return self.span_id + _PREFILLS + number

    def lines(self, attempt: int) -> bytes:
        """Header lines for the replica that gets an attempt."""
        return self._lines(self.attempt_id(attempt))

    def prefill_lines(self, number: int) -> bytes:
        """Header lines for the replica that computes the prompt for another."""
        return self._lines(self.prefill_id(number))

    def _lines(self, span_id: int) -> bytes:
        if not self.sampled:
            return self.told
        ids = hexlify(self.trace_id + span_id.to_bytes(SPAN_ID_BYTES, "big"), b"-", -TRACE_ID_BYTES)
        return b"traceparent: 00-" + ids + _ENDS[self.flags] + self.told


class FreshIds:
    """Ids for traces that begin here, drawn and written out for many turns at once: every turn needs one."""

    __slots__ = ("_at", "_digits", "_random")

    def __init__(self, rng: Random) -> None:
        self._random = rng.getrandbits
        self._digits = b""
        self._at = 0

    def take(self) -> bytes:
        """The ids of a trace and of a span in it, as a `traceparent` has them: in hex, a dash between."""
        at = self._at
        if at + _IDS_DIGITS > len(self._digits):
            drawn = self._random(8 * _DRAWN_BYTES) | _NOT_ZERO
            self._digits = hexlify(drawn.to_bytes(_DRAWN_BYTES, "big"), b"-", TRACE_ID_BYTES)
            at = 0
        self._at = at + _STEP
        # A span's id is the first half of the next trace's, as random as any within its own trace.
        return self._digits[at : at + _IDS_DIGITS]


def parse_traceparent(value: bytes) -> Parent | None:
    """What a `traceparent` says; `None` where it says nothing that is to be gone by."""
    match = _TRACEPARENT.fullmatch(value.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    parent = Parent(int(trace_id, 16), int(span_id, 16), int(flags, 16) & (_SAMPLED | _RANDOM))
    return parent if parent.trace_id and parent.span_id else None


def unsampled(told: bytes) -> Trace:
    """The place of a turn of which nothing is recorded. Only what its replicas are told says where it is."""
    return Trace(b"", 0, 0, 0, "", False, told, 0.0)


def unsampled_line(ids: bytes) -> bytes:
    """The header line that keeps a replica from recording what is not recorded here. `ids` as `FreshIds` has
    them."""
    return b"traceparent: 00-" + ids + b"-00\r\n"


def sampled_flags(parent: Parent | None) -> int:
    """The flags of a trace that is recorded. A client's trace id keeps its mark of being random."""
    return _SAMPLED | (parent.flags & _RANDOM if parent is not None else 0)
