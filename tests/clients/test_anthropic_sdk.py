"""The anthropic library through the whole router, as coding agents use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from support.fleet import MODEL, QUICK, Fleet, fleet, words
from support.plane import until

pytestmark = pytest.mark.clients

READ_FILE: Any = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


@asynccontextmanager
async def sdk(running: Fleet, key: str = "unused", **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The library as users make it, but for retries, which would hide what the router answers."""
    async with anthropic.AsyncAnthropic(
        base_url=running.base_url, api_key=key, max_retries=0, timeout=60, **options
    ) as client:
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_a_message_and_the_turn_after_it_read_from_the_cache_at_home() -> None:
    async with fleet(3) as running, sdk(running) as client:
        messages = user(words(800))
        first = await client.messages.create(model=MODEL, max_tokens=16, system="be brief", messages=messages)
        messages += [{"role": "assistant", "content": first.content}, *user("go on")]
        second = await client.messages.create(
            model=MODEL, max_tokens=16, system="be brief", messages=messages
        )
        assert (await running.decision())["kind"] == "home"
        assert second.usage.cache_read_input_tokens
        assert second.usage.cache_read_input_tokens >= 800


async def test_a_stream_assembles_to_the_message_that_is_not_streamed() -> None:
    async with fleet() as running, sdk(running) as client:
        asked: Any = {"model": MODEL, "max_tokens": 24, "messages": user("hello")}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert whole.content[0].type == "text"
        assert text == whole.content[0].text
        assert final.stop_reason == whole.stop_reason == "max_tokens"
        assert final.usage.output_tokens == 24


async def test_a_tool_use_and_its_result_whole_and_streamed() -> None:
    async with fleet(3) as running, sdk(running) as client:
        messages = user("use read_file please " + words(200))
        asked: Any = {"model": MODEL, "max_tokens": 200, "tools": [READ_FILE]}
        whole = await client.messages.create(messages=messages, **asked)
        assert whole.stop_reason == "tool_use"
        call = whole.content[-1]
        assert call.type == "tool_use"
        assert call.name == "read_file"
        assert set(call.input) == {"path"}
        async with client.messages.stream(messages=messages, **asked) as stream:
            final = await stream.get_final_message()
        assert final.content[-1].type == "tool_use"
        assert final.content[-1].input == call.input
        messages += [
            {"role": "assistant", "content": whole.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "def f(): ..."}],
            },
        ]
        await client.messages.create(messages=messages, **asked)
        assert (await running.decision())["kind"] == "home"


async def test_counting_tokens_is_no_turn() -> None:
    async with fleet() as running, sdk(running) as client:
        messages = user(words(300))
        counted = await client.messages.count_tokens(model=MODEL, messages=messages)
        message = await client.messages.create(model=MODEL, max_tokens=8, messages=messages)
        # Nothing was computed for the count, so nothing is at home anywhere and nothing is cached.
        decision = await running.decision()
        assert (decision["kind"], decision["predicted_cached_tokens"]) == ("new", 0)
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens or 0) == (
            counted.input_tokens,
            0,
        )


async def test_the_key_goes_by_x_api_key_or_as_a_bearer_token_and_stays_here() -> None:
    async with fleet(1, keys={"right": "acme"}) as running:
        async with sdk(running, "wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await client.messages.create(model=MODEL, max_tokens=8, messages=user("hello"))
            assert caught.value.type == "authentication_error"
        async with sdk(running, "right") as client:
            assert (await client.messages.create(model=MODEL, max_tokens=8, messages=user("hi"))).content
        async with anthropic.AsyncAnthropic(
            base_url=running.base_url, auth_token="right", max_retries=0
        ) as client:
            assert (await client.messages.create(model=MODEL, max_tokens=8, messages=user("hi"))).content
        assert len(running.records()) == 2
        for _, record in running.records():
            assert "right" not in str(record.headers)


async def test_an_unknown_model_and_a_bad_request_raise_their_own_classes() -> None:
    async with fleet() as running, sdk(running) as client:
        with pytest.raises(anthropic.NotFoundError, match=f"served: {MODEL}") as missing:
            await client.messages.create(model="claude-x", max_tokens=8, messages=user("hello"))
        assert missing.value.type == "not_found_error"
        with pytest.raises(anthropic.BadRequestError, match="must not be empty") as bad:
            await client.messages.create(model=MODEL, max_tokens=8, messages=[])
        assert bad.value.type == "invalid_request_error"


async def test_a_limit_raises_rate_limit_error_and_no_replica_raises_internal_server_error() -> None:
    async with fleet(1, policy={"overload": {"in_flight": 1}}) as running, sdk(running) as client:
        running.replicas["r0"].fault("hold", count=1)
        first = asyncio.ensure_future(
            client.messages.create(model=MODEL, max_tokens=8, messages=user("hello"))
        )
        await until(lambda: running.router.engine.in_flight() == 1)
        with pytest.raises(anthropic.RateLimitError) as limited:
            await client.messages.create(model=MODEL, max_tokens=8, messages=user("hello"))
        assert limited.value.type == "rate_limit_error"
        running.replicas["r0"].clear_faults()
        await first
        await running.replicas["r0"].kill()
        with pytest.raises(anthropic.InternalServerError) as failed:
            await client.messages.create(model=MODEL, max_tokens=8, messages=user("hello"))
        assert (failed.value.status_code, failed.value.type) == (502, "api_error")
        with pytest.raises(anthropic.InternalServerError, match="r0 is down") as down:
            await client.messages.create(model=MODEL, max_tokens=8, messages=user("hello"))
        assert (down.value.status_code, down.value.type) == (503, "overloaded_error")


async def test_a_stream_that_breaks_raises_in_its_midst() -> None:
    async with fleet(1) as running, sdk(running) as client:
        running.replicas["r0"].fault("cut:6")
        seen: list[str] = []

        async def read() -> None:
            async with client.messages.stream(model=MODEL, max_tokens=64, messages=user("hello")) as stream:
                async for text in stream.text_stream:
                    seen.append(text)

        with pytest.raises(anthropic.APIStatusError, match="replica r0 closed the connection"):
            await read()
        assert seen


async def test_a_stream_that_is_left_is_aborted_in_the_replica() -> None:
    slow = replace(QUICK, time_scale=1.0)
    async with fleet(1, settings=slow) as running, sdk(running) as client:
        async with client.messages.stream(
            model=MODEL, max_tokens=2000, messages=user("hello"), extra_body={"ignore_eos": True}
        ) as stream:
            async for _ in stream.text_stream:
                break
        replica = running.replicas["r0"]
        await until(lambda: replica.in_flight == 0, 1.0)
        [(_, record)] = running.records()
        assert record.aborted


async def test_the_same_from_the_synchronous_client() -> None:
    def ask(base_url: str) -> tuple[str, str]:
        with anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0, timeout=60) as client:
            asked: Any = {"model": MODEL, "max_tokens": 16, "messages": user("hello")}
            whole = client.messages.create(**asked)
            with client.messages.stream(**asked) as stream:
                text = "".join(stream.text_stream)
            assert whole.content[0].type == "text"
            return whole.content[0].text, text

    async with fleet() as running:
        whole, streamed = await asyncio.to_thread(ask, running.base_url)
        assert whole == streamed
