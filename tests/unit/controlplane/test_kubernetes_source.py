"""Replicas in Kubernetes, over real HTTP from a small API server of ours."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest
from support.kubernetes import api_server, endpoint
from support.plane import until
from support.sources import watched

from router.controlplane import kubernetes_source as module
from router.controlplane.kubernetes_source import KubernetesSource, Query
from router.controlplane.template import Template

PORTS = [{"name": "http", "port": 8000}]


def slice_of(*endpoints):
    return {"addressType": "IPv4", "endpoints": list(endpoints), "ports": PORTS}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF_S", (0.01,))


@asynccontextmanager
async def cluster(tmp_path, *, pods=None, resync_s=300.0):
    async with api_server() as server:
        query = Query(
            namespace="models",
            service=None if pods else "vllm",
            pods=pods,
            port="http",
            kubeconfig=server.kubeconfig(tmp_path),
            resync_s=resync_s,
        )
        yield server, KubernetesSource(query, Template(), Random(1), pause_s=0.01)


async def test_the_endpoints_of_a_service_are_listed_and_followed(tmp_path):
    async with cluster(tmp_path) as (server, source):
        server.put("endpointslices", "one", **slice_of(endpoint("10.0.0.1", "vllm-0")))
        async with watched(source) as told:
            await until(lambda: told.replicas == {"vllm-0": "http://10.0.0.1:8000"})
            server.put("endpointslices", "two", **slice_of(endpoint("10.0.0.2", "vllm-1")))
            await until(lambda: told.replicas and len(told.replicas) == 2)
            server.put("endpointslices", "one", **slice_of(endpoint("10.0.0.1", "vllm-0", terminating=True)))
            await until(lambda: told.replicas == {"vllm-1": "http://10.0.0.2:8000"})
            server.delete("endpointslices", "two")
            await until(lambda: told.replicas == {})
            assert (server.lists, server.watches, told.faults) == (1, 1, [])
            assert server.queries[0]["labelSelector"] == "kubernetes.io/service-name=vllm"


async def test_pods_are_found_by_their_labels(tmp_path):
    async with cluster(tmp_path, pods="app=vllm") as (server, source):
        running = {
            "status": {"phase": "Running", "podIP": "10.0.0.5"},
            "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        }
        server.put("pods", "vllm-0", **running)
        async with watched(source) as told:
            await until(lambda: told.replicas == {"vllm-0": "http://10.0.0.5:8000"})
            server.put("pods", "vllm-0", **running, metadata={"deletionTimestamp": "now"})
            await until(lambda: told.replicas == {})
            assert server.queries[0]["labelSelector"] == "app=vllm"


async def test_a_watch_that_has_become_too_old_lists_again_and_misses_nothing(tmp_path):
    async with cluster(tmp_path) as (server, source):
        server.put("endpointslices", "one", **slice_of(endpoint("10.0.0.1", "vllm-0")))
        async with watched(source) as told:
            await until(lambda: server.watches == 1)
            server.put("endpointslices", "two", **slice_of(endpoint("10.0.0.2", "vllm-1")))
            server.delete("endpointslices", "one")
            server.forget()
            await server.hang_up()
            await until(lambda: told.replicas == {"vllm-1": "http://10.0.0.2:8000"})
            await until(lambda: server.lists == 2)


async def test_a_watch_that_breaks_goes_on_where_it_stood(tmp_path):
    async with cluster(tmp_path) as (server, source):
        server.put("endpointslices", "one", **slice_of(endpoint("10.0.0.1", "vllm-0")))
        async with watched(source) as told:
            await until(lambda: server.watches == 1)
            await server.hang_up()
            server.put("endpointslices", "two", **slice_of(endpoint("10.0.0.2", "vllm-1")))
            await until(lambda: told.replicas and len(told.replicas) == 2)


async def test_everything_is_listed_again_after_a_while(tmp_path):
    async with cluster(tmp_path, resync_s=0.5) as (server, source):
        server.put("endpointslices", "one", **slice_of(endpoint("10.0.0.1", "vllm-0")))
        async with watched(source) as told:
            await until(lambda: server.lists >= 2)
            # What nobody told of is seen all the same.
            server.objects["endpointslices"].clear()
            await until(lambda: told.replicas == {})


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "the API server answers 403: may the service account list and watch these?"),
        (500, "the API server answers 500"),
    ],
)
async def test_a_refused_list_is_a_fault_and_is_tried_again(tmp_path, status, said):
    async with cluster(tmp_path) as (server, source):
        server.list_status = status
        async with watched(source) as told:
            await until(lambda: len(told.faults) > 1)
            assert told.faults[0] == said
            server.list_status = 200
            await until(lambda: told.replicas == {})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"items": 3}', b"\xff\xfe", b'{"items": [{}], "metadata": 1}']
)
async def test_an_absurd_list_finds_nobody_and_ends_nothing(tmp_path, body):
    async with cluster(tmp_path) as (server, source):
        server.list_body = body
        async with watched(source) as told:
            await until(lambda: told.faults)
            assert told.replicas is None
            server.list_body = None
            await until(lambda: told.replicas == {})


@pytest.mark.parametrize(
    "line",
    [
        b"\n\n",
        b"nonsense\n",
        b"3\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "ADDED", "object": 5}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": [1]}}}\n',
        b'{"type": "ERROR", "object": {"code": 500, "reason": "Oops"}}\n',
        b'{"type": "ERROR", "object": {"code": 410}}\n',
        b'{"type": "UNHEARD_OF", "object": {"metadata": {"name": "z"}, "endpoints": 7}}\n',
        b'{"type": "ADDED", "object": {"half',
    ],
)
async def test_a_hostile_watch_ends_nothing(tmp_path, line):
    async with cluster(tmp_path) as (server, source):
        server.put("endpointslices", "one", **slice_of(endpoint("10.0.0.1", "vllm-0")))
        async with watched(source) as told:
            await until(lambda: server.watches == 1)
            server.say(line)
            await asyncio.sleep(0.02)
            await server.hang_up()
            server.put("endpointslices", "two", **slice_of(endpoint("10.0.0.2", "vllm-1")))
            await until(lambda: told.replicas and "vllm-1" in told.replicas)
            assert "vllm-0" in told.replicas


async def test_an_event_larger_than_a_stream_buffer_is_read(tmp_path):
    async with cluster(tmp_path) as (server, source):
        async with watched(source) as told:
            await until(lambda: server.watches == 1)
            many = [
                endpoint(f"10.0.{number // 250}.{number % 250 + 1}", f"vllm-{number}")
                for number in range(2000)
            ]
            server.put("endpointslices", "one", **slice_of(*many))
            await until(lambda: told.replicas and len(told.replicas) == 2000)


async def test_no_server_at_all_is_a_fault(tmp_path):
    async with cluster(tmp_path) as (_, source):
        pass
    async with watched(source) as told:
        await until(lambda: told.faults)
        assert told.faults[0].startswith("no connection to the API server")


async def test_outside_a_cluster_and_without_a_kubeconfig_the_fault_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    query = Query(namespace=None, service="vllm", pods=None, port=None, kubeconfig=None)
    async with watched(KubernetesSource(query, Template(), Random(1))) as told:
        await until(lambda: told.faults)
        assert told.faults[0].startswith("the way to the API server is not known")
