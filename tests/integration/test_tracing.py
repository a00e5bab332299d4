"""Traces of a whole router, received by a collector over real HTTP and read by the published schema."""

from typing import Any

import httpx
import pytest
from support.collector import Collector, Seen, collector
from support.fleet import MODEL, Fleet, fleet, make_wait
from support.plane import until

from router.base.ids import OPEN_TENANT
from router.telemetry.span_export import SpanExport

SECRET_TEXT = "a secret of the user's"
CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CHAT = "/v1/chat/completions"


def traced(to: Collector, **more: Any) -> dict[str, Any]:
    return {"telemetry": {"otlp": to.url, "trace_sample": 1, **more}}


def told(running: Fleet, *replica: str) -> str | None:
    """The `traceparent` that a replica, or the only one, got with its latest turn."""
    return running.records(*replica)[-1][1].headers.get("traceparent")


def named_as(span: Seen) -> str:
    return f"00-{span.trace_id}-{span.span_id}-01"


async def ask(running: Fleet, text: str = SECRET_TEXT, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await running.chat([{"role": "user", "content": text}], headers=sent, stream=True)
    return answer.response


async def test_a_streamed_turn_joins_its_client_and_the_replica_joins_it() -> None:
    async with collector() as taking, fleet(2, config=traced(taking)) as running:
        answer = await ask(running, x_session_id="the-users-own-id", traceparent=CLIENT, tracestate="a=1,b=2")
        assert answer.status_code == 200
        [turn] = await taking.named(f"POST {CHAT}")
        [attempt] = await taking.named(f"chat {MODEL}")
        record = running.records()[-1][1]
        assert record.headers["traceparent"] == named_as(attempt)
        assert record.headers["tracestate"] == "a=1,b=2"
        session = running.router.routing.key_of(OPEN_TENANT, "the-users-own-id")
        url = httpx.URL(running.replicas[answer.headers["x-homing-replica"]].url)
        replica = answer.headers["x-homing-replica"]
    assert (turn.kind, attempt.kind) == ("server", "client")
    assert turn.trace_id == attempt.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (turn.parent_id, attempt.parent_id) == ("00f067aa0ba902b7", turn.span_id)
    assert turn.span.trace_state == "a=1,b=2"
    assert turn.span.start_time_unix_nano <= attempt.span.start_time_unix_nano
    assert attempt.span.start_time_unix_nano < attempt.span.end_time_unix_nano
    assert not turn.failed
    assert not attempt.failed
    assert turn.fields == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "homing.session": session,
        "homing.session.source": "x-session-id",
        "homing.kind": "new",
        "homing.replica": replica,
        "homing.attempts": 1,
    }
    fields = attempt.fields
    assert fields["gen_ai.operation.name"] == "chat"
    assert fields["gen_ai.provider.name"] == "vllm"
    assert fields["gen_ai.request.model"] == MODEL
    assert fields["gen_ai.request.stream"] is True
    assert fields["gen_ai.conversation.id"] == session
    assert fields["gen_ai.usage.input_tokens"] == record.prompt_tokens
    assert fields["gen_ai.usage.cache_read.input_tokens"] == record.cached_tokens
    assert fields["gen_ai.usage.output_tokens"] == 16
    assert fields["gen_ai.response.time_to_first_chunk"] > 0
    assert (fields["server.address"], fields["server.port"]) == (url.host, url.port)
    assert turn.resource["service.name"] == "homing"
    for body in taking.bodies:
        for never in (SECRET_TEXT, "the-users-own-id"):
            assert never.encode() not in body


async def test_a_priced_turn_has_its_bill() -> None:
    async with collector() as taking, fleet(3, config=traced(taking)) as running:
        await ask(running, "one two three " * 400, x_session_id="s")
        await ask(running, "one two three " * 400, x_session_id="s")
        [_, home] = await taking.named(f"chat {MODEL}", 2)
        decision = await running.decision()
    fields = home.fields
    assert fields["homing.kind"] == "home"
    assert fields["homing.reason"] == decision["reason"]
    assert fields["homing.predicted.cached_tokens"] == decision["predicted_cached_tokens"] > 0
    assert fields["homing.predicted.prompt_tokens"] == decision["prompt_tokens"]
    assert fields["homing.bill.replicas"] == ["r0", "r1", "r2"]
    assert fields["homing.bill.ways"] == ["local"] * 3
    shown = [option["price_ms"] for option in decision["options"]]
    assert fields["homing.bill.prices_ms"] == pytest.approx(shown, abs=0.001)
    terms = {name: term for name, term in fields.items() if name.startswith("homing.price.")}
    total = terms.pop("homing.price.total_ms")
    assert total == pytest.approx(min(shown), abs=0.001)
    assert sum(terms.values()) == pytest.approx(total)
    assert "homing.price.compute_ms" in terms


