"""Who may use the admin port. Decides from a request's head alone; knows no server.

Three doors, because each keeps out someone else:

- `Host`: a web page whose name was pointed at this machine after it loaded (DNS rebinding) still sends its
  own name. Whoever has the token is none, and may come by any name.
- `Origin`: a web page elsewhere that sends a request here is named by the browser.
- Token: other users of the machine, and everybody else where the listener is not loopback.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

# They tell up or down, and whoever asks them (a load balancer, a kubelet) has no token.
_OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})


class Caller(NamedTuple):
    """The part of a request that says who asks. `None` = the header is absent."""

    method: str
    path: str
    host: str | None
    origin: str | None
    authorization: str | None
    token: str | None
    """The `X-Homing-Token` header."""
    local_address: str | None
    """The address of ours that the connection reached; `None` if unknown."""


class Rejection(NamedTuple):
    """Why a request is not answered, and with what status."""

    status: int
    code: str
    message: str


def is_loopback(host: str) -> bool:
    """Whether a listener on `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """The rules of one listener.

    `token` guards every write and, unless `host` is loopback, every request but `/livez` and `/readyz`.
    `allowed_hosts` are further names that people reach the listener by, without ports. `read_only` are
    paths whose POST changes nothing. `pages` tell nothing of the router, and are read without the token: a
    browser that opens one has no way to send it.
    """

    def __init__(
        self,
        host: str,
        *,
        token: str,
        allowed_hosts: Iterable[str] = (),
        read_only: Iterable[str] = (),
        pages: Iterable[str] = (),
    ) -> None:
        names = (host, *_LOOPBACK_NAMES, *allowed_hosts)
        self._names = frozenset(_bare(name) for name in names)
        self._token = token.encode()
        self._open_to_local_reads = is_loopback(host)
        self._read_only = frozenset(read_only)
        self._pages = frozenset(pages)

    def check(self, caller: Caller) -> Rejection | None:
        """`None` lets the caller in."""
        gets = caller.method in ("GET", "HEAD")
        is_open = gets and caller.path in _OPEN_PATHS
        # Whether it is up is no secret, and whoever asks that knows it by many names.
        if not is_open and (rejection := self._check_host(caller)) is not None:
            return rejection
        if caller.origin is not None and not _same_origin(caller.origin, caller.host):
            return Rejection(
                403,
                "foreign_origin",
                "requests from web pages of another origin are refused; call the API from its own page or "
                "from a program",
            )
        if is_open or (gets and caller.path in self._pages):
            return None
        reads = gets or caller.path in self._read_only
        if (reads and self._open_to_local_reads) or self._has_token(caller):
            return None
        what = "this listener is not loopback, so every request" if reads else "every write"
        return Rejection(
            401,
            "token_required",
            f"{what} needs the admin token: send it as `Authorization: Bearer TOKEN` or `X-Homing-Token`",
        )

    def _check_host(self, caller: Caller) -> Rejection | None:
        named = _split_host(caller.host) if caller.host is not None else None
        if named is not None and (named[0] in self._names or named[0] == caller.local_address):
            return None
        return Rejection(
            403,
            "foreign_host",
            f"the Host header {caller.host or ''!r} names neither this listener nor this machine; call it by "
            "the address it listens on, or list the name in admin.hosts",
        )

    def _has_token(self, caller: Caller) -> bool:
        given = []
        if caller.token is not None:
            given.append(caller.token)
        if caller.authorization is not None:
            scheme, _, value = caller.authorization.partition(" ")
            if scheme.lower() == "bearer":
                given.append(value.strip())
        # Header text is bytes that may be no UTF-8; `compare_digest` takes non-ASCII as bytes only.
        return any(
            hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._token) for text in given
        )


def _bare(host: str) -> str:
    return host.strip("[]").lower()


def _split_host(header: str) -> tuple[str, int | None] | None:
    """A `Host` header as (name, port or `None`); `None` if it is malformed."""
    try:
        parts = urlsplit(f"//{header}")
        port = parts.port
    except ValueError:
        return None
    if parts.netloc != header or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname, port


def _same_origin(origin: str, host: str | None) -> bool:
    """Whether a page of `origin` was served under `host`.

    The scheme is not compared: behind a proxy that ends TLS the page is https and the request http.
    """
    scheme, _, rest = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    page = _split_host(rest)
    server = _split_host(host) if host is not None else None
    if default is None or page is None or server is None:
        return False
    return (page[0], page[1] or default) == (server[0], server[1] or default)
