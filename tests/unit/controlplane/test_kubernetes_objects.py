"""Pods and EndpointSlices as the API server shows them: who is a replica, at which port."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kubernetes import endpoint

from router.controlplane.kubernetes_objects import places_in_slices, places_of_pods


def piece(*endpoints: dict[str, Any], family: str = "IPv4", ports: object = None) -> dict[str, Any]:
    return {
        "metadata": {"name": "vllm-abc", "resourceVersion": "7"},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}]
        if ports is None
        else ports,
    }


def pod(name: str, ip: str | None = "10.0.0.1", phase: str = "Running", **metadata: object) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **metadata},
        "status": {"phase": phase, **({"podIP": ip} if ip else {})},
        "spec": {"containers": [{"name": "side"}, {"ports": [{"name": "http", "containerPort": 8000}]}]},
    }


@pytest.mark.parametrize(("port", "number"), [(None, 8000), ("http", 8000), ("metrics", 9000), (1234, 1234)])
def test_an_endpoint_is_called_by_its_pod_and_lies_at_the_port_that_is_asked_for(port, number):
    places, wrong = places_in_slices([piece(endpoint("10.0.0.1", "vllm-0"))], port)
    assert (places, wrong) == ({"vllm-0": ("10.0.0.1", number)}, [])


def test_an_endpoint_without_a_pod_is_called_by_its_address():
    assert places_in_slices([piece(endpoint("10.0.0.9"))], None)[0] == {"10.0.0.9-8000": ("10.0.0.9", 8000)}


def test_one_that_terminates_is_left_out_and_one_that_is_not_ready_is_not():
    slices = [
        piece(
            endpoint("10.0.0.1", "a", ready=False, terminating=True),
            endpoint("10.0.0.2", "b", ready=False),
            {"addresses": []},
        )
    ]
    assert places_in_slices(slices, None) == ({"b": ("10.0.0.2", 8000)}, [])


def test_a_pod_of_two_slices_is_one_replica_at_its_v4_address():
    six, four = piece(endpoint("2001:db8::1", "a"), family="IPv6"), piece(endpoint("10.0.0.1", "a"))
    assert places_in_slices([six, four], None)[0] == {"a": ("10.0.0.1", 8000)}
    assert places_in_slices([four, six], None)[0] == {"a": ("10.0.0.1", 8000)}
    assert places_in_slices([six], None)[0] == {"a": ("2001:db8::1", 8000)}


def test_a_slice_without_the_port_is_told_of_if_it_has_endpoints():
    assert places_in_slices([piece(endpoint("10.0.0.1", "a"))], "grpc") == (
        {},
        ["EndpointSlice vllm-abc has no port grpc"],
    )
    assert places_in_slices([piece(ports=[])], None) == ({}, [])


def test_pods_that_run_are_replicas():
    pods = [
        pod("a"),
        pod("b", "10.0.0.2", phase="Pending"),
        pod("c", None),
        pod("d", "10.0.0.4", deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": {"name": "e"}},
    ]
    assert places_of_pods(pods, "http") == ({"a": ("10.0.0.1", 8000)}, [])
    assert places_of_pods([pod("a")], "grpc") == ({}, ["pod a has no port grpc"])


@pytest.mark.parametrize("read", [places_in_slices, places_of_pods])
def test_what_cannot_be_read_is_told_of_and_the_rest_is_used(read):
    good = piece(endpoint("10.0.0.1", "a")) if read is places_in_slices else pod("a")
    places, wrong = read(
        [{"metadata": 3}, good, 7, {"metadata": {"name": "x"}, "endpoints": "no", "spec": 1}], 8000
    )
    assert places == {"a": ("10.0.0.1", 8000)}
    assert len(wrong) == 3


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "metadata",
                        "name",
                        "status",
                        "spec",
                        "endpoints",
                        "addresses",
                        "ports",
                        "podIP",
                        "phase",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_nothing_that_is_json_breaks_it(raw):
    for read in (places_in_slices, places_of_pods):
        places, wrong = read([raw], None)
        assert isinstance(places, dict)
        assert len(wrong) <= 1
