"""Certificates for 127.0.0.1, made for the test that asks, and contexts that trust them."""

import ssl
from pathlib import Path

import trustme

from router.settings.tls import PairFiles, ServerTls, client_context, server_tls


class Authority:
    """A certificate authority with its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def issue(self, *, rsa: bool = False) -> trustme.LeafCert:
        kind = trustme.KeyType.RSA if rsa else trustme.KeyType.ECDSA
        return self._ca.issue_cert("127.0.0.1", key_type=kind)

    def files(self, name: str = "server") -> PairFiles:
        """A new pair, in files of this name: what was there is replaced."""
        files = PairFiles(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        put(self.issue(), files)
        return files

    def server(self) -> ServerTls:
        return server_tls(self.files())

    def client(self) -> ssl.SSLContext:
        return client_context(self.path, verify=True)


def put(leaf: trustme.LeafCert, files: PairFiles) -> None:
    """Write a certificate and its key, as other files in the place of those that are there."""
    for path, content in (
        (files.cert, b"".join(blob.bytes() for blob in leaf.cert_chain_pems)),
        (files.key, leaf.private_key_pem.bytes()),
    ):
        beside = path.with_suffix(".new")
        beside.write_bytes(content)
        beside.replace(path)
