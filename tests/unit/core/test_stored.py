"""Stored responses: kept by tenant, bounded, oldest first out."""

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.stored import Stored, StoredResponses

KEPT = Stored(ReplicaId("a"), 0, SessionKey("s"), "m", 7)


def test_a_response_is_its_tenants_own() -> None:
    table = StoredResponses()
    table.keep(TenantId("acme"), "resp_1", KEPT)
    assert table.find(TenantId("acme"), "resp_1") == KEPT
    assert table.find(TenantId("beta"), "resp_1") is None
    assert table.find(OPEN_TENANT, "resp_1") is None


def test_the_one_not_told_of_for_longest_goes_first() -> None:
    table = StoredResponses(most=2)
    for response in ("one", "two", "one", "three"):
        table.keep(OPEN_TENANT, response, KEPT)
    assert len(table) == 2
    assert table.find(OPEN_TENANT, "two") is None
    assert table.find(OPEN_TENANT, "one") == KEPT


def test_forgetting_takes_it_out_known_or_not() -> None:
    table = StoredResponses()
    table.keep(OPEN_TENANT, "one", KEPT)
    table.forget(OPEN_TENANT, "one")
    table.forget(OPEN_TENANT, "one")
    assert len(table) == 0


def test_an_id_that_one_tenant_has_is_not_given_to_another() -> None:
    table = StoredResponses()
    acme, beta = TenantId("acme"), TenantId("beta")
    table.keep(acme, "resp_1", KEPT)
    table.keep(beta, "resp_1", KEPT._replace(replica=ReplicaId("b")))
    assert table.find(beta, "resp_1") is None
    table.forget(beta, "resp_1")
    assert table.find(acme, "resp_1") == KEPT
    assert len(table) == 1
