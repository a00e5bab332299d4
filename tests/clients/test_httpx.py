"""httpx through the whole router: what a client sees that reads HTTP itself."""

import asyncio
from dataclasses import replace

import httpx
import orjson
import pytest
from support.fleet import LASTING, MODEL, QUICK, fleet, words
from support.plane import until

pytestmark = pytest.mark.clients


async def test_a_stream_arrives_event_by_event_as_the_replica_sends_it() -> None:
    slow = replace(QUICK, time_scale=1.0)
    async with fleet(1, settings=slow) as running:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **LASTING}
        arrived = 0
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-homing-decision"] == "new"
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    orjson.loads(line[6:])
                    arrived += 1
                if arrived == 11:
                    break
            # A proxy that gathers them would bring none before the last.
            assert running.replicas["r0"].in_flight == 1


async def test_many_clients_over_few_connections_each_get_their_own_answer() -> None:
    async with fleet(3) as running:
        limits = httpx.Limits(max_connections=4)
        async with httpx.AsyncClient(
            base_url=running.base_url, limits=limits, timeout=60, trust_env=False
        ) as client:

            async def ask(number: int) -> int:
                text = words(10 + number, number)
                answer = await client.post("/tokenize", json={"model": MODEL, "prompt": text})
                again = await client.post("/detokenize", json={"tokens": answer.json()["tokens"]})
                assert again.json()["prompt"] == text
                return int(answer.json()["count"])

            counts = await asyncio.gather(*(ask(number) for number in range(40)))
            assert counts == [10 + number for number in range(40)]


async def test_health_models_and_unknown_paths_are_the_routers_own() -> None:
    async with fleet(1) as running:
        assert (await running.client.get("/health")).json() == {"status": "ok"}
        head = await running.client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        unknown = await running.client.get("/metrics")
        assert unknown.status_code == 404
        assert "/v1/" in unknown.json()["error"]["message"]
        # A path that no version of the router knows is the replica's to judge.
        assert (await running.client.post("/v1/unheard-of", json={})).json() == {"detail": "Not Found"}


async def test_a_read_timeout_of_the_client_ends_the_turn_in_the_replica() -> None:
    async with fleet(1) as running:
        replica = running.replicas["r0"]
        replica.fault("hang", count=1)
        patience = httpx.Timeout(60, read=1.0)
        body = {"model": MODEL, "messages": []}
        with pytest.raises(httpx.ReadTimeout):
            await running.client.post("/v1/chat/completions", json=body, timeout=patience)
        await until(lambda: any(record.aborted for _, record in running.records()))


async def test_a_large_body_is_sent_on_unchanged_in_chunks_or_not() -> None:
    async with fleet(1) as running:
        content = orjson.dumps({"model": MODEL, "prompt": words(60_000), "max_tokens": 1})

        async def pieces():
            for at in range(0, len(content), 10_000):
                yield content[at : at + 10_000]

        for sent in (content, pieces()):
            headers = {"content-type": "application/json"}
            answer = await running.client.post("/v1/completions", content=sent, headers=headers)
            assert answer.json()["usage"]["prompt_tokens"] == 60_000
        assert [record.body for _, record in running.records()] == [content, content]
