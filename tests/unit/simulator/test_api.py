"""The endpoints over HTTP: what each answers, and how each refuses."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings

SETTINGS = ReplicaSettings(model="m", kv_blocks=400, max_model_len=4000, time_scale=2000.0)
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def replica() -> AsyncIterator[SimulatedReplica]:
    async with SimulatedReplica(SETTINGS) as replica:
        yield replica


@pytest.fixture
async def client(replica: SimulatedReplica) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
        yield client


async def test_health_is_an_empty_200(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_the_model_card_tells_the_context(client: httpx.AsyncClient) -> None:
    card = (await client.get("/v1/models")).json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("m", 4000)


async def test_metrics_and_version_answer(client: httpx.AsyncClient) -> None:
    assert "vllm:num_requests_running{" in (await client.get("/metrics")).text
    assert (await client.get("/version")).json()["version"].endswith("+sim")


async def test_tokens_come_back_as_their_text(client: httpx.AsyncClient) -> None:
    made = (await client.post("/tokenize", json={"model": "m", "prompt": "hello"})).json()
    assert (made["count"], made["max_model_len"]) == (2, 4000)
    back = await client.post("/detokenize", json={"tokens": made["tokens"]})
    assert back.json() == {"prompt": "hello"}
    assert (await client.post("/tokenize", json=ASK)).json()["count"] == 5


@pytest.mark.parametrize("tokens", [None, [-1], ["x"]])
async def test_what_is_no_token_is_refused(client: httpx.AsyncClient, tokens: object) -> None:
    assert (await client.post("/detokenize", json={"tokens": tokens})).status_code == 400


async def test_embeddings_are_the_same_for_the_same_text(client: httpx.AsyncClient) -> None:
    plain = (await client.post("/v1/embeddings", json={"model": "m", "input": ["a", "b", "a"]})).json()[
        "data"
    ]
    assert plain[0]["embedding"] == plain[2]["embedding"] != plain[1]["embedding"]
    encoded = await client.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"})
    raw = base64.b64decode(encoded.json()["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(plain[0]["embedding"])


@pytest.mark.parametrize("given", [[], None, "a" * 20_000])
async def test_embeddings_of_nothing_or_too_much_are_refused(
    client: httpx.AsyncClient, given: object
) -> None:
    assert (await client.post("/v1/embeddings", json={"input": given})).status_code == 400


async def test_limits_are_honoured_by_every_name(client: httpx.AsyncClient) -> None:
    for limit in ("max_tokens", "max_completion_tokens"):
        usage = (await client.post("/v1/chat/completions", json=ASK | {limit: 7})).json()["usage"]
        assert usage["completion_tokens"] == 7
    made = (await client.post("/v1/responses", json={"input": "x", "max_output_tokens": 7})).json()
    assert made["usage"]["output_tokens"] == 7


async def test_the_request_id_of_the_client_is_in_the_id(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=ASK, headers={"X-Request-Id": "abc"})
    assert answer.json()["id"] == "chatcmpl-abc"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/chat/completions", ASK | {"model": "other"}, 404, "NotFoundError"),
        ("/v1/chat/completions", {"model": "m"}, 400, "BadRequestError"),
        ("/v1/chat/completions", ASK | {"n": 2}, 400, "BadRequestError"),
        ("/v1/chat/completions", ASK | {"max_tokens": 0}, 400, "BadRequestError"),
        ("/v1/chat/completions", ASK | {"max_tokens": "many"}, 400, "BadRequestError"),
        ("/v1/chat/completions", ASK | {"max_tokens": 4000}, 400, "BadRequestError"),
        ("/v1/completions", {"prompt": "x" * 16_000}, 400, "BadRequestError"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_0"}, 404, "invalid_request_error"),
        ("/v1/responses", {"input": "x", "background": True, "store": False}, 400, "BadRequestError"),
    ],
)
async def test_refusals_are_shaped_as_vllms(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (status, status, kind)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"a": NaN}', b"\xff"])
async def test_a_body_that_is_no_object_is_refused(client: httpx.AsyncClient, raw: bytes) -> None:
    answer = await client.post("/v1/chat/completions", content=raw)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


async def test_refusals_to_anthropic_clients_are_shaped_for_them(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/messages", json=ASK)
    assert answer.status_code == 400
    assert answer.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens: Field required"},
    }
    answer = await client.post("/v1/messages", json=ASK | {"model": "other", "max_tokens": 3})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


async def test_messages_count_and_answer(client: httpx.AsyncClient) -> None:
    count = (await client.post("/v1/messages/count_tokens", json=ASK)).json()["input_tokens"]
    usage = (await client.post("/v1/messages", json=ASK | {"max_tokens": 3})).json()["usage"]
    assert usage == {"input_tokens": count, "output_tokens": 3, "cache_read_input_tokens": 0}


async def test_unknown_paths_and_methods(client: httpx.AsyncClient, replica: SimulatedReplica) -> None:
    assert (await client.get("/v1/nothing")).status_code == 404
    assert (await client.get("/v1/chat/completions")).status_code == 405
    assert [record.status for record in replica.requests] == [404, 405]


async def test_a_stored_response_is_continued_read_and_deleted(client: httpx.AsyncClient) -> None:
    first = (await client.post("/v1/responses", json={"input": "x" * 400})).json()
    url = f"/v1/responses/{first['id']}"
    assert (await client.get(url)).json() == first
    second = await client.post("/v1/responses", json={"input": "more", "previous_response_id": first["id"]})
    usage = second.json()["usage"]
    # All of the first turn but the token that ended it, in whole blocks.
    known = first["usage"]["total_tokens"] - 1
    assert usage["input_tokens_details"]["cached_tokens"] == known // 16 * 16
    assert second.json()["previous_response_id"] == first["id"]
    assert (await client.post(url + "/cancel")).status_code == 400
    assert (await client.delete(url)).json()["deleted"] is True
    assert (await client.get(url)).status_code == 404


async def test_a_response_that_is_not_to_be_stored_is_not(client: httpx.AsyncClient) -> None:
    made = (await client.post("/v1/responses", json={"input": "x", "store": False})).json()
    assert (await client.get(f"/v1/responses/{made['id']}")).status_code == 404


async def test_a_background_response_is_made_behind_the_answer(client: httpx.AsyncClient) -> None:
    queued = (await client.post("/v1/responses", json={"input": "x", "background": True})).json()
    assert (queued["status"], queued["output"]) == ("queued", [])
    url = f"/v1/responses/{queued['id']}"
    for _ in range(1000):
        shown = (await client.get(url)).json()
        if shown["status"] != "queued":
            break
    assert shown["status"] == "completed"
    assert shown["output"][0]["content"][0]["text"]


async def test_a_background_response_can_be_cancelled() -> None:
    async with (
        SimulatedReplica(ReplicaSettings(model="m")) as replica,
        httpx.AsyncClient(base_url=replica.url, timeout=60) as client,
    ):
        queued = (await client.post("/v1/responses", json={"input": "x", "background": True})).json()
        url = f"/v1/responses/{queued['id']}"
        continued = await client.post(
            "/v1/responses", json={"input": "y", "previous_response_id": queued["id"]}
        )
        assert continued.status_code == 400
        assert (await client.post(url + "/cancel")).json()["status"] == "cancelled"
        assert replica.in_flight == 0
        assert (await client.get(url)).json()["status"] == "cancelled"


async def test_what_arrived_can_be_looked_at(client: httpx.AsyncClient, replica: SimulatedReplica) -> None:
    await client.get("/health")
    await client.get("/metrics")
    await client.post("/v1/chat/completions", json=ASK, headers={"X-Thing": "1"})
    (record,) = replica.requests
    assert (record.method, record.path, record.headers["x-thing"]) == ("POST", "/v1/chat/completions", "1")
    assert record.json == ASK
    assert (record.status, record.prompt_tokens, record.cached_tokens, record.aborted) == (200, 5, 0, False)
    (shown,) = (await client.get("/sim/requests")).json()["requests"]
    assert (shown["path"], shown["cached_tokens"]) == ("/v1/chat/completions", 0)
    state = (await client.get("/sim/state")).json()
    assert (state["name"], state["in_flight"], state["ended"]["stop"]) == ("sim", 0, 1)


async def test_two_salts_never_share_a_cache(client: httpx.AsyncClient) -> None:
    async def cached(salt: str | None) -> int:
        body = {"prompt": "x" * 400, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        usage = (await client.post("/v1/completions", json=body)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [await cached("a"), await cached("b"), await cached(None)] == [0, 0, 0]
    assert [await cached("a"), await cached("b"), await cached(None)] == [96, 96, 96]
