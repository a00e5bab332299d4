"""What the operating system says and allows.

Its own words for what went wrong are the same whichever event loop met it. asyncio puts its own text in
front or in the place of them ("Connect call failed ('10.0.0.1', 8000)"), uvloop and aiohttp do it
differently, and none of it tells a person more.
"""

import os
import socket
import ssl
import sys
from contextlib import suppress
from typing import Final

if sys.platform != "win32":
    import resource

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