async def test_a_turn_that_is_tried_twice_has_a_span_for_each_attempt() -> None:
    async with collector() as taking, fleet(2, config=traced(taking)) as running:
        first = await ask(running, x_session_id="s")
        home = first.headers["x-homing-replica"]
        running.replicas[home].fault("status:503", count=1)
        answer = await ask(running, x_session_id="s", traceparent=CLIENT)
        assert answer.status_code == 200
        other = answer.headers["x-homing-replica"]
        assert other != home
        spans = await taking.named(f"chat {MODEL}", 3)
        [_, turn] = await taking.named(f"POST {CHAT}", 2)
        asked = [told(running, home), told(running, other)]
    failed, served = spans[1:]
    assert (failed.fields["homing.replica"], failed.fields["homing.attempt"]) == (home, 0)
    assert (failed.failed, failed.fields["error.type"]) == (True, "server_error")
    assert (served.fields["homing.replica"], served.fields["homing.attempt"]) == (other, 1)
    assert served.fields["homing.kind"] == "failover"
    assert not served.failed
    assert failed.parent_id == served.parent_id == turn.span_id
    assert failed.span_id != served.span_id
    assert asked == [named_as(failed), named_as(served)]
    assert (turn.failed, turn.fields["homing.attempts"]) == (False, 2)


async def test_a_stream_that_breaks_off_is_a_failed_turn() -> None:
    async with collector() as taking, fleet(1, config=traced(taking)) as running:
        running.replicas["r0"].fault("cut:3", count=1)
        answer = await ask(running)
        assert "event: error" in answer.text or '"error"' in answer.text
        [turn] = await taking.named(f"POST {CHAT}")
        [attempt] = await taking.named(f"chat {MODEL}")
    assert (turn.failed, attempt.failed) == (True, True)
    assert turn.fields["http.response.status_code"] == 200
    assert turn.fields["error.type"] == "upstream_failed"
    assert attempt.fields["error.type"] == "cut"


async def test_a_turn_that_no_replica_gets_says_why() -> None:
    async with collector() as taking, fleet(1, config=traced(taking)) as running:
        refused = await running.chat([{"role": "user", "content": SECRET_TEXT}], model="nowhere")
        assert refused.response.status_code == 404
        [turn] = await taking.named(f"POST {CHAT}")
    assert turn.fields["error.type"] == "no_such_model"
    assert turn.fields["http.response.status_code"] == 404
    assert "homing.replica" not in turn.fields
    # By the conventions for servers: what the client did wrong is no failure of ours.
    assert not turn.failed


async def test_a_held_turn_has_a_span_of_its_wait() -> None:
    rules = {"order": "least-missing", "horizon": "1ms"}
    async with collector() as taking, fleet(1, policy={"queue": rules}, config=traced(taking)) as running:
        answers = await make_wait(running)
        waited = [one for one in answers if "x-homing-waited-ms" in one.response.headers]
        assert waited
        waits = await taking.named("wait", len(waited))
        turns_by_id = {one.span_id: one for one in await taking.named(f"POST {CHAT}", 4)}
        attempts = {one.parent_id: one for one in await taking.named(f"chat {MODEL}", 4)}
    assert len(waits) == len(waited)
    for wait in waits:
        assert wait.kind == "internal"
        assert wait.fields["homing.wait.end"] == "dispatched"
        turn, attempt = turns_by_id[wait.parent_id], attempts[wait.parent_id]
        assert wait.fields["homing.waited_ms"] == pytest.approx(attempt.fields["homing.waited_ms"])
        assert turn.span.start_time_unix_nano <= wait.span.start_time_unix_nano
        assert wait.span.end_time_unix_nano <= attempt.span.end_time_unix_nano


async def test_tenants_are_hashed() -> None:
    keys = {"key-of-acme": "acme-corporation"}
    async with collector() as taking, fleet(1, config=traced(taking), keys=keys) as running:
        await ask(running, authorization="Bearer key-of-acme", x_session_id="s")
        [turn] = await taking.named(f"POST {CHAT}")
        await taking.named(f"chat {MODEL}")
    assert len(turn.fields["homing.tenant"]) == 16
    for body in taking.bodies:
        assert b"acme" not in body


async def test_what_is_not_sampled_is_not_sent_and_replicas_are_told() -> None:
    async with collector() as taking, fleet(1, config=traced(taking, trace_sample=0)) as running:
        await ask(running)
        assert told(running).endswith("-00")
        unsampled = CLIENT[:-1] + "0"
        await ask(running, traceparent=unsampled, tracestate="a=1")
        assert told(running) == unsampled
        assert running.records()[-1][1].headers["tracestate"] == "a=1"
        # The client records its trace, and is followed.
        await ask(running, traceparent=CLIENT)
        [turn] = await taking.named(f"POST {CHAT}")
        assert len(await taking.named(f"chat {MODEL}")) == 1
        assert turn.trace_id in CLIENT


async def test_clients_need_not_be_followed() -> None:
    config = {"trace_sample": 0, "trace_parent": "ignore"}
    async with collector() as taking, fleet(1, config=traced(taking, **config)) as running:
        await ask(running, traceparent=CLIENT)
        assert told(running).startswith(CLIENT[:36])
        assert told(running).endswith("-00")
        assert tally(running).waiting == 0
    assert taking.spans == []


