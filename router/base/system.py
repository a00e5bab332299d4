"""The operating system's own words for what went wrong, whichever event loop met it.

asyncio puts its own text in front or in the place of them ("Connect call failed ('10.0.0.1', 8000)"),
uvloop and aiohttp do it differently, and none of it tells a person more.
"""

import os
import socket


def system_words(error: BaseException) -> str:
    """`Connection refused`, `Address already in use`, …; the error's own text where the system has none."""
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error, socket.gaierror):
            return error.strerror or str(error)
        return os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    return str(error)
