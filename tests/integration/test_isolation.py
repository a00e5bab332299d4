"""What one client can make of another's: stored responses, caches, ids, and the replicas themselves."""

import asyncio
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson
import pytest
from support.fleet import MODEL, QUICK, fleet, words
from support.plane import data_plane, until
from support.raw import RawResponse, Request, Stream, chat, post, raw_client, raw_replica

from router.base.ids import OPEN_TENANT, TenantId
from router.dataplane.limits import Limits
from router.dataplane.splice import RESERVED
from router.settings.access import AccessKeys

KEYS = {"key-of-acme": "acme", "key-of-beta": "beta"}
ACME, BETA = ({"x-api-key": key} for key in KEYS)
ACCESS = AccessKeys((sha256(key.encode()).digest(), TenantId(tenant)) for key, tenant in KEYS.items())
OK = {"id": "x", "object": "chat.completion", "choices": []}
INTERNAL = {"remote_host": "10.0.0.1"}


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send_json(OK)


def request(line: str, *headers: str, body: bytes | None = None) -> bytes:
    """A request with exactly these headers."""
    length = () if body is None else (f"content-length: {len(body)}",)
    head = "\r\n".join((f"{line} HTTP/1.1", "host: r", *headers, *length, "", ""))
    return head.encode() + (body or b"")


def problem(response: RawResponse) -> tuple[int, str]:
    said: Any = response.json()
    return response.status, said["error"]["message"]


# --- stored responses -------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [None, b"", b"{}", b'{"previous_response_id":"resp_other"}', b"[]"])
@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "text/plain"]
)
async def test_a_stored_response_is_its_tenants_alone_whatever_the_body(
    body: bytes | None, content_type: str
) -> None:
    async with fleet(2, keys=KEYS) as running:
        created = await running.client.post(
            "/v1/responses", json={"model": MODEL, "input": "a secret"}, headers=ACME
        )
        name = created.json()["id"]
        before = len(running.records())
        for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
            refused = await running.client.request(
                method,
                f"/v1/responses/{name}{below}",
                content=body,
                headers=BETA | {"content-type": content_type},
            )
            # A list is refused as no object, before anybody is asked for.
            assert refused.status_code == (400 if body == b"[]" and "text" not in content_type else 404)
        assert len(running.records()) == before


@pytest.mark.parametrize("body", [None, b"{}"])
async def test_what_a_path_names_goes_to_the_replica_that_has_it(body: bytes | None) -> None:
    async with fleet(4) as running:
        for number in range(6):
            created = await running.client.post(
                "/v1/responses", json={"model": MODEL, "input": f"number {number}", "background": True}
            )
            path = f"/v1/responses/{created.json()['id']}"
            for method, below in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
                answer = await running.client.request(
                    method, path + below, content=body, headers={"content-type": "application/json"}
                )
                assert answer.headers["x-homing-replica"] == created.headers["x-homing-replica"]
                assert answer.status_code in (200, 400), answer.text


async def test_a_client_cannot_choose_the_id_of_its_stored_response() -> None:
    async with fleet(1, keys=KEYS) as running:
        created = await running.client.post(
            "/v1/responses", json={"model": MODEL, "input": "x", "request_id": "resp_mine"}, headers=BETA
        )
        assert created.json()["id"] != "resp_mine"
        assert "request_id" not in running.records()[0][1].json


@pytest.mark.parametrize("stream", [False, True])
async def test_an_id_that_a_replica_gives_twice_stays_with_its_first_tenant(stream: bool) -> None:
    async def answer(_request: Request, stream_: Stream) -> None:
        whole = {"id": "resp_1", "object": "response", "status": "completed"}
        if not stream:
            await stream_.send_json(whole)
            return
        await stream_.start_events()
        event = orjson.dumps({"type": "response.completed", "response": whole})
        await stream_.chunk(b"event: response.completed\ndata: %b\n\n" % event)
        await stream_.end()

    body = orjson.dumps({"model": "m", "input": "x", "stream": stream})
    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], access=ACCESS) as plane,
        raw_client(plane.port) as client,
    ):
        for key in KEYS:
            made = await client.exchange(request("POST /v1/responses", f"x-api-key: {key}", body=body))
            assert made.status == 200
        for key, status in (("key-of-acme", 200), ("key-of-beta", 404)):
            read = await client.exchange(request("GET /v1/responses/resp_1", f"x-api-key: {key}"))
            assert read.status == status


