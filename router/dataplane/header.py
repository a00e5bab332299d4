"""Headers of a request: what each is to the router."""

from typing import Final

# What a header is to the router. Plain numbers: one is compared for every header.
FORWARD: Final = 0
"""It goes on as it is."""
DROP: Final = 1
HOST: Final = 2
LENGTH: Final = 3
TYPE: Final = 4
AUTHORIZATION: Final = 5
KEY: Final = 6
REQUEST_ID: Final = 7
ENCODING: Final = 8
EXPECT: Final = 9
UPGRADE: Final = 10
CONNECTION: Final = 11
SESSION: Final = 12
TENANT: Final = 13
PRIORITY: Final = 14
PATIENCE: Final = 15
IGNORED: Final = 16
"""Looks like a header that names a session, and is none of any policy's."""
TRACEPARENT: Final = 17
TRACESTATE: Final = 18


class Line:
    """A header line whose meaning does not depend on any other."""

    __slots__ = ("forward", "kind", "name", "value")

    def __init__(self, kind: int, name: bytes, value: bytes, forward: bytes) -> None:
        self.kind = kind
        self.name = name
        """Of a session header: how the policies write it."""
        self.value = value
        self.forward = forward
        """The line to send on; empty where it does not go on."""
