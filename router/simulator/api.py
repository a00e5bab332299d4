"""The HTTP API of a simulated replica: vLLM's endpoints, its errors, and the `/sim` endpoints for tests.

One `Api` is one life of the replica: it starts cold, and a restart makes another.
"""

import asyncio
import base64
import itertools
import struct
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

import orjson
from aiohttp import web
from xxhash import xxh3_64_intdigest

from router import __version__
from router.base.errors import HomingError
from router.simulator import prompts, tokens
from router.simulator.agent import SimulatedAgent
from router.simulator.body import Body
from router.simulator.calls import Call, HangError, Record, Wish, abort, never
from router.simulator.driver import Driver
from router.simulator.faults import Fault, FaultPlan, Kind
from router.simulator.handoffs import PATH, BrokenError, Handoffs, fetch_of
from router.simulator.metrics import CONTENT_TYPE, Snapshot, exposition
from router.simulator.mishaps import Control, Mishaps
from router.simulator.model import EngineModel, Job
from router.simulator.prompts import BadPrompt, Message, Prompt
from router.simulator.refusals import (
    Refusal,
    error_answer,
    json_answer,
    read_object,
    token_limit,
    whole_number,
)
from router.simulator.replies import Reply, reply
from router.simulator.running import Listening, Running
from router.simulator.settings import ReplicaSettings
from router.simulator.stored import Stored, StoredResponses
from router.simulator.wire import Chat, Completion, Facts, Messages, Responses, Wire

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
EMBEDDING_SIZE: Final = 64

