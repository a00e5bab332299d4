"""A config's values: never changed after loading, and never at odds with each other."""

import pytest
from pydantic import ValidationError

from router.settings.config import RouterConfig


def config(**keys: object) -> RouterConfig:
    return RouterConfig.model_validate({"version": 1, **keys}, strict=False)


def test_a_config_cannot_be_changed():
    loaded = config()
    with pytest.raises(ValidationError):
        loaded.version = 1
    with pytest.raises(ValidationError):
        loaded.limits.body = 1


def test_the_defaults_are_those_of_the_design():
    limits = config().limits
    assert (limits.body, limits.held_bytes, limits.head) == (64 << 20, 2 << 30, 64 << 10)
    assert (limits.first_byte, limits.idle, limits.total) == (600.0, 75.0, None)
    assert (str(config().listen), str(config().admin.listen)) == ("127.0.0.1:8080", "127.0.0.1:9090")


def test_replicas_may_be_found_in_three_ways_and_beside_each_other():
    assert not config(discovery={}).discovery
    assert config(discovery={"file": "replicas.yaml"}).discovery
    both = config(
        discovery={
            "dns": {"name": "vllm.internal", "port": 8000},
            "kubernetes": {"service": "vllm", "kv_tokens": 5},
        }
    ).discovery
    assert both
    assert (both.dns.type, both.dns.every, both.dns.scheme, both.dns.server) == ("A", 10.0, "http", None)
    assert (both.kubernetes.port, both.kubernetes.namespace, both.kubernetes.kv_tokens) == (None, None, 5)


@pytest.mark.parametrize(
    ("discovery", "said"),
    [
        ({"dns": {"name": "x"}}, "A records name no port"),
        ({"dns": {"name": "x", "type": "SRV", "port": 1}}, "SRV records name the port"),
        ({"dns": {"name": "x", "port": 1, "every": "100ms"}}, "too often"),
        ({"dns": {"name": "x", "port": 1, "server": "dns.internal:53"}}, "is a name"),
        ({"dns": {"name": "x", "port": 1, "ca": "ca.pem"}}, "ca and verify are for https"),
        ({"dns": {"name": "x", "port": 1, "scheme": "https", "ca": "c", "verify": False}}, "keep one"),
        ({"kubernetes": {}}, "give either service or pods"),
        ({"kubernetes": {"service": "a", "pods": "app=a", "port": 1}}, "give either service or pods"),
        ({"kubernetes": {"pods": "app=a"}}, "give 'port'"),
        ({"kubernetes": {"service": "Not_A_Service"}}, "should match pattern"),
    ],
)
def test_what_cannot_find_replicas_is_refused(discovery, said):
    with pytest.raises(ValidationError, match=said):
        config(discovery=discovery)


def test_a_body_must_fit_into_what_is_held():
    assert config(limits={"body": "1GiB", "held_bytes": "1GiB"}).limits.body == 1 << 30
    with pytest.raises(ValidationError, match="could never be held"):
        config(limits={"body": "3GiB"})


def test_a_replica_has_one_key_at_most():
    with pytest.raises(ValidationError, match="keep one"):
        config(replicas=[{"name": "a", "url": "http://a", "api_key_file": "f", "api_key_env": "E"}])


def test_a_route_must_match_something_in_particular():
    with pytest.raises(ValidationError, match="matches everything"):
        config(routes=[{"match": {}, "policy": "p"}])


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
def test_a_replica_and_what_is_found_have_a_role(role):
    made = config(
        replicas=[{"name": "a", "url": "http://a", "role": role}],
        discovery={"dns": {"name": "vllm.internal", "port": 8000, "role": role}},
    )
    assert made.replicas[0].role == role
    assert made.discovery.dns is not None
    assert made.discovery.dns.role == role


def test_only_a_prefill_replica_fetches_from_others():
    with pytest.raises(ValidationError, match="two_way is for role: prefill, and the role is decode"):
        config(replicas=[{"name": "a", "url": "http://a", "role": "decode", "two_way": True}])
    made = config(replicas=[{"name": "a", "url": "http://a", "role": "prefill", "two_way": True}])
    assert made.replicas[0].two_way


def test_a_fleet_pulls_through_agents_or_through_vllms_own_tier():
    a, b = {"name": "a", "url": "http://a"}, {"name": "b", "url": "http://b"}
    agent, tier = {"kv_agent": "a:7710"}, {"kv_p2p": "a:5710"}
    made = config(replicas=[{**a, **tier}, b])
    assert str(made.replicas[0].kv_p2p) == "a:5710"
    with pytest.raises(ValidationError, match="kv_agent and kv_p2p are two ways to pull: give one"):
        config(replicas=[{**a, **agent, **tier}])
    with pytest.raises(ValidationError, match="replica 'b' has kv_p2p and 'a' a kv_agent"):
        config(replicas=[{**a, **agent}, {**b, **tier}])
    with pytest.raises(ValidationError, match="replica 'a' has kv_p2p and the fleet a kv gateway"):
        config(replicas=[{**a, **tier}], kv={"gateways": [{"name": "pool", "address": "p:7711"}]})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"url": "https://a", "ca": "f", "verify": False}, "has both ca and verify: false; keep one"),
        ({"url": "http://a", "ca": "f"}, "ca and verify are for https://, and the url is http://a:80"),
        ({"url": "http://a", "verify": False}, "ca and verify are for https://"),
    ],
)
def test_what_a_replica_says_of_certificates_must_fit_its_url(more, said):
    with pytest.raises(ValidationError, match=said):
        config(replicas=[{"name": "a", **more}])
    assert config(replicas=[{"name": "a", "url": "https://a", "ca": "f"}]).replicas[0].verify
    assert not config(replicas=[{"name": "a", "url": "https://a", "verify": False}]).replicas[0].verify


def test_the_names_of_the_admin_port_are_kept_in_lower_case_and_are_none_by_default():
    assert config().admin.hosts == ()
    assert config(admin={"hosts": ["Homing.Internal", "10.0.0.1"]}).admin.hosts == (
        "homing.internal",
        "10.0.0.1",
    )
