"""From an address that was found to a replica: what all of one source have in common, and their names.

The same address gives the same name in every router, since the ring goes by names.
"""

import re
import ssl
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from router.base.ids import ReplicaId
from router.controlplane.roster import Listed
from router.core.fleet import ReplicaSpec, Role
from router.settings.fields import Address, parse_replica_url

_MOST_CHARS: Final = 64
_DIGEST_CHARS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What is the same for all replicas of a source. Its key never shows."""

    scheme: str = "http"
    api_key: str | None = None
    """`None` = they want none."""
    tls: ssl.SSLContext | None = None
    """`None` = plain HTTP."""
    kv_tokens: int | None = None
    """KV capacity of each; `None` = what `/metrics` says."""
    role: Role = Role.BOTH
    two_way: bool = False

    def __repr__(self) -> str:
        return f"Template({self.scheme})"

    def at(self, host: str, port: int, name: str | None = None) -> Listed:
        """The replica at an address, called by it unless it has a name. Raises `ValueError` where none can be
        reached there."""
        url = parse_replica_url(f"{self.scheme}://{Address(host, port)}")
        called = replica_name(name if name is not None else f"{host}-{port}")
        spec = ReplicaSpec(called, url, self.kv_tokens, role=self.role, two_way=self.two_way)
        return Listed(spec, self.api_key, self.tls)


def replica_name(text: str) -> ReplicaId:
    """A name as a config could write it: other characters become `-`, a long one ends in a digest."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", text)
    if not name[:1].isalnum():
        name = f"r{name}"
    if len(name) > _MOST_CHARS:
        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        name = f"{name[: _MOST_CHARS - _DIGEST_CHARS - 1]}-{digest}"
    return ReplicaId(name)
