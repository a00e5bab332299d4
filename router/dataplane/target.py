"""What a request asks for: its target, in origin form and of one meaning only."""

from typing import Final
from urllib.parse import unquote_to_bytes

from router.base.errors import ErrorKind, Refused
from router.dataplane.problems import HttpRefused

MAX_TARGET: Final = 8192
"""Bytes of a request target: what RFC 9110 asks everybody to support at least, and most servers allow."""

_MODEL: Final = b"/v1/models/"


def plain_target(url: bytes) -> tuple[bytes, str]:
    """Origin-form target and decoded path. Raises `Refused` for what has no one meaning."""
    if len(url) > MAX_TARGET:
        raise target_too_long()
    if not url.startswith(b"/"):
        url = _origin_form(url)
    raw = url.partition(b"?")[0]
    if raw.startswith(_MODEL):
        # Answered here, never sent on: a model's name may hold a slash, which clients escape.
        raw = unquote_to_bytes(raw)
    if b"#" in url or b"\\" in raw or b"%" in raw or b"//" in raw or b"/." in raw:
        # No endpoint of vLLM needs any of these, and a router and a server that read them differently
        # would disagree on which endpoint is meant. An id with a dot inside is fine.
        raise Refused(
            ErrorKind.BAD_REQUEST,
            "the path must be plain: no escapes, backslashes, empty or dot segments, and no fragment",
        )
    try:
        return url, raw.decode("ascii")
    except UnicodeDecodeError:
        raise Refused(ErrorKind.BAD_REQUEST, "the path must be ASCII") from None


def _origin_form(url: bytes) -> bytes:
    """Path and query of an absolute URL. Raises `Refused` for other schemes and for none."""
    scheme, found, rest = url.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        raise Refused(ErrorKind.BAD_REQUEST, "the request target must be a path or an http(s) URL")
    end = min(at for at in (rest.find(b"/"), rest.find(b"?"), len(rest)) if at >= 0)
    if end == 0 or b"@" in rest[:end]:
        raise Refused(ErrorKind.BAD_REQUEST, "the request target must name a host, and no user")
    return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]


def target_too_long() -> HttpRefused:
    """The refusal of a request whose target is over the limit."""
    return HttpRefused(414, f"the request target is over {MAX_TARGET} bytes", code="target_too_long")
