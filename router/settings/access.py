"""API keys: who a key belongs to. Keeps digests only; knows nothing of where keys come from.

See `credentials.py` for files and environment variables.
"""

from collections.abc import Iterable
from hashlib import sha256

from router.base.ids import TenantId


class AccessKeys:
    """Digests of API keys, each naming a tenant. Never shows either a key or a digest.

    Looked up in a dict by SHA-256 digest, not compared one by one: what the time of that can tell is about
    the digest of a guess, under a hash seeded anew in every process, which brings nobody nearer to a key;
    and it takes the same time for one key and for ten thousand.
    """

    __slots__ = ("_tenants",)

    def __init__(self, tenants: Iterable[tuple[bytes, TenantId]]) -> None:
        """`tenants` pairs each key's SHA-256 digest with its tenant."""
        self._tenants = dict(tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    def tenant_of(self, key: bytes) -> TenantId | None:
        """Whose key it is; `None` where it is nobody's."""
        return self._tenants.get(sha256(key).digest())

    @property
    def tenants(self) -> frozenset[TenantId]:
        return frozenset(self._tenants.values())

    def __eq__(self, other: object) -> bool:
        """Whether the same keys name the same tenants."""
        return isinstance(other, AccessKeys) and self._tenants == other._tenants

    __hash__ = None  # type: ignore[assignment] # a set of them would hash ten thousand digests

    def __repr__(self) -> str:
        return f"AccessKeys({len(self)} keys of {len(self.tenants)} tenants)"
