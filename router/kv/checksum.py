"""xxh3 over a block's bytes, whole or as they come. Not imported by what runs inside an engine: an engine's
environment has no xxhash."""

from typing import Protocol

from xxhash import xxh3_64, xxh3_64_intdigest


class Running(Protocol):
    """A checksum of bytes that come piece by piece."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...

    def intdigest(self) -> int: ...


def checksum(data: bytes | bytearray | memoryview) -> int:
    """64 bits of `data`."""
    return xxh3_64_intdigest(data)


def running() -> Running:
    """A checksum of nothing yet; equal to `checksum` of all pieces together."""
    return xxh3_64()
