"""Replicas that come and go while a router runs: probed before their first turn, drained after their last."""

import asyncio

import pytest
import yaml
from support.fleet import QUICK, fleet, words
from support.kubernetes import api_server, endpoint
from support.plane import until

from router.simulator.server import SimulatedReplica


def listing(**urls: str) -> str:
    return yaml.safe_dump(
        {"version": 1, "replicas": [{"name": name, "url": url} for name, url in urls.items()]}
    )


async def chat(running, session: str):
    return await running.chat(
        [{"role": "user", "content": words(50, session)}],
        max_tokens=16,
        headers={"x-session-id": session},
    )


async def test_replicas_of_a_file_come_are_probed_and_leave_when_their_turns_have_ended():
    async with SimulatedReplica(QUICK) as slow, SimulatedReplica(QUICK) as quick:
        async with fleet(
            0,
            config={"discovery": {"file": "replicas.yaml"}},
            files={"replicas.yaml": listing(slow=slow.url)},
            look_every_s=0.01,
        ) as running:
            assert (await chat(running, "s")).replica == "slow"
            slow.fault("hold", count=1)
            turn = asyncio.ensure_future(chat(running, "s"))
            await until(lambda: running.router.engine.in_flight() == 1)
            (running.folder / "replicas.yaml").write_text(listing(quick=quick.url))
            await until(
                lambda: running.status("slow").leaving and running.status("quick").health == "healthy"
            )
            assert (await chat(running, "s")).replica == "quick"
            assert not turn.done()
            slow.clear_faults()
            answered = await turn
            assert (answered.replica, answered.response.status_code) == ("slow", 200)
            [source] = (await running.admin.get("/api/discovery")).json()["sources"]
            assert (source["source"], source["replicas"], source["fault"]) == ("file", 1, "")
            (running.folder / "replicas.yaml").write_text("nonsense")
            await until(lambda: running.router.discovery.status()[0].fault)
            assert (await chat(running, "s")).replica == "quick"
            metrics = (await running.admin.get("/metrics")).text.splitlines()
            assert 'homing_discovery_failing{source="file"} 1' in metrics


async def test_one_that_vanishes_for_a_moment_keeps_its_sessions():
    async with SimulatedReplica(QUICK) as one, SimulatedReplica(QUICK) as two:
        both = listing(one=one.url, two=two.url)
        async with fleet(
            0,
            config={"discovery": {"file": "replicas.yaml"}},
            files={"replicas.yaml": both},
            look_every_s=0.01,
        ) as running:
            home = (await chat(running, "s")).replica
            kept = {"one": {"two": two.url}, "two": {"one": one.url}}[home]
            (running.folder / "replicas.yaml").write_text(listing(**kept))
            await until(lambda: running.status(home).leaving)
            (running.folder / "replicas.yaml").write_text(both)
            await until(lambda: not running.status(home).leaving)
            answer = await chat(running, "s")
            assert (answer.replica, answer.kind) == (home, "home")
            assert answer.cached > 0


async def test_pods_of_a_cluster_are_replicas(tmp_path):
    pytest.importorskip("kubernetes_asyncio")
    async with api_server() as cluster, SimulatedReplica(QUICK) as replica:
        port = int(replica.url.rpartition(":")[2])
        content = {
            "addressType": "IPv4",
            "ports": [{"port": port}],
            "endpoints": [endpoint("127.0.0.1", "vllm-0")],
        }
        cluster.put("endpointslices", "vllm-x", **content)
        kubeconfig = cluster.kubeconfig(tmp_path)
        discovery = {"kubernetes": {"service": "vllm", "kubeconfig": str(kubeconfig)}}
        async with fleet(0, config={"discovery": discovery}) as running:
            assert (await chat(running, "s")).replica == "vllm-0"
            cluster.put("endpointslices", "vllm-x", **{**content, "endpoints": []})
            await until(lambda: running.status("vllm-0").leaving)


async def test_discovery_is_reloaded_with_the_rest():
    async with SimulatedReplica(QUICK) as found:
        async with fleet(1, reload=True, files={"replicas.yaml": listing(found=found.url)}) as running:
            path = running.folder / "router.yaml"
            config = yaml.safe_load(path.read_text())
            path.write_text(yaml.safe_dump({**config, "discovery": {"file": "replicas.yaml"}}))
            assert (await running.router.reloader.reload("SIGHUP")).faults == ()
            await until(lambda: "found" in running.router.engine.replica_ids())
            await until(lambda: running.status("found").health == "healthy")
            path.write_text(yaml.safe_dump(config))
            assert (await running.router.reloader.reload("SIGHUP")).faults == ()
            assert running.status("found").leaving
