"""Loads the data port's certificate anew: a replaced pair of files serves the handshakes that follow.

Connections that stand keep what they have. A pair that cannot be used changes nothing and is said once.
"""

import logging

from router.controlplane.watch import FileWatch
from router.settings.tls import ServerTls, TlsError, server_context

_log = logging.getLogger(__name__)


def certificate_watch(tls: ServerTls, *, every_s: float = 2.0) -> FileWatch:
    """A watch over the files of `tls` that loads them into its context."""

    async def load() -> None:
        _load(tls)

    return FileWatch("the certificate", tls.files.stamps, load, known=tls.stamps, every_s=every_s)


def _load(tls: ServerTls) -> None:
    try:
        # Tried on another context first: one that has failed to load a pair has half of it.
        tls.files.load_into(server_context())
        tls.files.load_into(tls.context)
    except TlsError as error:
        _log.error("the new certificate is not used, the old one stays: %s", error)
    else:
        _log.info("the certificate '%s' was replaced and is loaded", tls.files.cert)