_NOT_RECORDED: Final = ("/health", "/metrics", "/sim/")

Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Api:
    """One life of a replica: its engine, its records and its endpoints."""

    def __init__(
        self,
        settings: ReplicaSettings,
        control: Control,
        *,
        keep: int,
        faults: FaultPlan,
        agent: SimulatedAgent | None = None,
    ) -> None:
        """`keep` requests are remembered. Made on the loop's thread, while it runs."""
        self.settings = settings
        self.agent = agent
        self.model = EngineModel(settings)
        self.driver = Driver(self.model, time_scale=settings.time_scale)
        self.faults = faults
        self.mishaps = Mishaps(faults, control)
        self.handoffs = Handoffs(settings, f"{settings.name}-{uuid.uuid4().hex[:8]}")
        self.records: deque[Record] = deque(maxlen=keep)
        self.start_time = time.time()
        self.running = Running(settings, self.model, self.driver, self.handoffs, agent)
        self.busy: set[object] = set()
        """Transports on which a request is being answered."""
        self.on_tokens: Callable[[Sequence[int], bytes], None] | None = None
        """Is told of which tokens the blocks of each request are made."""
        self._control = control
        self._numbers = itertools.count()
        self._stored = StoredResponses(self.running.abort)

    def application(self) -> web.Application:
        routes: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/health", self._health),
            ("GET", "/version", self._version),
            ("GET", "/metrics", self._metrics),
            ("GET", "/v1/models", self._models),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._completions),
            ("POST", "/v1/messages", self._messages),
            ("POST", "/v1/messages/count_tokens", self._count_tokens),
            ("POST", "/v1/chat/completions/render", self._render_chat),
            ("POST", "/v1/completions/render", self._render_completion),
            ("POST", "/v1/embeddings", self._embeddings),
            ("POST", PATH, self._sim_fetch),
            ("POST", "/v1/responses", self._responses),
            ("GET", "/v1/responses/{id}", self._get_response),
            ("POST", "/v1/responses/{id}/cancel", self._cancel_response),
            ("DELETE", "/v1/responses/{id}", self._delete_response),
            ("GET", "/sim/requests", self._sim_requests),
            ("GET", "/sim/state", self._sim_state),
            ("POST", "/sim/faults", self._sim_arm),
            ("DELETE", "/sim/faults", self._sim_clear),
        )
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for method, path, handler in routes:
            app.router.add_route(method, path, self._around(handler))
        for path in dict.fromkeys(path for _, path, _ in routes):
            app.router.add_route("*", path, self._around(self._other_method))
        app.router.add_route("*", "/{path:.*}", self._around(self._unknown))
        return app

    # Around every request

    def _around(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Record each request, do what a fault wants, and turn refusals into answers."""

        async def answer(request: web.Request) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            record = Record(request.method, request.path, headers, at=self.driver.now())
            if not request.path.startswith(_NOT_RECORDED):
                self.records.append(record)
            self.busy.add(request.transport)
            try:
                record.body = await request.read()
                response = await self._handle(Call(request, record), handler)
                record.status = response.status
                return response
            except asyncio.CancelledError:
                record.aborted = True
                raise
            except ConnectionError:
                # A write met a connection that is gone, just ahead of the cancellation that says so.
                record.aborted = True
                return await never()
            finally:
                self.busy.discard(request.transport)

        return answer

    async def _handle(self, call: Call, handler: Handler) -> web.StreamResponse:
        try:
            fault = None if call.record.path.startswith("/sim/") else self.mishaps.of(call.request)
            if fault is not None:
                call.record.fault = fault.kind
                instead = await self.mishaps.befall(call, fault)
                if instead is not None:
                    return instead
            return await handler(call)
        except Refusal as refusal:
            return error_answer(call.record.path, refusal)
        except HangError:
            return await never()
        except BadPrompt as error:
            return error_answer(call.record.path, Refusal(400, str(error)))

    # Generation

    async def _chat(self, call: Call) -> web.StreamResponse:
        body = self._body(call)
        options = body.get("stream_options") or {}
        facts, job = self._accept(call, body, prompts.chat(body), "chatcmpl-", token_limit(body))
        wire = Chat(
            facts,
            usage=bool(options.get("include_usage")),
            continuous=bool(options.get("continuous_usage_stats")),
        )
        return await self._answer(call, job, facts, wire, stream=bool(body.get("stream")))

    async def _completions(self, call: Call) -> web.StreamResponse:
        body = self._body(call)
        options = body.get("stream_options") or {}
        facts, job = self._accept(call, body, prompts.completion(body), "cmpl-", token_limit(body))
        wire = Completion(facts, usage=bool(options.get("include_usage")))
        return await self._answer(call, job, facts, wire, stream=bool(body.get("stream")))

    async def _messages(self, call: Call) -> web.StreamResponse:
        body = self._body(call)
        if not self.settings.salts_messages:
            body = {name: value for name, value in body.items() if name != "cache_salt"}
        limit = token_limit(body)
        if limit is None:
            raise Refusal(400, "max_tokens: Field required")
        facts, job = self._accept(call, body, prompts.anthropic(body), "chatcmpl-", limit)
        return await self._answer(call, job, facts, Messages(facts), stream=bool(body.get("stream")))

    async def _count_tokens(self, call: Call) -> web.Response:
        return json_answer({"input_tokens": tokens.count(prompts.anthropic(self._body(call)).tokens)})

    async def _responses(self, call: Call) -> web.StreamResponse:
        body = self._body(call)
        previous = body.get("previous_response_id")
        messages = prompts.responses_input(body)
        if previous is not None:
            before = self._stored.find(previous)
            if before.job_id is not None:
                raise Refusal(400, f"Response with id '{previous}' is not complete.")
            messages = before.messages + messages
        prompt = prompts.responses(body, messages)
        facts, job = self._accept(call, body, prompt, "resp_", token_limit(body))
        store, background = body.get("store") is not False, bool(body.get("background"))
        wire = Responses(facts, previous=previous, store=store)
        if background and not store:
            raise Refusal(400, "background can only be used when `store` is true", param="background")
        stored = Stored(wire.snapshot("queued" if background else "in_progress"))

        def keep(cached: int) -> None:
            stored.snapshot = wire.whole(cached)
            stored.messages = [*messages, _said(facts.reply)]
            stored.job_id = None
            if store:
                self._stored.keep(stored)

        if not background:
            streamed = bool(body.get("stream"))
            return await self._answer(call, job, facts, wire, stream=streamed, then=keep)
        stored.job_id = job.id
        self._stored.keep(stored)
        listening = Listening(self.running, None, call.record, _reason(facts.reply), then=keep)
        self.driver.submit(job, listening)
        return json_answer(stored.snapshot)

    async def _embeddings(self, call: Call) -> web.StreamResponse:
        body = self._body(call)
        given = body.get("input")
        # A list of numbers is one text as token ids.
        listed = (
            given if isinstance(given, list) and not all(isinstance(one, int) for one in given) else [given]
        )
        if not listed:
            raise Refusal(400, "input: must not be empty")
        rendered = [prompts.completion({"prompt": text}).tokens for text in listed]
        total = sum(map(tokens.count, rendered))
        if max(map(tokens.count, rendered)) >= self.settings.context_tokens:
            raise self._too_long(max(map(tokens.count, rendered)), None)
        record = call.record
        record.prompt_tokens = total
        for text in rendered:
            await self.running.run(
                call, self._job(body, text, b"", 1), Listening(self.running, None, record, "stop")
            )
        data = [
            {"index": index, "object": "embedding", "embedding": _vector(text, body.get("encoding_format"))}
            for index, text in enumerate(rendered)
        ]
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0}
        answer = {
            "id": f"embd-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": self.settings.model,
            "data": data,
            "usage": usage,
        }
        return await self._send(call, answer)

    def _accept(
        self, call: Call, body: prompts.Body, prompt: Prompt, prefix: str, limit: int | None
    ) -> tuple[Facts, Job]:
        """Decide on the reply and make the engine's job. Refuses what the context cannot hold."""
        if body.get("n") not in (None, 1):
            raise Refusal(400, "n: a simulated replica gives one choice", param="n")
        length = tokens.count(prompt.tokens)
        room = self.settings.context_tokens - length
        if room < 1 or (limit is not None and limit > room):
            raise self._too_long(length, limit)
        made = reply(
            prompt,
            max_tokens=limit if limit is not None else room,
            min_tokens=min(whole_number(body, "min_tokens") or 0, room),
            ignore_eos=limit is not None and body.get("ignore_eos") is True,
        )
        record = call.record
        record.prompt_tokens = length
        name = call.request.headers.get("X-Request-Id") or uuid.uuid4().hex
        facts = Facts(prefix + name, self.settings.model, int(time.time()), length, made)
        job = self._job(body, prompt.tokens, made.tokens, len(made.pieces))
        params = body.get("kv_transfer_params")
        call.wish = Wish(
            prefix + name, str(body.get("cache_salt") or ""), params if isinstance(params, dict) else None
        )
        session = call.request.headers.get("X-Session-ID") or body.get("session_id")
        job = job._replace(session=str(session) if session else None)
        if body.get("return_token_ids"):
            facts = facts._replace(prompt_ids=tokens.to_ids(prompt.tokens))
        if isinstance(params, dict) and params:
            facts, job = self._hand_on(call, params, facts, job)
        return facts, job

    def _hand_on(self, call: Call, params: dict[str, Any], facts: Facts, job: Job) -> tuple[Facts, Job]:
        """What a request fetches first, and what it keeps for others, as its parameters say."""
        try:
            call.fetch = fetch_of(params, facts.prompt_tokens, self.settings)
        except BrokenError as error:
            if error.dies:
                self._control.die()
            raise HangError from None
        transport = call.request.transport
        host, port = transport.get_extra_info("sockname")[:2] if transport is not None else ("", 0)
        # The last token is sampled and never computed.
        known = facts.prompt_tokens + len(facts.reply.pieces) - 1
        call.offer = self.handoffs.offer(params, facts.id, host, port, known)
        facts = facts._replace(offer=call.offer, streams_offer=self.settings.streams_offer)
        blocks = call.fetch.blocks if call.fetch is not None else 0
        return facts, job._replace(pulled=blocks, keep=call.offer is not None)

    def _job(self, body: prompts.Body, prompt: bytes, generated: bytes, output_tokens: int) -> Job:
        start = tokens.root(self.settings.model, salt=str(body.get("cache_salt") or ""))
        hashes = tokens.block_hashes(start, prompt + generated, self.settings.block_size)
        if self.on_tokens is not None:
            self.on_tokens(hashes, prompt + generated)
        return Job(str(next(self._numbers)), tokens.count(prompt), output_tokens, hashes)

    async def _answer(
        self,
        call: Call,
        job: Job,
        facts: Facts,
        wire: Wire,
        *,
        stream: bool,
        then: Callable[[int], None] | None = None,
    ) -> web.StreamResponse:
        record, reason = call.record, _reason(facts.reply)
        if not stream:
            listening = Listening(self.running, wire, record, reason, then=then)
            await self.running.run(call, job, listening)
            return await self._send(call, wire.whole(listening.cached))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(call.request)
        transport = call.request.transport
        if transport is None:
            return await never()
        body = Body(transport, chunked=call.request.version >= (1, 1), fault=call.fault)
        await self.running.run(call, job, Listening(self.running, wire, record, reason, body=body, then=then))
        await body.sent()
        await response.write_eof()
        return response

    async def _send(self, call: Call, answer: dict[str, Any]) -> web.StreamResponse:
        """A whole answer, or what a fault leaves of it: nothing for a while, or its first half."""
        fault = call.fault
        if fault is not None and fault.kind is Kind.SLOW:
            await asyncio.sleep(fault.amount)
        if fault is None or fault.kind is not Kind.CUT:
            return json_answer(answer)
        whole = orjson.dumps(answer)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(whole)
        await response.prepare(call.request)
        await response.write(whole[: len(whole) // 2])
        abort(call.request.transport)
        return await never()

    # Stored responses

    async def _get_response(self, call: Call) -> web.Response:
        return json_answer(self._stored.find(call.request.match_info["id"]).snapshot)

    async def _cancel_response(self, call: Call) -> web.Response:
        return json_answer(self._stored.cancel(call.request.match_info["id"]))

    async def _delete_response(self, call: Call) -> web.Response:
        response_id = call.request.match_info["id"]
        self._stored.delete(response_id)
        return json_answer({"id": response_id, "object": "response", "deleted": True})

    # The rest of vLLM's endpoints

    async def _unknown(self, _call: Call) -> web.Response:
        return json_answer({"detail": "Not Found"}, status=404)

    async def _other_method(self, _call: Call) -> web.Response:
        return json_answer({"detail": "Method Not Allowed"}, status=405)

    async def _health(self, _call: Call) -> web.Response:
        return web.Response()

    async def _version(self, _call: Call) -> web.Response:
        return json_answer({"version": f"{__version__}+sim"})

    async def _metrics(self, _call: Call) -> web.Response:
        stats = self.driver.stats()
        shown = Snapshot(
            self.settings, stats, self.model, self.running.ttft, self.running.ended, self.start_time
        )
        return web.Response(body=exposition(shown).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _models(self, _call: Call) -> web.Response:
        card = {
            "id": self.settings.model,
            "object": "model",
            "created": int(self.start_time),
            "owned_by": "vllm",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.context_tokens,
            "permission": [],
        }
        return json_answer({"object": "list", "data": [card]})

    async def _tokenize(self, call: Call) -> web.Response:
        body = self._body(call)
        prompt = prompts.chat(body) if "messages" in body else prompts.completion(body)
        ids = tokens.to_ids(prompt.tokens)
        answer = {"count": len(ids), "max_model_len": self.settings.context_tokens, "tokens": ids}
        return json_answer(answer | {"token_strs": None})

    async def _detokenize(self, call: Call) -> web.Response:
        given = self._body(call).get("tokens")
        if not isinstance(given, list):
            raise Refusal(400, "tokens: a list of token ids is needed")
        try:
            return json_answer({"prompt": tokens.decode(tokens.from_ids(given))})
        except ValueError as error:
            raise Refusal(400, f"tokens: {error}") from None

    async def _render_chat(self, call: Call) -> web.Response:
        return json_answer({"token_ids": tokens.to_ids(prompts.chat(self._body(call)).tokens)})

    async def _render_completion(self, call: Call) -> web.Response:
        return json_answer([{"token_ids": tokens.to_ids(prompts.completion(self._body(call)).tokens)}])

    # Between replicas

    async def _sim_fetch(self, call: Call) -> web.Response:
        """What another replica fetches: not bytes, but which blocks they are."""
        body = read_object(call.record.body)
        hashes = self.handoffs.fetch(str(body.get("request")))
        if hashes is None or body.get("engine") != self.handoffs.engine_id:
            return json_answer({"hashes": None}, status=404)
        return json_answer({"hashes": list(hashes)})

    # For tests

    async def _sim_requests(self, _call: Call) -> web.Response:
        return json_answer({"requests": [record.shown() for record in self.records]})

    async def _sim_state(self, _call: Call) -> web.Response:
        stats = self.driver.stats()
        state = {
            "name": self.settings.name,
            "start_time": self.start_time,
            "in_flight": self.model.in_flight,
            "running": stats.running,
            "waiting": stats.waiting,
            "loading": stats.loading,
            "kv_usage": stats.kv_usage,
            "kept": len(self.handoffs),
            "fetched_blocks": self.handoffs.fetched_blocks,
            "wrong_blocks": self.handoffs.wrong_blocks,
            "ended": self.running.ended,
            "kv_agent": None if self.agent is None else self.agent.figures(),
        }
        return json_answer(state)

    async def _sim_arm(self, call: Call) -> web.Response:
        body = read_object(call.record.body)
        try:
            fault = Fault.parse(str(body.get("fault")))
            self.mishaps.arm(fault, count=whole_number(body, "count"), path=str(body.get("path") or "/"))
        except HomingError as error:
            raise Refusal(400, str(error)) from None
        return json_answer({"armed": body.get("fault")})

    async def _sim_clear(self, _call: Call) -> web.Response:
        self.faults.clear()
        return json_answer({"armed": None})

    def close(self) -> None:
        """The life ends: forget everything in flight and all that is kept."""
        self.handoffs.close()
        self.driver.close()

    # Reading a request

    def _body(self, call: Call) -> dict[str, Any]:
        """The body, an object that names no other model than ours."""
        body = read_object(call.record.body)
        model = body.get("model")
        if model is not None and model != self.settings.model:
            raise Refusal(404, f"The model `{model}` does not exist.", param="model")
        return body

    def _too_long(self, prompt_tokens: int, limit: int | None) -> Refusal:
        return Refusal(
            400,
            f"This model's maximum context length is {self.settings.context_tokens} tokens. However, you "
            f"requested {limit or 1} output tokens and your prompt contains {prompt_tokens} input tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )


def _reason(made: Reply) -> str:
    """Why the engine stops: a tool call ends like any other text."""
    return "length" if made.finish == "length" else "stop"


def _said(made: Reply) -> Message:
    """A reply as the message that it is in the next turn."""
    if made.call is not None:
        return Message("assistant", b"", (made.call,))
    return Message("assistant", tokens.encode(made.text))


def _vector(text: bytes, encoding: object) -> list[float] | str:
    chance = Random(xxh3_64_intdigest(text))
    vector = [chance.uniform(-1, 1) for _ in range(EMBEDDING_SIZE)]
    if encoding == "base64":
        return base64.b64encode(struct.pack(f"<{EMBEDDING_SIZE}f", *vector)).decode()
    return vector
