"""TLS contexts from certificate files: for the listener, and for connections to replicas.

Only HTTP/1.1 is offered in ALPN and nothing older than TLS 1.2 is spoken. Knows nothing of which key of a
config names which file; every failure is a `TlsError` that says what is wrong with the files.
"""

import ssl
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from router.base.stamps import Stamps, stamps_of

_ALPN: Final = ("http/1.1",)

_CERTIFICATE: Final = b"CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"

# A key of another kind than the certificate's finds no certificate to go with.
_MISMATCHES: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})


class TlsError(Exception):
    """Files that cannot be used; the message completes `tls.cert: `."""


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Where a certificate (with its chain) and its private key are, in PEM."""

    cert: Path
    key: Path

    def stamps(self) -> Stamps:
        """Equal as long as neither file has been replaced."""
        return stamps_of((self.cert, self.key))

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give `context` the pair. Raises `TlsError`; `context` is then without use."""
        cert, key = _read(self.cert), _read(self.key)
        try:
            # Without a function OpenSSL would ask for a passphrase at the terminal, and wait.
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise TlsError(self._why(error, cert, key)) from error

    def _why(self, error: OSError | ValueError, cert: bytes, key: bytes) -> str:
        reason = error.reason if isinstance(error, ssl.SSLError) else None
        if isinstance(error, _PassphraseError):
            return f"the key '{self.key}' is locked with a passphrase; give one without"
        if reason in _MISMATCHES:
            return f"the key '{self.key}' is not the key of the certificate '{self.cert}'"
        if _CERTIFICATE not in cert:
            return f"'{self.cert}' holds no PEM certificate"
        if _KEY not in key:
            return f"'{self.key}' holds no PEM private key"
        # OpenSSL does not say which of the two it stumbled over.
        return f"'{self.cert}' or '{self.key}' is damaged"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What the listener speaks TLS with. A pair loaded into `context` serves the handshakes that follow."""

    context: ssl.SSLContext
    files: PairFiles
    stamps: Stamps
    """Of the files that `context` has."""


def server_tls(files: PairFiles) -> ServerTls:
    """The listener's TLS. Raises `TlsError`."""
    # Before they are read: files that change meanwhile must look changed afterwards.
    stamps = files.stamps()
    context = server_context()
    files.load_into(context)
    return ServerTls(context, files, stamps)


def server_context() -> ssl.SSLContext:
    """A context without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client must not make the router compute handshake after handshake on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_ALPN)
    return context


def client_context(ca: Path | None, *, verify: bool) -> ssl.SSLContext:
    """What a replica is spoken to with: `ca` holds who may vouch for it, `None` = whom the system trusts.

    Without `verify` any certificate will do. Raises `TlsError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _read(ca)
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            raise TlsError(f"'{ca}' holds no PEM certificate that can be used") from error
    return context


def shared_context(ca: Path | None, *, verify: bool) -> ssl.SSLContext:
    """A `client_context`, the same one as long as the file says the same. Raises `TlsError`.

    A context may hold all certificates of the system, which need not be held once a replica; and one that is
    another stands for a change.
    """
    return _shared_context(ca, b"" if ca is None else sha256(_read(ca)).digest(), verify)


@lru_cache(maxsize=64)
def _shared_context(ca: Path | None, _digest: bytes, verify: bool) -> ssl.SSLContext:
    return client_context(ca, verify=verify)


class _PassphraseError(ValueError):
    """A key wants a passphrase."""


def _no_passphrase() -> str:
    raise _PassphraseError


def _read(path: Path) -> bytes:
    """Raises `TlsError` in the system's words, which OpenSSL does not pass on."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"cannot read '{path}': {error.strerror}") from error
