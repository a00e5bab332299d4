"""API keys name tenants, and never show."""

from hashlib import sha256

from router.base.ids import TenantId
from router.settings.access import AccessKeys

ACME, BETA = TenantId("acme"), TenantId("beta")
KEYS = AccessKeys(
    [
        (sha256(b"one").digest(), ACME),
        (sha256(b"two").digest(), ACME),
        (sha256(b"three").digest(), BETA),
    ]
)


def test_each_key_names_its_tenant():
    assert [KEYS.tenant_of(key) for key in (b"one", b"two", b"three")] == [ACME, ACME, BETA]
    assert KEYS.tenants == {ACME, BETA}
    assert len(KEYS) == 3


def test_anything_else_names_nobody():
    digest = sha256(b"one").digest()
    for key in (b"", b"One", b"one ", b"on", digest, digest.hex().encode()):
        assert KEYS.tenant_of(key) is None


def test_neither_keys_nor_digests_show():
    assert repr(KEYS) == "AccessKeys(3 keys of 2 tenants)"
    assert str(KEYS) == repr(KEYS)
