"""The openai library through the whole router: what its users see must be what vLLM gives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest
from support.fleet import MODEL, QUICK, Fleet, fleet, words
from support.plane import until

from router.base.ids import OPEN_TENANT
from router.core.request import EMPTY_CHAIN, Turn

pytestmark = pytest.mark.clients

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
            "required": ["city", "unit"],
        },
    },
}

TO_THE_LIMIT = {"ignore_eos": True}
"""As many tokens as `max_tokens` allows, whatever there is to say."""


@asynccontextmanager
async def sdk(running: Fleet, key: str = "unused", **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """The library as users make it, but for retries, which would hide what the router answers."""
    async with openai.AsyncOpenAI(
        base_url=running.openai_url, api_key=key, max_retries=0, timeout=60, **options
    ) as client:
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


# --- chat -------------------------------------------------------------------------------------------


async def test_a_chat_has_text_usage_and_cached_tokens_on_its_second_turn() -> None:
    async with fleet() as running, sdk(running, default_headers={"X-Session-ID": "one"}) as client:
        messages = user(words(1000))
        first = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
        assert first.choices[0].message.content
        assert first.usage is not None
        assert (first.usage.completion_tokens, first.choices[0].finish_reason) == (20, "length")
        messages += [first.choices[0].message.to_dict(), *user("go on")]
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=20
        )
        second = raw.parse()
        assert raw.headers["x-homing-decision"] == "home"
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        # All full blocks of the first prompt and its reply.
        assert second.usage.prompt_tokens_details.cached_tokens == (1000 + 3 + 20) // 16 * 16


async def test_the_same_chat_from_the_synchronous_client() -> None:
    def ask(base_url: str) -> tuple[str | None, str, int]:
        with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=60) as client:
            whole = client.chat.completions.create(model=MODEL, messages=user("hello"), max_tokens=8)
            pieces = client.chat.completions.create(
                model=MODEL, messages=user("hello"), max_tokens=8, stream=True
            )
            parts = [chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices]
            return whole.choices[0].message.content, "".join(parts), len(parts)

    async with fleet() as running:
        whole, streamed, parts = await asyncio.to_thread(ask, running.openai_url)
        assert whole == streamed
        assert parts > 4


async def test_a_stream_without_include_usage_has_none_though_the_router_asked_for_it() -> None:
    async with fleet() as running, sdk(running) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=user("hello"), max_tokens=8, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert all(chunk.choices for chunk in chunks)
        assert all(chunk.usage is None for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"
        [(_, record)] = running.records()
        assert record.json["stream_options"] == {"include_usage": True}
        replicas = running.router.recording.counters.replicas
        assert replicas  # and the router did learn from it
        assert sum(counts.completion_tokens for counts in replicas.values()) == 8


@pytest.mark.parametrize("session", [None, "one"])
async def test_a_stream_with_include_usage_ends_with_it(session: str | None) -> None:
    headers = {"X-Session-ID": session} if session else {}
    async with fleet() as running, sdk(running, default_headers=headers) as client:
        for cached in (0, (500 + 3 - 1) // 16 * 16):
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=user(words(500)),
                max_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
            )
            *chunks, last = [chunk async for chunk in stream]
            assert not last.choices
            assert last.usage is not None
            assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (503, 8)
            assert last.usage.prompt_tokens_details is not None
            assert last.usage.prompt_tokens_details.cached_tokens == cached
            assert all(chunk.usage is None for chunk in chunks)


async def test_a_tool_call_and_the_turn_that_brings_its_result_stay_home() -> None:
    async with fleet(3) as running, sdk(running) as client:
        messages = user("please use get_weather for Oslo. " + words(300))
        first = await client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls
        [call] = message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_weather"
        messages += [
            message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "4 degrees, rain"},
        ]
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, tools=[WEATHER], max_tokens=8
        )
        assert raw.headers["x-homing-decision"] == "home"
        assert raw.parse().choices[0].message.content


async def test_streamed_tool_calls_assemble_to_the_call_that_is_not_streamed() -> None:
    async with fleet() as running, sdk(running) as client:
        asked: Any = {"model": MODEL, "messages": user("use get_weather"), "tools": [WEATHER]}
        whole = (await client.chat.completions.create(**asked)).choices[0].message.tool_calls
        async with client.chat.completions.stream(**asked) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls
        assert whole
        assert streamed
        assert streamed[0].function.arguments == whole[0].function.arguments  # type: ignore[union-attr]
        assert streamed[0].function.name == "get_weather"
        assert final.choices[0].finish_reason == "tool_calls"


# --- the other endpoints ----------------------------------------------------------------------------


async def test_completions_whole_and_streamed() -> None:
    async with fleet() as running, sdk(running) as client:
        whole = await client.completions.create(model=MODEL, prompt=words(200), max_tokens=12)
        stream = await client.completions.create(model=MODEL, prompt=words(200), max_tokens=12, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
        assert whole.choices[0].text == streamed
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (200, 12)


async def test_a_response_is_continued_read_and_deleted_on_the_replica_that_stores_it() -> None:
    async with fleet(4) as running, sdk(running) as client:
        homes = set()
        for number in range(6):
            raw = await client.responses.with_raw_response.create(
                model=MODEL, input=words(100, number), max_output_tokens=8
            )
            first, home = raw.parse(), raw.headers["x-homing-replica"]
            homes.add(home)
            # A continuation carries nothing of the conversation: any other replica would answer 404.
            again = await client.responses.with_raw_response.create(
                model=MODEL, input="go on", previous_response_id=first.id, max_output_tokens=8
            )
            second = again.parse()
            assert again.headers["x-homing-replica"] == home
            assert again.headers["x-homing-decision"] == "home"
            assert second.previous_response_id == first.id
            assert second.usage is not None
            assert second.usage.input_tokens > 100
            assert second.usage.input_tokens_details.cached_tokens >= 96
            kept = await client.responses.retrieve(second.id)
            assert kept.output_text == second.output_text
            await client.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(first.id)
        assert len(homes) > 1


async def test_a_streamed_response_is_pinned_from_its_first_event_on() -> None:
    async with fleet(4) as running, sdk(running) as client:
        for number in range(4):
            stream = await client.responses.create(
                model=MODEL, input=words(100, number), max_output_tokens=16, stream=True
            )
            home = stream.response.headers["x-homing-replica"]
            types = []
            response_id = ""
            async for event in stream:
                types.append(event.type)
                if event.type == "response.output_text.delta":
                    # Its reader may ask for it, or cancel it, from another connection by now.
                    assert pinned(running, response_id) == home
                elif event.type == "response.created":
                    response_id = event.response.id
            assert types[0] == "response.created"
            assert types[-1] in ("response.completed", "response.incomplete")
            again = await client.responses.with_raw_response.create(
                model=MODEL, input="go on", previous_response_id=response_id, max_output_tokens=4
            )
            assert again.headers["x-homing-replica"] == home


def pinned(running: Fleet, response_id: str) -> str | None:
    """Where the router would send a request for a stored response; `None` if it does not know it."""
    turn = Turn("/v1/responses", MODEL, OPEN_TENANT, None, "", EMPTY_CHAIN, response_id)
    decision = running.router.engine.decide(turn, running.router.clock.now())
    return decision.replica if decision.reason == "holds the response" else None


async def test_a_background_response_is_cancelled_where_it_runs() -> None:
    slow = replace(QUICK, time_scale=1.0)
    async with fleet(3, settings=slow) as running, sdk(running) as client:
        for number in range(4):
            queued = await client.responses.create(
                model=MODEL, input=words(20, number), max_output_tokens=2000, background=True
            )
            assert queued.status == "queued"
            cancelled = await client.responses.cancel(queued.id)
            assert cancelled.status == "cancelled"


async def test_a_response_on_a_replica_that_is_gone_is_a_503_that_says_so() -> None:
    async with fleet() as running, sdk(running) as client:
        raw = await client.responses.with_raw_response.create(
            model=MODEL, input=words(50), max_output_tokens=4
        )
        home = raw.headers["x-homing-replica"]
        await running.replicas[home].kill()
        # Nobody has noticed yet: this turn finds it gone, and may go nowhere else.
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model=MODEL, input="go on", previous_response_id=raw.parse().id)
        assert caught.value.status_code == 502
        gone = f"is stored on replica {home}, which is down"
        with pytest.raises(openai.InternalServerError, match=gone) as caught:
            await client.responses.create(model=MODEL, input="go on", previous_response_id=raw.parse().id)
        assert (caught.value.status_code, caught.value.code) == (503, "pinned_gone")


async def test_models_are_listed_and_looked_up() -> None:
    async with fleet() as running, sdk(running) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "vllm"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("other")
        assert caught.value.code == "model_not_found"


async def test_embeddings_as_floats_and_as_the_library_asks_for_them() -> None:
    async with fleet() as running, sdk(running) as client:
        floats = await client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float")
        packed = await client.embeddings.create(model=MODEL, input=["one", "two"])
        assert len(floats.data) == 2
        for one, other in zip(floats.data, packed.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, rel=1e-6)


async def drain(stream: Any, into: list[Any]) -> None:
    async for event in stream:
        into.append(event)


# --- errors -----------------------------------------------------------------------------------------


async def test_a_missing_and_a_wrong_key_raise_authentication_error() -> None:
    async with fleet(keys={"right": "acme"}) as running:
        async with sdk(running, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(model=MODEL, messages=user("hello"))
            assert caught.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with sdk(running, "right") as client:
            assert (await client.chat.completions.create(model=MODEL, messages=user("hello"))).choices
    assert all("authorization" not in record.headers for _, record in running.records())


async def test_an_unknown_model_raises_not_found_and_names_those_that_are_served() -> None:
    async with fleet() as running, sdk(running) as client:
        with pytest.raises(openai.NotFoundError, match=f"served: {MODEL}") as caught:
            await client.chat.completions.create(model="gpt-unknown", messages=user("hello"))
        assert caught.value.code == "model_not_found"
        assert not running.records()


async def test_a_bad_request_is_the_replicas_answer_as_it_is() -> None:
    async with fleet() as running, sdk(running) as client:
        with pytest.raises(openai.BadRequestError, match="one choice") as caught:
            await client.chat.completions.create(model=MODEL, messages=user("hello"), n=2)
        assert caught.value.param == "n"
        # The client's fault: not tried elsewhere, and nobody's health suffers.
        assert len(running.records()) == 1
        assert {running.status(name).recent_failures for name in running.replicas} == {0.0}


async def test_a_rate_limit_of_a_replica_and_of_the_router_raise_rate_limit_error() -> None:
    async with fleet(1, policy={"overload": {"in_flight": 1}}) as running, sdk(running) as client:
        running.replicas["r0"].fault("status:429:7", count=1)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model=MODEL, messages=user("hello"))
        assert caught.value.response.headers["retry-after"] == "7"
        running.replicas["r0"].fault("hold", count=1)
        first = asyncio.ensure_future(client.chat.completions.create(model=MODEL, messages=user("hello")))
        await until(lambda: running.router.engine.in_flight() == 1)
        with pytest.raises(openai.RateLimitError, match="limit") as caught:
            await client.chat.completions.create(model=MODEL, messages=user("hello"))
        assert caught.value.response.headers["retry-after"] == "1"
        running.replicas["r0"].clear_faults()
        assert (await first).choices


async def test_failures_of_replicas_raise_internal_server_error_with_their_status() -> None:
    async with fleet() as running, sdk(running) as client:
        for replica in running.replicas.values():
            replica.fault("garbage")
        with pytest.raises(openai.InternalServerError, match="not HTTP") as caught:
            await client.chat.completions.create(model=MODEL, messages=user("hello"))
        assert (caught.value.status_code, caught.value.type) == (502, "upstream_error")
        for replica in running.replicas.values():
            replica.clear_faults()
            replica.fault("status:503:9")
        with pytest.raises(openai.InternalServerError, match="simulated 503") as caught:
            await client.chat.completions.create(model=MODEL, messages=user("hello"))
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "9"


async def test_one_failing_replica_is_not_noticed_and_the_librarys_own_retry_is_not_needed() -> None:
    async with fleet() as running, sdk(running) as client:
        running.replicas["r0"].fault("status:500")
        for number in range(6):
            answer = await client.chat.completions.create(
                model=MODEL, messages=user(f"hello {number}"), max_tokens=4
            )
            assert answer.choices


async def test_no_replica_up_raises_internal_server_error_503() -> None:
    async with fleet(2, down=("r0", "r1")) as running, sdk(running) as client:
        with pytest.raises(openai.InternalServerError, match="r0 is starting") as caught:
            await client.chat.completions.create(model=MODEL, messages=user("hello"))
        assert (caught.value.status_code, caught.value.code) == (503, "none_healthy")
        assert caught.value.response.headers["retry-after"] == "1"
        assert [model.id async for model in client.models.list()] == []


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
async def test_a_stream_that_breaks_raises_an_api_error_in_its_midst(endpoint: str) -> None:
    async with fleet(1) as running, sdk(running) as client:
        running.replicas["r0"].fault("cut:4")
        stream: Any
        if endpoint == "chat":
            stream = await client.chat.completions.create(model=MODEL, messages=user("hi"), stream=True)
        else:
            stream = await client.responses.create(model=MODEL, input="hi", stream=True)
        seen: list[Any] = []
        with pytest.raises(openai.APIError, match="replica r0 closed the connection"):
            await drain(stream, seen)
        assert seen


# --- departures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_stream_that_is_left_in_its_midst_is_aborted_in_the_replica(how: str) -> None:
    slow = replace(QUICK, time_scale=1.0)
    async with fleet(1, settings=slow) as running, sdk(running) as client:
        begun = asyncio.Event()

        async def read() -> None:
            stream = await client.chat.completions.create(
                model=MODEL, messages=user("hello"), max_tokens=2000, stream=True, extra_body=TO_THE_LIMIT
            )
            async for _ in stream:
                begun.set()
                if how == "close":
                    await stream.close()
                    return

        reading = asyncio.ensure_future(read())
        await asyncio.wait_for(begun.wait(), 60)
        if how == "cancel":
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        replica = running.replicas["r0"]
        await until(lambda: replica.in_flight == 0, 1.0)
        [(_, record)] = running.records()
        assert record.aborted
        assert running.status("r0").recent_failures == 0.0


async def test_a_request_that_is_given_up_before_its_answer_is_aborted_in_the_replica() -> None:
    slow = replace(QUICK, time_scale=0.1)
    async with fleet(1, settings=slow) as running, sdk(running) as client:
        asking = asyncio.ensure_future(
            client.chat.completions.create(
                model=MODEL, messages=user(words(2000)), max_tokens=2000, extra_body=TO_THE_LIMIT
            )
        )
        replica = running.replicas["r0"]
        await until(lambda: replica.in_flight == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: replica.in_flight == 0, 1.0)
        [(_, record)] = running.records()
        assert record.aborted
