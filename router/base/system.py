"""What the operating system says and allows.

Its own words for what went wrong are the same whichever event loop met it. asyncio puts its own text in
front or in the place of them ("Connect call failed ('10.0.0.1', 8000)"), uvloop and aiohttp do it
differently, and none of it tells a person more.
"""

import errno
import os
import socket
import ssl
import sys
from contextlib import suppress
from typing import Final

if sys.platform != "win32":
    import resource

# What this process or its system lacks when a connection cannot be made. None says anything of the other end.
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

_OPEN_FILES: Final = 1 << 20
"""More than one process can use, for where the system names no bound."""


def system_words(error: BaseException) -> str:
    """`Connection refused`, `Address already in use`, …; the error's own text where the system has none."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Its number is OpenSSL's, not the system's. One that OpenSSL did not raise has no reason.
        reason: str | None = getattr(error, "reason", None)
        return f"TLS failed: {reason.lower().replace('_', ' ')}" if reason else "TLS failed"
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error, socket.gaierror):
            return error.strerror or str(error)
        return os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    return str(error)


def naming(place: str, error: OSError) -> OSError:
    """The same error in words that begin with what it is of: an address, or a path."""
    return OSError(error.errno, f"{place}: {system_words(error)}")


def is_own_shortage(error: OSError) -> bool:
    """Whether a connection failed for want of something on this side: files, memory, ports, a resolver that
    answers. A name that does not exist is no such want."""
    if isinstance(error, socket.gaierror):
        return error.errno not in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))
    return error.errno in _SHORTAGES and not isinstance(error, ssl.SSLError)


def open_files() -> int | None:
    """How many files this process may have open at once; `None` where there is no limit, or none is known."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else None


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as the system lets it.

    A turn takes two connections, and many a shell starts programs with a limit of 1,024, which is there for
    programs that call `select`.
    """
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):  # the system has another bound, which it does not tell
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