async def test_a_context_that_says_nothing_begins_anew() -> None:
    async with collector() as taking, fleet(1, config=traced(taking)) as running:
        for bad in (
            "00-0-0-01",
            CLIENT.replace("4bf", "4BF"),
            "ff" + CLIENT[2:],
            "00-" + "0" * 32 + CLIENT[35:],
        ):
            await ask(running, traceparent=bad, tracestate="a=1")
            assert "tracestate" not in running.records()[-1][1].headers
        turns = await taking.named(f"POST {CHAT}", 4)
        attempts = await taking.named(f"chat {MODEL}", 4)
    assert {one.parent_id for one in turns} == {""}
    assert len({one.trace_id for one in turns}) == 4
    assert {one.span.trace_state for one in turns} == {""}
    assert {one.trace_id for one in attempts} == {one.trace_id for one in turns}


async def test_without_a_collector_a_clients_context_goes_on_as_any_header() -> None:
    async with fleet(1) as running:
        await ask(running, traceparent=CLIENT, tracestate="a=1")
        assert told(running) == CLIENT
        await ask(running)
        assert told(running) is None
        assert "homing_trace" not in (await running.admin.get("/metrics")).text


async def test_headers_for_the_collector_go_along_and_can_be_replaced() -> None:
    config = {"otlp_headers_file": "headers"}
    files = {"headers": "authorization=Bearer one\nx-org = 7\n"}
    async with (
        collector() as taking,
        fleet(1, config=traced(taking, **config), files=files, reload=True) as running,
    ):
        await ask(running)
        await taking.all(2)
        (running.folder / "headers").write_text("authorization=Bearer two\n")
        assert (await running.admin.post("/api/reload")).status_code == 200
        await ask(running)
        await taking.all(4)
    assert (taking.headers[0]["authorization"], taking.headers[0]["x-org"]) == ("Bearer one", "7")
    assert taking.headers[-1]["authorization"] == "Bearer two"


async def test_without_a_collector_listening_turns_go_on_and_spans_are_counted() -> None:
    config = {"telemetry": {"otlp": "http://127.0.0.1:1", "trace_sample": 1}}
    async with fleet(1, config=config) as running:
        for _ in range(5):
            assert (await ask(running)).status_code == 200
        await until(lambda: tally(running).failing, 20.0)
        text = (await running.admin.get("/metrics")).text
        assert "homing_trace_export_failing 1" in text
        assert "homing_trace_spans_waiting 10" in text
    assert tally(running).lost == 10
    assert tally(running).exported == 0


async def test_what_waits_for_a_silent_collector_is_bounded() -> None:
    async with collector() as taking, fleet(1, config=traced(taking)) as running:
        taking.silent = True
        export = tally(running)
        export._most_spans = 8
        await ask(running)
        await until(lambda: bool(taking.bodies), 20.0)
        for _ in range(10):
            assert (await ask(running)).status_code == 200
        assert export.dropped == 12
        assert export.waiting == 2 + 8
        text = (await running.admin.get("/metrics")).text
        assert 'homing_trace_spans_total{result="dropped"} 12' in text
    assert export.lost == 10


def tally(running: Fleet) -> SpanExport:
    export = running.router.recording.span_export
    assert export is not None
    return export


async def test_a_prompt_that_a_prefill_replica_computes_is_a_span_that_its_own_spans_join() -> None:
    roles = {"r0": {"role": "prefill"}, "r1": {"role": "prefill"}, "r2": {"role": "decode"}}
    async with collector() as taking, fleet(3, config=traced(taking), roles=roles) as running:
        running.replicas["r0"].fault("status:503", count=1)
        running.replicas["r1"].fault("status:503", count=1)
        answer = await ask(running, "one two three " * 400, x_session_id="s", traceparent=CLIENT)
        assert answer.status_code == 200
        [attempt] = await taking.named(f"chat {MODEL}")
        first, second = await taking.named(f"prefill {MODEL}", 2)
        got = {name: told(running, name) for name in ("r0", "r1", "r2")}
        again = await ask(running, "four five six " * 400, x_session_id="t", traceparent=CLIENT[:-2] + "00")
        assert again.status_code == 200
        later = [told(running, again.headers["x-homing-prefill"]), told(running, "r2")]
    # Whoever failed had it first; decode computed what neither did.
    assert {first.fields["homing.replica"], second.fields["homing.replica"]} == {"r0", "r1"}
    assert [one.fields["homing.attempt"] for one in (first, second)] == [0, 1]
    assert [one.fields["error.type"] for one in (first, second)] == ["server_error"] * 2
    assert first.parent_id == second.parent_id == attempt.span_id
    assert attempt.trace_id == first.trace_id == CLIENT[3:35]
    for one in (first, second):
        assert got[str(one.fields["homing.replica"])] == named_as(one)
    assert got["r2"] == named_as(attempt)
    # Of what is not recorded here, no replica begins a trace of its own.
    assert later == [CLIENT[:-2] + "00"] * 2
