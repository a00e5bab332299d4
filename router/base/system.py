"""The operating system's own words for what went wrong, whichever event loop met it.

asyncio puts its own text in front or in the place of them ("Connect call failed ('10.0.0.1', 8000)"),
uvloop and aiohttp do it differently, and none of it tells a person more.
"""

import os
import socket
import ssl


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
