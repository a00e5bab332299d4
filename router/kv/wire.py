"""Frames: a fixed head, msgpack metadata, raw payload. Sans I/O; knows nothing of what a message means.

    offset  bytes
         0      4  magic `HMKV`
         4      1  version
         5      1  type
         6      2  flags: bit 0 = the checksum is left out (only on a machine's own sockets)
         8      8  ident: pairs an answer with its question
        16      4  length of the metadata
        20      4  length of the payload
        24      8  xxh3 over the head's first 24 bytes and the metadata

Little-endian. The first six bytes stay as they are in every version, so that two that differ can say so.
The payload's own checksum stands in the metadata: it belongs to the block, from writer to reader. A head is
believed only within the reader's limits, and nothing is allocated before it was held against them.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 1
MAGIC: Final = b"HMKV"
HEAD_BYTES: Final = 32

_HEAD: Final = struct.Struct("<4sBBHQIIQ")
_SUMMED: Final = 24
_UNSUMMED: Final = 1

Checksum = Callable[[bytes | bytearray | memoryview], int]


class Type(IntEnum):
    """What a frame's metadata is. The shapes are in `messages`."""

    REFUSED = 0  # stays 0 in every version: it is what the other version is told with
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    PING = 5
    PONG = 6
    SPACES = 7

    QUERY = 16
    FOUND = 17
    FETCH = 18
    BLOCK = 19
    END = 20
    CANCEL = 21
    PUT = 22
    KEPT = 23
    SESSION = 24
    CHAIN = 25
    PREFETCH = 26
    RELEASE = 27
    DONE = 28
    HOLDINGS = 29
    CHANGES = 30
    OFFER = 31
    WANTED = 32
    SUSPECT = 33

    ATTACH = 64
    ATTACHED = 65
    ASK = 66
    ANSWER = 67
    FORGET = 68
    LOAD = 69
    LANDED = 70
    ENDED = 71
    ABORT = 72
    COPIED = 73
    RESERVE = 74
    SLOTS = 75
    STORE = 76
    WRITTEN = 77
    DROP = 78
    FINISHED = 79
    GONE = 80
    STATS = 81


class WireFault(Exception):
    """Bytes that are no frame of ours. The connection is of no use after it."""


class VersionFault(WireFault):
    """The other side speaks another version."""

    def __init__(self, theirs: int) -> None:
        super().__init__(f"the other side speaks version {theirs}, this one {VERSION}")
        self.theirs = theirs


class Limits(NamedTuple):
    """What a reader takes, in bytes."""

    meta: int
    payload: int


class Head(NamedTuple):
    """A frame's head, within its reader's limits."""

    type: Type
    flags: int
    ident: int
    meta_bytes: int
    payload_bytes: int
    checksum: int


class Frame(NamedTuple):
    """A frame without payload, complete and checked."""

    type: Type
    ident: int
    meta: bytes


def encode(
    kind: Type, ident: int, meta: bytes, *, payload_bytes: int = 0, checksum: Checksum | None
) -> bytes:
    """Head and metadata; the payload follows by itself, uncopied. Without `checksum` the flag says so."""
    flags = _UNSUMMED if checksum is None else 0
    head = _HEAD.pack(MAGIC, VERSION, kind, flags, ident, len(meta), payload_bytes, 0)[:_SUMMED]
    total = 0 if checksum is None else checksum(head + meta)
    return head + total.to_bytes(8, "little") + meta


def decode_head(data: bytes | bytearray, limits: Limits, *, summed: bool) -> Head:
    """The head in the first `HEAD_BYTES` of `data`. Raises `WireFault`.

    `summed`: whether this reader insists on a checksum.
    """
    magic, version, kind, flags, ident, meta, payload, checksum = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise WireFault("not this protocol")
    if version != VERSION:
        raise VersionFault(version)
    if flags & ~_UNSUMMED:
        raise WireFault(f"unknown flags {flags:#x}")
    if flags & _UNSUMMED and (summed or checksum):
        raise WireFault("a checksum is wanted")
    if meta > limits.meta:
        raise WireFault(f"metadata of {meta} bytes, {limits.meta} at most")
    if payload > limits.payload:
        raise WireFault(f"a payload of {payload} bytes, {limits.payload} at most")
    try:
        return Head(Type(kind), flags, ident, meta, payload, checksum)
    except ValueError:
        raise WireFault(f"unknown type {kind}") from None


def verify(head: Head, raw_head: bytes, meta: bytes, checksum: Checksum | None) -> None:
    """Hold the metadata against the head's checksum. Raises `WireFault`."""
    if head.flags & _UNSUMMED or checksum is None:
        return
    if checksum(raw_head[:_SUMMED] + meta) != head.checksum:
        raise WireFault("a damaged head or metadata")


class Decoder:
    """Frames without payload out of a stream of bytes, cut anywhere.

    Keeps at most one frame that is not complete. After a `WireFault` it is of no use.
    """

    __slots__ = ("_checksum", "_held", "_limits")

    def __init__(self, max_meta: int, checksum: Checksum | None) -> None:
        self._limits = Limits(max_meta, 0)
        self._checksum = checksum
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises `WireFault`."""
        held = self._held
        held += data
        frames: list[Frame] = []
        at = 0
        while len(held) - at >= HEAD_BYTES:
            raw = bytes(held[at : at + HEAD_BYTES])
            head = decode_head(raw, self._limits, summed=self._checksum is not None)
            end = at + HEAD_BYTES + head.meta_bytes
            if len(held) < end:
                break
            meta = bytes(held[at + HEAD_BYTES : end])
            verify(head, raw, meta, self._checksum)
            frames.append(Frame(head.type, head.ident, meta))
            at = end
        del held[:at]
        return frames