@pytest.mark.parametrize(("store", "status"), [("false", 404), ("null", 404), ("true", 200)])
async def test_a_response_that_is_not_to_be_stored_is_not_remembered(store: str, status: int) -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json({"id": "resp_1", "object": "response", "status": "completed"})

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], access=ACCESS) as plane,
        raw_client(plane.port) as client,
    ):
        body = f'{{"model":"m","input":"x","store":{store}}}'.encode()
        await client.exchange(request("POST /v1/responses", "x-api-key: key-of-acme", body=body))
        read = await client.exchange(request("GET /v1/responses/resp_1", "x-api-key: key-of-acme"))
        assert read.status == status


# --- bodies and answers, of whatever endpoint -------------------------------------------------------

UNKNOWN = "/v1/chat/completions/batch"


@pytest.mark.parametrize(
    "content_type",
    [
        ("content-type: application/json",),
        ("Content-Type: Application/JSON ; charset=utf-8",),
        ("content-type: application/vnd.api+JSON",),
        ("content-type: ",),
        (),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", UNKNOWN])
async def test_every_json_body_loses_what_is_reserved_and_gets_the_tenants_salt(
    path: str, content_type: tuple[str, ...]
) -> None:
    sent = dict.fromkeys(RESERVED, "x") | {"model": "m", "messages": []}
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], access=ACCESS) as plane,
        raw_client(plane.port) as client,
    ):
        for key in KEYS:
            answer = await client.exchange(
                request(f"POST {path}", f"x-api-key: {key}", *content_type, body=orjson.dumps(sent))
            )
            assert answer.status == 200
        acme, beta = (seen.json() for seen in replica.requests)
        assert isinstance(acme, dict)
        assert isinstance(beta, dict)
        assert set(acme) == set(beta) == {"cache_salt", "model", "messages"}
        assert len({acme["cache_salt"], beta["cache_salt"], "x"}) == 3


async def test_a_body_that_two_servers_would_read_in_two_ways_is_refused() -> None:
    types = ("content-type: application/json", "content-type: text/plain")
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
    ):
        for headers in (types, types[::-1]):
            async with raw_client(plane.port) as client:
                answer = await client.exchange(request(f"POST {UNKNOWN}", *headers, body=b"{}"))
                assert problem(answer) == (400, "the request has more than one Content-Type")
        assert not replica.requests


async def test_what_is_reserved_is_cut_from_the_extra_parameters_too() -> None:
    body = (
        b'{"model":"m","messages":[],"vllm_xargs":{"a":1,"\\u006bv_transfer_params":"x","ec_transfer_params":{},'
        b'"b":[2]},"vllm_xargs":{"kv_transfer_params":{}}}'
    )
    untouched = b'{"model":"m","messages":[],"vllm_xargs":{"a": 1}}'
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        for sent in (body, untouched):
            assert (await client.exchange(post(sent))).status == 200
        assert replica.requests[0].body == (
            b'{"model":"m","messages":[],"vllm_xargs":{"a":1,"b":[2]},"vllm_xargs":{}}'
        )
        assert replica.requests[1].body == untouched


@pytest.mark.parametrize("line", [f"POST {UNKNOWN}", "GET /v1/responses/resp_1"])
@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
async def test_the_engines_transfer_parameters_reach_no_client_of_any_endpoint(line: str, name: str) -> None:
    async def answer(seen: Request, stream: Stream) -> None:
        if b"stream" not in seen.head:
            await stream.send_json({**OK, name: INTERNAL})
            return
        await stream.start_events()
        for at, more in enumerate(({}, {name: INTERNAL}, {})):
            await stream.chunk(b"data: " + orjson.dumps({"at": at, **more}) + b"\n\n")
        await stream.end()

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        body = b"{}" if line.startswith("POST") else None
        assert (await client.exchange(request(line, body=body))).json() == OK
        streamed = await client.exchange(request(f"{line}?stream=true", body=body))
        assert streamed.body == b'data: {"at":0}\n\ndata: {"at":1}\n\ndata: {"at":2}\n\n'


