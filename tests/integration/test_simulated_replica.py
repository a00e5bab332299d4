"""A simulated replica as a client sees it: conversations, clients that leave, every fault."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import orjson
import pytest

from router.simulator.calls import Record
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings

SETTINGS = ReplicaSettings(model="m", time_scale=500.0, prefill_tps=10_000.0)
CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}


@pytest.fixture
async def replica() -> AsyncIterator[SimulatedReplica]:
    before = asyncio.all_tasks()
    async with SimulatedReplica(SETTINGS) as replica:
        yield replica
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, "the replica left tasks behind"


@pytest.fixture
async def client(replica: SimulatedReplica) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
        yield client


def _record_of(replica: SimulatedReplica) -> Record:
    """The last request to a model."""
    return [record for record in replica.requests if record.path == CHAT][-1]


async def until(replica: SimulatedReplica, true: Callable[[], bool]) -> None:
    """Wait for what happens behind an answer, at the pace of a request to the same loop."""
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
        while not true():
            await client.get("/sim/state")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_hits_all_it_had_but_the_last_token(
    client: httpx.AsyncClient, stream: bool
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s" * 300}]
    known = 0
    for turn in range(6):
        messages.append({"role": "user", "content": f"turn {turn} " + "x" * 37 * turn})
        body = {"model": "m", "messages": messages}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = await client.post(CHAT, json=body)
        if stream:
            events = [orjson.loads(line[6:]) for line in answer.text.split("\n\n") if line[6:7] == "{"]
            text = "".join(event["choices"][0]["delta"]["content"] for event in events if event["choices"])
            usage = events[-1]["usage"]
        else:
            text = answer.json()["choices"][0]["message"]["content"]
            usage = answer.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16
        known = usage["total_tokens"] - 1
        messages.append({"role": "assistant", "content": text})


async def test_a_tool_call_hits_when_it_returns(client: httpx.AsyncClient) -> None:
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"properties": {"q": {"type": "string"}}}},
    }
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x" * 500}]
    body = {"messages": messages, "tools": [tool], "tool_choice": "required"}
    first = (await client.post(CHAT, json=body)).json()
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    messages += [
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "found"},
    ]
    second = (await client.post(CHAT, json=body | {"tool_choice": "auto"})).json()
    known = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16


async def test_the_head_of_a_stream_comes_before_the_prompt_is_computed() -> None:
    async with (
        SimulatedReplica(ReplicaSettings(model="m", prefill_tps=1.0)) as replica,
        httpx.AsyncClient(base_url=replica.url, timeout=60) as client,
        client.stream("POST", CHAT, json=ASK | {"stream": True}) as answer,
    ):
        assert answer.status_code == 200
        assert replica.requests[-1].cached_tokens is None


async def test_time_is_scaled() -> None:
    settings = ReplicaSettings(model="m", time_scale=5_000.0, decode_tps=0.1)
    async with (
        SimulatedReplica(settings) as replica,
        httpx.AsyncClient(base_url=replica.url, timeout=60) as client,
    ):
        before = time.monotonic()
        await client.post(CHAT, json=ASK | {"max_tokens": 51, "ignore_eos": True})
        assert 0.1 <= time.monotonic() - before < 100.0  # 500 s at a token in ten seconds


async def test_a_client_that_speaks_http_1_0_gets_a_body_without_chunks(replica: SimulatedReplica) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    body = orjson.dumps(ASK | {"stream": True})
    writer.write(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert b"chunked" not in head
    assert rest.startswith(b'data: {"id"')
    assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_its_request(stream: bool) -> None:
    body = ASK | {"stream": stream, "max_tokens": 10_000, "ignore_eos": True}
    async with SimulatedReplica(ReplicaSettings(model="m")) as replica:
        async with httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
            if stream:
                async with client.stream("POST", CHAT, json=body) as answer:
                    await anext(answer.aiter_raw())
            else:
                asked = asyncio.ensure_future(client.post(CHAT, json=body))
                await until(replica, lambda: replica.in_flight == 1)
                asked.cancel()
                await asyncio.wait([asked])
        await until(replica, lambda: _record_of(replica).aborted)
        assert replica.in_flight == 0
        assert replica.model.cache.used == 0
        async with httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
            assert 'finished_reason="abort"} 1.0' in (await client.get("/metrics")).text


async def test_many_streams_at_once_get_all_of_their_tokens(client: httpx.AsyncClient) -> None:
    async def one(number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"n{number}"}], "stream": True, "max_tokens": 200}
        answer = await client.post(CHAT, json=body | {"ignore_eos": True})
        assert answer.text.count('"content":"') == 201
        assert answer.text.endswith("data: [DONE]\n\n")

    await asyncio.gather(*(one(number) for number in range(40)))


async def _read(answer: httpx.Response, into: list[bytes]) -> None:
    async for chunk in answer.aiter_raw():
        into.append(chunk)


# Faults


async def test_hang_reads_and_never_answers(client: httpx.AsyncClient, replica: SimulatedReplica) -> None:
    asked = asyncio.ensure_future(client.post(CHAT, json=ASK, headers={"X-Sim-Fault": "hang"}))
    await until(replica, lambda: bool(replica.requests) and replica.requests[-1].fault is not None)
    await asyncio.sleep(0.05)
    assert not asked.done()
    asked.cancel()
    await until(replica, lambda: _record_of(replica).aborted)
    assert (_record_of(replica).fault, _record_of(replica).json) == ("hang", ASK)


async def test_hold_answers_when_the_faults_are_cleared(
    client: httpx.AsyncClient, replica: SimulatedReplica
) -> None:
    replica.fault("hold", count=1)
    held = asyncio.ensure_future(client.post(CHAT, json=ASK))
    await until(replica, lambda: bool(replica.requests))
    assert (await client.post(CHAT, json=ASK)).status_code == 200
    assert not held.done()
    assert (await client.delete("/sim/faults")).status_code == 200
    assert (await held).json()["usage"]["completion_tokens"] == 6


async def test_close_ends_the_connection_before_the_head(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        await client.post(CHAT, json=ASK, headers={"X-Sim-Fault": "close"})


async def test_garbage_is_no_http(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(CHAT, json=ASK, headers={"X-Sim-Fault": "garbage"})


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_status_answers_with_an_error(client: httpx.AsyncClient, status: int) -> None:
    answer = await client.post(CHAT, json=ASK, headers={"X-Sim-Fault": f"status:{status}:2"})
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "2")
    assert answer.json()["error"]["code"] == status


async def test_cut_ends_a_stream_after_so_many_events(
    client: httpx.AsyncClient, replica: SimulatedReplica
) -> None:
    got: list[bytes] = []
    asked = {"json": ASK | {"stream": True}, "headers": {"X-Sim-Fault": "cut:3"}}
    async with client.stream("POST", CHAT, **asked) as answer:  # type: ignore[arg-type]
        with pytest.raises(httpx.RemoteProtocolError):
            await _read(answer, got)
    assert b"".join(got).count(b"data: ") == 3
    await until(replica, lambda: replica.in_flight == 0)


async def test_cut_ends_a_whole_answer_in_its_middle(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="complete message body"):
        await client.post(CHAT, json=ASK, headers={"X-Sim-Fault": "cut:1"})


@pytest.mark.parametrize("stream", [False, True])
async def test_slow_delays_and_loses_nothing(client: httpx.AsyncClient, stream: bool) -> None:
    before = time.monotonic()
    answer = await client.post(CHAT, json=ASK | {"stream": stream}, headers={"X-Sim-Fault": "slow:0.02"})
    took = time.monotonic() - before
    if stream:
        assert answer.text.count("data: ") == 8
        assert answer.text.endswith("data: [DONE]\n\n")
        assert took >= 0.16
    else:
        assert answer.json()["usage"]["completion_tokens"] == 6
        assert took >= 0.02


async def test_refuse_closes_the_port_for_a_time(replica: SimulatedReplica) -> None:
    async with httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
        await client.get("/health")  # a kept-alive connection must not get around it
        replica.fault("refuse:2")
        with pytest.raises(httpx.TransportError):
            await client.get("/health")
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")

        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    assert (await client.get("/health")).status_code == 200
                    break


async def test_refuse_leaves_what_is_in_flight_alone(
    replica: SimulatedReplica, client: httpx.AsyncClient
) -> None:
    slow = {"X-Sim-Fault": "slow:0.02"}
    async with client.stream("POST", CHAT, json=ASK | {"stream": True}, headers=slow) as answer:
        replica.fault("refuse:5")
        text = "".join([chunk async for chunk in answer.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")


async def test_die_by_header_ends_everything(replica: SimulatedReplica) -> None:
    async with httpx.AsyncClient(base_url=replica.url, timeout=60) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=ASK, headers={"X-Sim-Fault": "die"})
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        await replica.restart()
        assert (await client.get("/health")).status_code == 200


async def test_faults_are_armed_for_a_path_and_a_number_of_requests(client: httpx.AsyncClient) -> None:
    await client.post("/sim/faults", json={"fault": "status:503", "count": 2, "path": "/health"})
    assert (await client.post(CHAT, json=ASK)).status_code == 200
    assert [(await client.get("/health")).status_code for _ in range(3)] == [503, 503, 200]


async def test_faults_stay_until_they_are_cleared(
    client: httpx.AsyncClient, replica: SimulatedReplica
) -> None:
    replica.fault("status:500")
    assert [(await client.post(CHAT, json=ASK)).status_code for _ in range(3)] == [500] * 3
    await client.delete("/sim/faults")
    assert (await client.post(CHAT, json=ASK)).status_code == 200
    replica.fault("status:500")
    replica.clear_faults()
    assert (await client.post(CHAT, json=ASK)).status_code == 200


@pytest.mark.parametrize("asked", [{"fault": "explode"}, {"fault": "hang", "count": 0}, {}, {"fault": "cut"}])
async def test_a_fault_that_is_none_is_refused(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    assert (await client.post("/sim/faults", json=asked)).status_code == 400
    assert (await client.post(CHAT, json=ASK)).status_code == 200


async def test_a_fault_in_a_header_that_is_none_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json=ASK, headers={"X-Sim-Fault": "explode"})
    assert (answer.status_code, "unknown fault" in answer.text) == (400, True)
