"""Tells a client that left from one that only closed its sending side.

Both look the same on arrival: the end of the input. They differ in how the client's kernel answers the
next byte that it is sent: one that left resets the connection. So a byte is sent that changes nothing, and
then the state of the connection is read. Before a response has begun that byte is an interim `100
Continue`, which a client must skip; inside a chunked response it is a leading zero of the next chunk's size.
"""

import socket
from typing import Final, Protocol

INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LEADING_ZERO: Final = b"0"

CHECK_AFTER_S: Final = (0.002, 0.02, 0.06)
"""When to look after a probe. A local client's reset is back in microseconds, a distant one's within a
round trip; the periodic sweep looks again after that."""

_TCP_CLOSE: Final = 7


class SocketInfo(Protocol):
    """The part of a socket that a transport hands out."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def has_left(sock: SocketInfo | None) -> bool:
    """Whether the peer has reset the connection. False where the platform cannot tell (only Linux can):
    there, the next write that fails tells."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None or sock is None:
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, option, 1)[0] == _TCP_CLOSE
    except (OSError, ValueError):
        # It is closed on our side too; uvloop says that with a ValueError.
        return True