async def test_an_answer_to_an_unknown_endpoint_that_is_held_is_bounded() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json({"text": "x" * 3000})

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url], limits=Limits(body=2000)) as plane,
        raw_client(plane.port) as client,
    ):
        status, message = problem(await client.exchange(request("GET /v1/thing")))
        assert status == 502
        assert "over 2000 bytes" in message


@pytest.mark.parametrize(("salted", "shared"), [(True, False), (False, True)])
async def test_tenants_share_messages_only_on_an_engine_that_ignores_their_salt(
    salted: bool, shared: bool
) -> None:
    settings = QUICK if salted else replace(QUICK, salts_messages=False)
    async with fleet(1, settings=settings, keys=KEYS) as running:
        body = {
            "model": MODEL,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": words(400)}],
        }
        for headers in (ACME, BETA):
            answer = await running.client.post("/v1/messages", json=body, headers=headers)
            assert answer.status_code == 200
        acme, beta = (record for _, record in running.records())
        assert acme.json["cache_salt"] != beta.json["cache_salt"]
        assert acme.cached_tokens == 0
        assert (beta.cached_tokens > 0) is shared


@pytest.mark.parametrize(
    ("keys", "access", "said"),
    [({}, {}, False), (KEYS, {}, True), ({}, {"tenant_header": "x-tenant"}, True)],
)
async def test_the_limit_of_older_engines_is_said_at_start_where_there_are_tenants(
    keys: dict[str, str], access: dict[str, str], said: bool
) -> None:
    async with fleet(0, keys=keys, config={"access": access}) as running:
        assert any("vLLM before 0.27" in notice for notice in running.router.notices) is said


# --- what is not relayed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words_"),
    [
        ("/v1/load_lora_adapter", "changes a single replica"),
        ("/v1/unload_lora_adapter", "changes a single replica"),
        ("/v1/load_lora_adapter/", "slash at the end"),
        ("/v1/chat/completions/", "slash at the end"),
        ("/v1/", "slash at the end"),
        ("/tokenizer_info", "no endpoint /tokenizer_info"),
        ("/tokenize/", "no endpoint /tokenize/"),
        ("/detokenize_all", "no endpoint /detokenize_all"),
        ("/sleep", "no endpoint /sleep"),
        ("/v1", "no endpoint /v1"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_for_the_replicas_owner_or_for_nobody_is_not_relayed(
    method: str, path: str, words_: str
) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        status, message = problem(await client.exchange(request(f"{method} {path}?a=b", body=b"{}")))
        assert status == 404
        assert words_ in message
        assert not replica.requests


async def test_a_redirect_to_the_replica_itself_becomes_one_to_the_router() -> None:
    location = ""

    async def answer(_request: Request, stream: Stream) -> None:
        line = f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
        await stream.send(line.encode())

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        here = f"127.0.0.1:{replica.port}"
        for given, passed in (
            (f"http://{here}/v1/thing?a=http://x/", "/v1/thing?a=http://x/"),
            (f"HTTP://{here}", "/"),
            (f"//{here}/v1/thing", "/v1/thing"),
            ("/v1/thing", "/v1/thing"),
            (f"/v1/thing?back=http://{here}/x", f"/v1/thing?back=http://{here}/x"),
            ("https://example.org/x", "https://example.org/x"),
        ):
            location = given
            assert (await client.exchange(request("GET /v1/thing"))).headers["location"] == passed


# --- who may come in --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["content-length: 9", "transfer-encoding: chunked"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_health_takes_no_body_from_whoever_has_no_key(method: str, length: str) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], access=ACCESS) as plane,
    ):
        async with raw_client(plane.port) as client:
            assert (await client.exchange(request(f"{method} /health", length))).status == 401
            assert plane.held_bytes == 0
        async with raw_client(plane.port) as client:
            assert (await client.exchange(request("GET /health"))).status == 200
            assert (await client.exchange(request("POST /health"))).status == 401


async def test_where_a_header_names_the_tenant_it_must_be_there_once() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url], tenant_header="x-tenant") as plane,
    ):
        for headers, expected in (
            ((), (401, "the header x-tenant must name the tenant; the gateway in front sets it")),
            (
                ("x-tenant: ",),
                (401, "the header x-tenant must name the tenant; the gateway in front sets it"),
            ),
            (("x-tenant: a", "X-Tenant: b"), (400, "the header that names the tenant is repeated")),
            (("x-tenant: " + "a" * 257,), (400, "the tenant's name is over 256 bytes")),
        ):
            async with raw_client(plane.port) as client:
                assert problem(await client.exchange(post(chat(), *headers))) == expected
        assert not replica.requests
        async with raw_client(plane.port) as client:
            assert (await client.exchange(request("GET /health"))).status == 200
            assert (await client.exchange(post(chat(), "X-Tenant: acme"))).status == 200
        [seen] = replica.requests
        assert "x-tenant" not in seen.headers
        salted = seen.json()
        assert isinstance(salted, dict)
        assert salted["cache_salt"] == plane.routing._salt(TenantId("acme"))


