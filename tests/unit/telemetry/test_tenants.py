from router.telemetry.tenants import tenant_names


def test_a_name_is_hashed_alike_by_all_who_have_the_secret():
    one, same, other = tenant_names(b"s"), tenant_names(b"s"), tenant_names(b"another")
    name = one("acme")
    assert name == same("acme") == one("acme")
    assert len(name) == 16
    assert int(name, 16)
    assert "acme" not in name
    assert name not in (one("beta"), other("acme"))
