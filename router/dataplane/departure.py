"""Tells a client that left from one that only closed its sending side.

Both look the same on arrival: the end of the input. They differ in how the client's kernel answers the
next byte that it is sent: one that left resets the connection. So a byte is sent that changes nothing, and
then the state of the connection is read. Before a response has begun that byte is an interim `100
Continue`, which a client must skip; inside a chunked response it is a leading zero of the next chunk's size.
"""

import socket
import struct
import sys
from typing import Final, Protocol

if sys.platform != "win32":
    import fcntl
    import termios

INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LEADING_ZERO: Final = b"0"

CHECK_AFTER_S: Final = (0.002, 0.02, 0.06)
"""When to look after a probe. A local client's reset is back in microseconds, a distant one's within a
round trip; the periodic sweep looks again after that."""

WATCH_S: Final = 0.05
"""How often to look at a client that is not read: only the kernel knows whether it is still there."""

_TCP_CLOSE: Final = 7
_TCP_CLOSE_WAIT: Final = 8


class SocketInfo(Protocol):
    """The part of a socket that a transport hands out."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...


def has_left(sock: SocketInfo | None) -> bool:
    """Whether the peer has reset the connection. False where the platform cannot tell (only Linux can):
    there, the next write that fails tells."""
    return _state(sock) == _TCP_CLOSE


def has_ended(sock: SocketInfo | None) -> bool:
    """Whether the end of the peer's input has arrived, read or not. False where the platform cannot tell."""
    return _state(sock) == _TCP_CLOSE_WAIT


def unacknowledged(sock: SocketInfo | None) -> int:
    """Bytes that were given to the kernel and that the peer's has not acknowledged; 0 where the platform
    cannot tell."""
    if sys.platform != "linux" or sock is None:
        return 0
    try:
        waiting: bytes = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0
    count: int = struct.unpack("i", waiting)[0]
    return count


def _state(sock: SocketInfo | None) -> int | None:
    """The kernel's word for the connection; `None` where the platform has none."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None or sock is None:
        return None
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, option, 1)[0]
    except (OSError, ValueError):
        # It is closed on our side too; uvloop says that with a ValueError.
        return _TCP_CLOSE
