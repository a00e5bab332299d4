"""Replicas from addresses: their URLs and names."""

import pytest

from router.controlplane.template import Template, replica_name


def test_a_replica_is_called_by_its_address_unless_it_has_a_name():
    template = Template(kv_tokens=7, api_key="k")
    listed = template.at("10.0.0.1", 8000)
    assert (listed.spec.id, listed.spec.url, listed.spec.kv_tokens) == (
        "10.0.0.1-8000",
        "http://10.0.0.1:8000",
        7,
    )
    assert listed.api_key == "k"
    assert template.at("10.0.0.1", 8000, "vllm-0").spec.id == "vllm-0"


def test_a_v6_address_is_bracketed():
    spec = Template(scheme="https").at("2001:db8::1", 443).spec
    assert (spec.id, spec.url) == ("2001-db8--1-443", "https://[2001:db8::1]:443")


@pytest.mark.parametrize(
    ("host", "port"), [("", 1), ("a b", 1), ("10.0.0.999", 1), ("a", 0), ("a/../b", 1), ("u@h", 1)]
)
def test_what_cannot_be_reached_is_no_replica(host, port):
    with pytest.raises(ValueError):  # noqa: PT011 - each for a reason of its own
        Template().at(host, port)


def test_names_are_such_as_a_config_could_write_and_stay_apart():
    assert replica_name("a/b c") == "a-b-c"
    assert replica_name("-x") == "r-x"
    assert replica_name("") == "r"
    long = "very-long-name-" * 10
    assert len(replica_name(long)) == 64
    assert replica_name(long) == replica_name(long)
    assert replica_name(long + "1") != replica_name(long + "2")


def test_keys_do_not_show():
    template = Template(api_key="hush")
    assert "hush" not in f"{template!r} {template.at('a', 1)!r}"
