"""Other settings in a router that runs: under streams, by signal, by file, by the API; and bad ones."""

import asyncio

import httpx
import yaml
from support.fleet import Fleet, fleet, words
from support.plane import until

from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings

RING = "version: 1\npolicy: mine\nstrategy: round-robin\n"


async def chat(running: Fleet, session: str, tokens: int = 40):
    return await running.chat(
        [{"role": "user", "content": words(50, session)}],
        max_tokens=tokens,
        headers={"x-session-id": session},
    )


async def stream(running: Fleet, session: str) -> str:
    """One streamed turn to its end: what came last."""
    body = {
        "model": "sim-model",
        "messages": [{"role": "user", "content": words(50, session)}],
        "max_tokens": 400,
        "stream": True,
    }
    last = ""
    async with running.client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-session-id": session}
    ) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            last = line or last
    return last


async def put(running: Fleet, text: str) -> httpx.Response:
    return await running.admin.put("/api/policy", content=text.encode())


async def test_what_the_api_shows_can_be_put_back_and_changes_nothing():
    async with fleet(2) as running:
        shown = await running.admin.get("/api/policy")
        answer = await put(running, shown.text)
        assert (answer.status_code, answer.json()["outcome"]) == (200, "unchanged")


async def test_a_policy_that_is_put_decides_for_the_turns_that_follow_and_nothing_fails():
    async with fleet(2, settings=ReplicaSettings(time_scale=1.0)) as running:
        streams = [asyncio.ensure_future(stream(running, f"s{number}")) for number in range(20)]
        await until(lambda: running.router.engine.in_flight() >= 12)
        answer = await put(running, RING)
        assert answer.json()["outcome"] == "applied"
        assert "policies: home → mine" in answer.json()["changes"]
        assert (await chat(running, "new")).response.status_code == 200
        assert (await running.decision())["policy"] == "mine"
        assert await asyncio.gather(*streams) == ["data: [DONE]"] * 20
        shown = (await running.admin.get("/api/policy")).text
        assert yaml.safe_load(shown)["strategy"] == "round-robin"


async def test_a_policy_that_is_put_holds_until_a_file_is_replaced():
    async with fleet(2, reload=True, look_every_s=0.01) as running:
        assert (await put(running, RING)).json()["outcome"] == "applied"
        await asyncio.sleep(0.5)  # for many looks at the files
        assert (await running.admin.get("/api/reload")).json()["last"]["cause"] == "PUT /api/policy"
        path = running.folder / "home.yaml"
        path.write_text(path.read_text() + "\n")
        await until(lambda: running.router.reloader.last.cause == "a file was replaced")
        assert "policy: home" in (await running.admin.get("/api/policy")).text


async def test_a_policy_with_faults_changes_nothing_and_shows_everywhere():
    async with fleet(2) as running:
        before = (await running.admin.get("/api/policy")).text
        answer = await put(running, RING.replace("round-robin", "os:system") + "nonsense: 1\n")
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert "body:3: strategy: 'os:system' is code that was not loaded" in message
        assert "body:4: unknown key 'nonsense'" in message
        assert (await running.admin.get("/api/policy")).text == before
        last = (await running.admin.get("/api/reload")).json()["last"]
        assert (last["outcome"], len(last["faults"])) == ("refused", 2)
        metrics = (await running.admin.get("/metrics")).text.splitlines()
        assert "homing_reload_refused 1" in metrics
        assert 'homing_reloads_total{outcome="refused"} 1' in metrics


async def test_a_changed_file_is_taken_up_whole():
    async with fleet(2, reload=True, config={"limits": {"body": "1MiB"}}) as running:
        path = running.folder / "router.yaml"
        config = yaml.safe_load(path.read_text())
        home = (await chat(running, "s")).replica
        config["replicas"] = [one for one in config["replicas"] if one["name"] == home]
        config["limits"] = {"body": "1KiB"}
        path.write_text(yaml.safe_dump(config))
        done = await running.router.reloader.reload("a file was replaced")
        assert done.faults == ()
        left = {"r0": "r1", "r1": "r0"}[home]
        assert running.status(left).leaving
        assert not running.status(home).leaving
        assert (await chat(running, "s")).kind == "home"
        too_large = await running.chat([{"role": "user", "content": "x" * 2000}])
        assert too_large.response.status_code == 413
        assert (await running.admin.get("/readyz")).status_code == 200


async def test_new_replicas_and_keys_of_a_file_are_used_at_once():
    async with fleet(2, reload=True, keys={"key-one": "acme"}, files={"keys.yaml": ""}) as running:
        running.environ.pop("HOMING_API_KEYS")
        (running.folder / "keys.yaml").write_text("version: 1\nkeys: [{tenant: acme, key: key-two}]\n")
        path = running.folder / "router.yaml"
        config = yaml.safe_load(path.read_text())
        config["access"] = {"keys_file": "keys.yaml"}
        path.write_text(yaml.safe_dump(config))
        assert (await running.router.reloader.reload("SIGHUP")).faults == ()
        for key, status in (("key-one", 401), ("key-two", 200)):
            answer = await running.chat(
                [{"role": "user", "content": "hi"}], headers={"authorization": f"Bearer {key}"}
            )
            assert answer.response.status_code == status


async def test_a_replica_that_a_file_adds_is_probed_before_it_gets_turns():
    async with fleet(2, reload=True) as running:
        path = running.folder / "router.yaml"
        config = yaml.safe_load(path.read_text())
        async with SimulatedReplica(ReplicaSettings(time_scale=40.0)) as added:
            added.fault("status:503", path="/health")
            one = {"name": "added", "url": added.url}
            path.write_text(yaml.safe_dump({**config, "replicas": [*config["replicas"], one]}))
            assert (await running.router.reloader.reload("SIGHUP")).faults == ()
            await until(lambda: "503" in running.status("added").why)
            for number in range(6):
                assert (await chat(running, f"t{number}")).replica != "added"
            assert running.status("added").health == "starting"


async def test_the_files_are_watched():
    async with fleet(1, reload=True, look_every_s=0.01) as running:
        policy = running.folder / "home.yaml"
        policy.write_text(policy.read_text().replace("strategy: priced", "strategy: ring"))
        await until(lambda: running.router.engine.plans[0].strategy.__class__.__name__ == "RingOnly")
        policy.write_text("nonsense")
        await until(lambda: running.router.reloader.refused)
        assert (await chat(running, "s")).response.status_code == 200
        policy.unlink()
        await until(lambda: running.router.reloader.tally()["refused"] == 2)