# --- ids --------------------------------------------------------------------------------------------


async def test_nobody_can_take_the_id_that_the_router_will_make_next() -> None:
    seen: list[str] = []
    go = asyncio.Event()

    async def answer(asked: Request, stream: Stream) -> None:
        seen.append(asked.headers["x-request-id"])
        if len(seen) > 1:
            await go.wait()
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as mallory,
        raw_client(plane.port) as alice,
    ):
        shown = (await mallory.exchange(post(chat()))).headers["x-request-id"]
        prefix, _, number = shown.rpartition("-")
        # Mallory's request takes one id, and Alice's would be the one after it.
        wanted = f"{prefix}-{int(number, 16) + 2:x}"
        await mallory.send(post(chat(), f"X-Request-Id: {wanted}"))
        await until(lambda: len(seen) == 2)
        await alice.send(post(chat()))
        await until(lambda: len(seen) == 3)
        go.set()
        await asyncio.gather(mallory.response(), alice.response())
        assert len(set(seen)) == 3
        assert seen[2] == wanted


async def test_an_id_made_unique_is_not_one_that_somebody_else_has() -> None:
    async with raw_replica(ok) as replica, data_plane([replica.url]) as plane:
        taken = {plane.request_id(b"same")}
        for number in range(1, 40):
            taken.add(plane.request_id(b"same-%x" % number))
        for _ in range(3):
            made = plane.request_id(b"same")
            assert made not in taken
            taken.add(made)
        for one in taken:
            plane.release_request_id(one)


# --- what clients choose and the router keeps -------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", UNKNOWN])
async def test_a_models_name_is_bounded(path: str) -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        for size, status in ((512, 200), (513, 400), (4_000_000, 400)):
            body = orjson.dumps({"model": "ä" * (size // 2) + "m" * (size % 2), "messages": []})
            answer = await client.exchange(request(f"POST {path}", body=body))
            assert answer.status == status
            assert len(answer.body) < 400
        assert len(plane.engine._models) == 1


async def test_a_long_session_id_is_a_session_and_is_not_kept() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        for size, kept in ((256, 1), (257, 1), (60_000, 1)):
            for headers, more in ((("X-Session-ID: " + "s" * size,), {}), ((), {"session_id": "s" * size})):
                assert (await client.exchange(post(chat(**more), *headers))).status == 200
                key = replica.requests[-1].headers["x-session-id"]
                assert key == plane.routing.key_of(OPEN_TENANT, "s" * size)
                assert plane.routing._key.cache_info().currsize == kept


async def test_the_id_of_a_stored_response_is_bounded() -> None:
    async with (
        raw_replica(ok) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        body = orjson.dumps({"model": "m", "input": "x", "previous_response_id": "r" * 257})
        assert (await client.exchange(request("POST /v1/responses", body=body))).status == 400
        assert (await client.exchange(request("GET /v1/responses/" + "r" * 257))).status == 404
        assert not replica.requests
