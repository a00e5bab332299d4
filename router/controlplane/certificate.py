"""Watches the data port's certificate: a pair of files that was replaced serves the handshakes that follow.

Connections that stand keep what they have. A pair that cannot be used changes nothing and is said once.
"""

import asyncio
import logging

from router.base.tasks import TaskOwner
from router.settings.tls import ServerTls, Stamps, TlsError, server_context

_log = logging.getLogger(__name__)


class CertificateWatch:
    """Looks at the files of `tls` every `every_s` seconds once it is started."""

    def __init__(self, tls: ServerTls, *, every_s: float = 2.0) -> None:
        self._tls = tls
        self._every_s = every_s
        self._judged = tls.stamps
        """Of the files that were loaded or refused last."""
        self._seen = tls.stamps
        self._tasks = TaskOwner()

    def start(self) -> None:
        """Needs a running event loop."""
        self._tasks.spawn(self._watch(), name="watch the certificate")

    async def close(self) -> None:
        await self._tasks.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            # A file system that hangs must not hang the loop.
            self.saw(await asyncio.to_thread(self._tls.files.stamps))

    def saw(self, stamps: Stamps) -> None:
        """Take in one look at the files. They are loaded when two looks in a row find the same new ones:
        whoever replaces two files does so one after the other."""
        settled = stamps == self._seen
        self._seen = stamps
        if not settled or stamps == self._judged:
            return
        self._judged = stamps
        files = self._tls.files
        try:
            # Tried on another context first: one that has failed to load a pair has half of it.
            files.load_into(server_context())
            files.load_into(self._tls.context)
        except TlsError as error:
            _log.error("the new certificate is not used, the old one stays: %s", error)
        else:
            _log.info("the certificate '%s' was replaced and is loaded", files.cert)
