"""The whole router before simulated replicas: where turns go, what replicas see, what people are shown."""

import asyncio
import re
import statistics
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.fleet import LASTING, MODEL, QUICK, Answered, Fleet, fleet, words
from support.plane import until

from router.base.ids import TenantId
from router.explain import ask_admin
from router.simulator.faults import Fault
from router.simulator.faults import Kind as FaultKind

SOON = "50ms"
"""Between two looks at a replica, for tests that wait for the next one."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def converse(
    running: Fleet, turns: int, seed: object, *, headers: Mapping[str, str] | None = None, size: int = 400
) -> list[Answered]:
    """A conversation that sends its whole history with each turn, as agents do."""
    messages = [user(words(size, seed))]
    answers = []
    for number in range(turns):
        answer = await running.chat(messages, headers=headers or {})
        assert answer.response.status_code == 200, answer.response.text
        answers.append(answer)
        messages += [answer.message, user(words(60, (seed, number)))]
    return answers


# --- sessions go home -------------------------------------------------------------------------------


async def test_turns_of_one_session_go_to_one_replica_among_many_sessions_at_once() -> None:
    async with fleet(4) as running:
        sessions = await asyncio.gather(
            *(converse(running, 4, number, headers={"X-Session-ID": f"s{number}"}) for number in range(16))
        )
        for answers in sessions:
            assert [answer.kind for answer in answers] == ["new", "home", "home", "home"]
            assert len({answer.replica for answer in answers}) == 1
            # What the replica says is what counts: all but the last turn's news was there.
            assert all(answer.cached > 350 for answer in answers[1:])
        assert len({answers[0].replica for answers in sessions}) == 4


async def test_a_conversation_without_any_id_sticks_too() -> None:
    async with fleet(4) as running:
        sessions = await asyncio.gather(*(converse(running, 3, number) for number in range(12)))
        for answers in sessions:
            assert [answer.kind for answer in answers] == ["new", "home", "home"]
            assert len({answer.replica for answer in answers}) == 1
        assert len({answers[0].replica for answers in sessions}) > 1


async def test_a_history_that_was_compacted_stays_home_by_its_id() -> None:
    async with fleet(4) as running:
        for number in range(6):
            headers = {"X-Session-ID": f"s{number}"}
            answers = await converse(running, 2, number, headers=headers)
            compacted = [user("Summary of the work so far: " + words(100, ("summary", number)))]
            answer = await running.chat(compacted, headers=headers)
            assert (answer.replica, answer.kind) == (answers[0].replica, "home")
            # It is known that nearly nothing of the new text lies there.
            assert (await running.decision())["predicted_cached_tokens"] < 30


async def test_adding_a_replica_moves_only_new_sessions() -> None:
    async with fleet(3) as running:
        homes = {}
        for number in range(20):
            [answer] = await converse(running, 1, number, headers={"X-Session-ID": f"s{number}"})
            homes[number] = answer.replica
        added = await running.add_replica("r3")
        for number, home in homes.items():
            answer = await running.chat(
                [user(words(400, number)), assistant("ok"), user("go on")],
                headers={"X-Session-ID": f"s{number}"},
            )
            assert (answer.replica, answer.kind) == (home, "home")
        assert not running.records("r3")
        fresh = [
            (await converse(running, 1, number, headers={"X-Session-ID": f"s{number}"}))[0].replica
            for number in range(100, 130)
        ]
        assert set(fresh) == {"r0", "r1", "r2", "r3"}
        assert added.in_flight == 0


@pytest.mark.parametrize(
    "header",
    [
        "X-Session-ID",
        "x_session_id",
        "X-Claude-Code-Session-Id",
        "x_claude_code_session_id",
        "Session-Id",
        "SESSION_ID",
        "X-LiteLLM-Session-Id",
    ],
)
async def test_every_configured_header_names_the_session_however_it_is_written(header: str) -> None:
    async with fleet(3) as running:
        first = await running.chat([user(words(50, 1))], headers={header: "one"})
        # Another conversation altogether: only the id can bring it home.
        second = await running.chat([user(words(50, 2))], headers={header: "one"})
        assert (second.replica, second.kind) == (first.replica, "home")
        [session] = (await running.admin.get("/api/sessions")).json()["sessions"]
        assert session["source"] == header.lower().replace("_", "-")
        keys = {record.headers["x-session-id"] for _, record in running.records()}
        assert keys == {running.router.routing.key_of(TenantId(""), "one")}
        # The client's own spelling does not go on beside the key.
        assert not [name for _, record in running.records() for name in record.headers if "_" in name]
        assert "session-id" not in running.records()[0][1].headers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_cache_key", {"prompt_cache_key": "one"}),
        ("metadata.session_id", {"metadata": {"session_id": "one", "other": 1}}),
        ("session_id", {"session_id": "one"}),
    ],
)
async def test_every_configured_body_field_names_the_session(field: str, value: dict[str, Any]) -> None:
    async with fleet(3) as running:
        first = await running.chat([user(words(50, 1))], **value)
        second = await running.chat([user(words(50, 2))], **value)
        assert (second.replica, second.kind) == (first.replica, "home")
        [session] = (await running.admin.get("/api/sessions")).json()["sessions"]
        assert session["source"] == field
        # Which is the session that the header of the same value names.
        third = await running.chat([user(words(50, 3))], headers={"X-Session-ID": "one"})
        assert (third.replica, third.kind) == (first.replica, "home")


async def test_a_header_comes_before_the_body_and_an_empty_one_is_none() -> None:
    async with fleet(3) as running:
        home = await running.chat([user("a")], headers={"X-Session-ID": "one"})
        both = await running.chat([user("b")], headers={"X-Session-ID": "one"}, prompt_cache_key="two")
        assert (both.replica, both.kind) == (home.replica, "home")
        empty = await running.chat([user("c")], headers={"X-Session-ID": ""}, prompt_cache_key="one")
        assert (empty.replica, empty.kind) == (home.replica, "home")
        # `user` names a person with many conversations, so it is no session unless a policy says so.
        assert (await running.chat([user("d")], user="one")).kind == "new"


# --- coding agents ----------------------------------------------------------------------------------


def agent_body(turn: int, seed: object) -> dict[str, Any]:
    """Turn `turn` of a coding agent, as it sends it: marks roll forward, a nonce opens the system prompt.

    Shaped after recorded requests of such an agent; the texts are made up.
    """
    mark = {"cache_control": {"type": "ephemeral"}}
    tools = [
        {
            "name": name,
            "description": words(80, name),
            "input_schema": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        }
        for name in ("Read", "Edit", "Bash")
    ]
    tools[-1] |= mark
    system = [
        {
            "type": "text",
            "text": f"x-anthropic-billing-header: cc_version=2.0.37.{turn}; cch={uuid.uuid4().hex[:5]};",
        },
        {"type": "text", "text": "You are a coding agent.", **mark},
        {"type": "text", "text": words(1200, "rules"), **mark},
    ]
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nBe careful.\n</system-reminder>"},
                {"type": "text", "text": f"Please mend the build. {words(100, seed)}"},
            ],
        }
    ]
    for number in range(turn):
        call = {
            "type": "tool_use",
            "id": f"toolu_{number:024}",
            "name": "Read",
            "input": {"path": f"/src/{number}.py"},
        }
        messages += [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": words(30, (seed, number, "said"))}, call],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call["id"],
                        "content": words(200, (seed, number, "file")),
                    }
                ],
            },
        ]
    # The marks are on the last two messages of the user and leave those that had them the turn before.
    for message in [message for message in messages if message["role"] == "user"][-2:]:
        message["content"][-1] |= mark
    return {
        "model": MODEL,
        "max_tokens": 32,
        "stream": True,
        "temperature": 1,
        "system": system,
        "tools": tools,
        "messages": messages,
        "metadata": {"user_id": "user_0123_account__session_4567"},
    }


@pytest.mark.parametrize("session", [None, "6f9619ff-8b86-d011-b42d-00cf4fc964ff"])
async def test_turns_of_a_coding_agent_share_their_prefix(session: str | None) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
    if session is not None:
        headers["X-Claude-Code-Session-Id"] = session
    async with fleet(3) as running:
        predicted, replicas = [], set()
        for turn in range(5):
            answer = await running.client.post(
                "/v1/messages?beta=true", json=agent_body(turn, "task"), headers=headers
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-homing-decision"] == ("home" if turn else "new")
            replicas.add(answer.headers["x-homing-replica"])
            predicted.append((await running.decision())["predicted_cached_tokens"])
        assert len(replicas) == 1
        delivered = [record.cached_tokens for _, record in running.records()]
        prompts = [record.prompt_tokens for _, record in running.records()]
        assert predicted[0] == delivered[0] == 0
        for turn in range(1, 5):
            # The whole prompt of the turn before, but for the block that it did not fill.
            assert delivered[turn] >= prompts[turn - 1] - 16
            assert predicted[turn] == pytest.approx(delivered[turn], abs=60)
        assert predicted == sorted(predicted)


async def test_sessions_of_a_coding_agent_share_the_system_prompt_and_nothing_more() -> None:
    async with fleet(1) as running:
        for seed in ("one task", "another task"):
            await running.client.post("/v1/messages", json=agent_body(2, seed))
        [first, second] = [record for _, record in running.records()]
        decision = await running.decision()
        assert (first.cached_tokens, decision["kind"]) == (0, "new")
        # Tools and rules: 1,200 words of rules and 3 × 80 of tools, no word of the task.
        assert second.cached_tokens == pytest.approx(1510, abs=60)
        assert decision["predicted_cached_tokens"] == pytest.approx(second.cached_tokens, abs=300)


# --- tenants ----------------------------------------------------------------------------------------


async def test_two_tenants_with_equal_ids_and_equal_prompts_never_meet() -> None:
    keys = {"key-of-acme": "acme", "key-of-beta": "beta"}
    async with fleet(1, keys=keys, api_keys={"r0": "key-of-replica"}) as running:
        messages = [user(words(500))]
        for key in keys:
            headers = {"Authorization": f"Bearer {key}", "X-Session-ID": "same"}
            first = await running.chat(messages, headers=headers)
            # Whoever comes second finds nothing, neither here nor in the engine.
            assert (first.kind, first.cached) == ("new", 0)
            assert (await running.decision())["predicted_cached_tokens"] == 0
            again = await running.chat(messages, headers=headers)
            assert (again.kind, again.cached) == ("home", (500 + 3 - 1) // 16 * 16)
        sessions = (await running.admin.get("/api/sessions")).json()["sessions"]
        assert {session["tenant"] for session in sessions} == {"acme", "beta"}
        assert len({session["key"] for session in sessions}) == 2
        acme, _, beta, _ = [record for _, record in running.records()]
        assert acme.headers["x-session-id"] != beta.headers["x-session-id"]
        assert acme.json["cache_salt"] != beta.json["cache_salt"]
        for _, record in running.records():
            assert record.headers["authorization"] == "Bearer key-of-replica"
            assert "key-of-acme" not in f"{record.headers}{record.body!r}"
            assert "key-of-beta" not in f"{record.headers}{record.body!r}"
            assert "same" not in record.headers.values()


async def test_two_tenants_without_ids_never_meet_either() -> None:
    keys = {"key-of-acme": "acme", "key-of-beta": "beta"}
    async with fleet(1, keys=keys) as running:
        seen = set()
        for key in keys:
            [first, second] = await converse(running, 2, "same", headers={"x-api-key": key})
            assert [(first.kind, first.cached), second.kind] == [("new", 0), "home"]
        for _, record in running.records():
            seen.add((record.headers["x-session-id"], record.json["cache_salt"]))
        assert len(seen) == 2


async def test_a_tenant_cannot_choose_its_salt_or_its_session_upstream() -> None:
    keys = {"key-of-acme": "acme", "key-of-beta": "beta"}
    async with fleet(1, keys=keys) as running:
        await running.chat([user(words(200))], headers={"x-api-key": "key-of-acme"})
        [(_, acme)] = running.records()
        stolen = {"cache_salt": acme.json["cache_salt"], "session_id": "x", "priority": -5}
        answer = await running.chat(
            [user(words(200))],
            headers={"x-api-key": "key-of-beta", "X-Session-ID": acme.headers["x-session-id"]},
            **stolen,
        )
        assert (answer.kind, answer.cached) == ("new", 0)
        beta = running.records()[1][1]
        assert beta.headers["x-session-id"] != acme.headers["x-session-id"]
        assert beta.json["cache_salt"] != acme.json["cache_salt"]
        assert not {"session_id", "priority"} & set(beta.json)


async def test_a_stored_response_is_its_tenants_alone() -> None:
    keys = {"key-of-acme": "acme", "key-of-beta": "beta"}
    async with fleet(1, keys=keys) as running:
        acme, beta = ({"x-api-key": key} for key in keys)
        created = await running.client.post(
            "/v1/responses", json={"model": MODEL, "input": "a secret"}, headers=acme
        )
        name = created.json()["id"]
        assert (await running.client.get(f"/v1/responses/{name}", headers=acme)).status_code == 200
        before = len(running.records())
        for method, path, body in (
            ("GET", f"/v1/responses/{name}", None),
            ("DELETE", f"/v1/responses/{name}", None),
            ("POST", f"/v1/responses/{name}/cancel", None),
            ("POST", "/v1/responses", {"model": MODEL, "input": "go on", "previous_response_id": name}),
        ):
            refused = await running.client.request(method, path, json=body, headers=beta)
            assert refused.status_code == 404, path
            assert name in refused.json()["error"]["message"]
        assert len(running.records()) == before


# --- replicas that come and go ----------------------------------------------------------------------


async def test_a_restarted_replica_is_cold_after_the_next_look_at_it() -> None:
    async with fleet(1, probe=SOON) as running:
        headers = {"X-Session-ID": "one"}
        [*_, last] = await converse(running, 3, 1, headers=headers)
        assert (last.kind, last.cached > 400) == ("home", True)
        assert running.status("r0").index_segments
        await running.replicas["r0"].restart()
        await until(lambda: running.status("r0").restarts == 1)
        status = running.status("r0")
        assert (status.index_segments, status.working_set_tokens, status.sessions) == (0, 0, 0)
        await until(lambda: running.status("r0").health in ("healthy", "probation"))
        answer = await running.chat([user(words(400, 1)), assistant("ok"), user("go on")], headers=headers)
        assert (answer.kind, answer.cached) == ("new", 0)
        assert (await running.decision())["predicted_cached_tokens"] == 0
        assert 'homing_restarts_total{replica="r0"} 1' in (await running.admin.get("/metrics")).text


async def test_models_are_the_union_of_replicas_that_are_up_and_each_gets_its_own() -> None:
    models = [replace(QUICK, model="large"), replace(QUICK, model="small"), replace(QUICK, model="gone")]
    async with fleet(3, settings=models, down=("r2",)) as running:
        listed = (await running.client.get("/v1/models")).json()
        assert [card["id"] for card in listed["data"]] == ["large", "small"]
        for model, replica in (("large", "r0"), ("small", "r1")):
            for number in range(5):
                answer = await running.chat([user(words(20, number))], model=model)
                assert answer.replica == replica
        missing = await running.chat([user("hello")], model="nowhere")
        assert missing.response.status_code == 404
        assert "large, small" in missing.json["error"]["message"]


async def test_a_router_with_no_replica_up_says_so_and_serves_once_one_is() -> None:
    async with fleet(2, down=("r0", "r1"), probe=SOON) as running:
        refused = await running.chat([user("hello")])
        assert refused.response.status_code == 503
        assert refused.response.headers["retry-after"] == "1"
        message = refused.json["error"]["message"]
        assert re.search(r"no replica can take this turn: r0 is starting .*, r1 is starting", message)
        ready = await running.admin.get("/readyz")
        assert (ready.status_code, len(ready.json()["reasons"])) == (503, 2)
        assert (await running.client.get("/health")).status_code == 200
        await running.replicas["r1"].start()
        await until(lambda: running.status("r1").health == "healthy")
        assert (await running.chat([user("hello")])).replica == "r1"
        assert (await running.admin.get("/readyz")).status_code == 200


async def test_a_router_without_replicas_says_so() -> None:
    async with fleet(0) as running:
        refused = await running.chat([user("hello")])
        assert refused.response.status_code == 503
        assert "no replicas are configured" in refused.json["error"]["message"]


async def test_a_drained_replica_gets_no_turns_and_its_sessions_move_once() -> None:
    async with fleet(2) as running:
        headers = {"X-Session-ID": "one"}
        messages = [user(words(300))]
        home = (await running.chat(messages, headers=headers)).replica
        [other] = {"r0", "r1"} - {home}
        drained = await running.admin.post(f"/api/replicas/{home}/drain", json={"on": True})
        assert drained.json() == {"replica": home, "draining": True}
        assert (await running.client.post(f"/api/replicas/{home}/drain")).status_code == 404
        before = len(running.records(home))
        moved = await running.chat(messages, headers=headers)
        assert (moved.replica, moved.kind) == (other, "failover")
        for number in range(8):
            assert (await running.chat([user(words(20, number))])).replica == other
        assert len(running.records(home)) == before
        await running.admin.post(f"/api/replicas/{home}/drain", json={"on": False})
        again = await running.chat(messages, headers=headers)
        assert (again.replica, again.kind) == (other, "home")


async def test_a_dead_replicas_sessions_go_on_elsewhere_and_none_is_lost() -> None:
    async with fleet(3, probe=SOON) as running:
        homes = {}
        for number in range(12):
            headers = {"X-Session-ID": f"s{number}"}
            [answer] = await converse(running, 1, number, headers=headers)
            homes[number] = answer.replica
        await running.replicas["r0"].kill()
        for number, home in homes.items():
            answer = await running.chat(
                [user(words(400, number)), assistant("ok"), user("go on")],
                headers={"X-Session-ID": f"s{number}"},
            )
            assert answer.response.status_code == 200
            expected = "failover" if home == "r0" else "home"
            assert (answer.kind, answer.replica != "r0") == (expected, True)


# --- what people are shown --------------------------------------------------------------------------


async def test_explain_tells_the_decision_that_follows_and_changes_nothing() -> None:
    async with fleet(3) as running:
        for number in range(8):
            headers = {"X-Session-ID": f"s{number % 4}"}
            body = {"model": MODEL, "messages": [user(words(100 + number, number % 4))], "max_tokens": 4}
            asked = {"path": "/v1/chat/completions", "body": body, "session": f"s{number % 4}"}
            explained = [(await running.admin.post("/api/explain", json=asked)).json() for _ in range(3)]
            assert explained[0] == explained[1] == explained[2]
            answer = await running.client.post("/v1/chat/completions", json=body, headers=headers)
            decided = await running.decision()
            assert explained[0]["replica"] == answer.headers["x-homing-replica"]
            for field in ("replica", "kind", "reason", "policy", "home", "prompt_tokens", "candidates"):
                assert explained[0][field] == decided[field], field
            assert explained[0]["predicted_cached_tokens"] == decided["predicted_cached_tokens"]


async def test_explain_from_the_command_line_asks_the_running_router() -> None:
    async with fleet(2, keys={"key-of-acme": "acme"}) as running:
        body = b'{"model": "sim-model", "messages": [{"role": "user", "content": "hello"}]}'

        async def ask(tenant: str) -> dict[str, Any]:
            return await asyncio.to_thread(
                ask_admin,
                running.admin_url,
                body,
                path="/v1/chat/completions",
                session="one",
                tenant=tenant,
                token=running.admin_token,
            )

        explained = await ask("acme")
        answer = await running.client.post(
            "/v1/chat/completions",
            content=body,
            headers={
                "content-type": "application/json",
                "x-api-key": "key-of-acme",
                "x-session-id": "one",
            },
        )
        assert (explained["replica"], explained["kind"]) == (answer.headers["x-homing-replica"], "new")
        [session] = (await running.admin.get("/api/sessions")).json()["sessions"]
        assert session["key"].startswith(explained["session"])
        assert (await ask("acme"))["kind"] == "home"
        with pytest.raises(Exception, match="no API key names the tenant 'other'"):
            await ask("other")


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of the series of a metric that have these labels."""
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found:
            series = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
            if labels.items() <= series.items():
                total += float(found[2])
    return total


async def test_metrics_count_what_happened() -> None:
    async with fleet(2, keys={"key-of-acme": "acme"}) as running:
        headers = {"x-api-key": "key-of-acme"}
        answers: list[Answered] = []
        for number in range(3):
            answers += await converse(running, 3, number, headers=headers)
        await running.chat([user("hello")], headers=headers, stream=True)
        await running.chat([user("hello")], headers=headers, model="nowhere")
        await running.chat([user("hello")], headers={"x-api-key": "wrong"})
        await running.chat([user("hello")], headers=headers, n=7)
        for replica in running.replicas.values():
            replica.fault("status:500", count=1)
        await running.chat([user("hello, twice in vain")], headers=headers)
        text = (await running.admin.get("/metrics")).text
        assert metric(text, "homing_decisions_total", kind="home", policy="home") == 6 + 1
        assert metric(text, "homing_decisions_total", kind="new") == 3 + 1 + 1
        assert metric(text, "homing_decisions_total", kind="failover") == 1
        assert metric(text, "homing_retries_total") == 1
        assert metric(text, "homing_ended_total", outcome="completed") == 9 + 1
        assert metric(text, "homing_ended_total", outcome="client_error") == 1
        assert metric(text, "homing_ended_total", outcome="server_error") == 2
        assert metric(text, "homing_refused_total") == 1
        assert metric(text, "homing_refused_total", kind="no_such_model") == 1
        assert metric(text, "homing_ttft_seconds_count") == 1
        assert metric(text, "homing_turn_duration_seconds_count") == 10
        prompts = sum(record.prompt_tokens or 0 for _, record in running.records())
        cached = sum(record.cached_tokens or 0 for _, record in running.records())
        assert metric(text, "homing_prompt_tokens_total") == prompts
        assert metric(text, "homing_cached_tokens_total") == cached
        assert metric(text, "homing_replica_in_flight") == metric(text, "homing_replica_pending_tokens") == 0
        assert metric(text, "homing_replica_health", state="healthy") == 2
        assert metric(text, "homing_unreported_total") == 0


async def test_predicted_cached_tokens_are_what_is_delivered_to_within_a_block() -> None:
    async with fleet(3) as running:
        await asyncio.gather(
            *(
                converse(running, 6, number, headers={"X-Session-ID": f"s{number}"}, size=1000)
                for number in range(6)
            )
        )
        delivered: dict[str, int] = {}
        for _, record in running.records():
            assert record.cached_tokens is not None
            delivered[record.headers["x-session-id"]] = record.cached_tokens
        newest: dict[str, int] = {}
        counted = running.router.recording.counters.prediction_error
        assert counted.count == 36
        for decision in (await running.admin.get("/api/decisions?limit=100")).json()["decisions"]:
            newest.setdefault(decision["session"], decision["predicted_cached_tokens"])
        errors = [abs(newest[key] - delivered[key]) for key in newest]
        # A block is 16 tokens, and only full ones are cached.
        assert len(errors) == 6
        assert statistics.median(errors) <= 16
        assert counted.total / counted.count <= 24


# --- stopping ---------------------------------------------------------------------------------------


async def test_stopping_waits_for_running_answers_and_not_for_idle_clients() -> None:
    slow = replace(QUICK, time_scale=1.0)
    async with fleet(1, settings=slow) as running:
        body = {"model": MODEL, "messages": [user("hello")], "max_tokens": 20, "stream": True}
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            began = running.router.clock.now()
            closing = asyncio.ensure_future(running.router.close(120.0))
            rest = [line async for line in lines if line]
            assert rest[-1] == "data: [DONE]"
        # The client keeps its connection for the next request, which nobody will answer.
        await closing
        assert running.router.clock.now() - began < 60.0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_stopping_tells_a_stream_that_outlasts_the_grace(path: str) -> None:
    slow = replace(QUICK, time_scale=1.0)
    async with fleet(1, settings=slow) as running:
        body = {"model": MODEL, "messages": [user("hello")], **LASTING}
        async with running.client.stream("POST", path, json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            closing = asyncio.ensure_future(running.router.close(0.1))
            rest = [line async for line in lines if line]
        assert "the router is stopping" in rest[-1]
        assert "[DONE]" not in rest[-1]
        await closing


async def test_stopping_answers_a_turn_that_still_waits_when_the_grace_is_over() -> None:
    async with fleet(1) as running:
        running.replicas["r0"].fault("hang", count=1)
        waiting = asyncio.ensure_future(running.chat([user("hello")]))
        await until(lambda: running.router.engine.in_flight() == 1)
        await running.router.close(0.1)
        answer = await waiting
        assert answer.response.status_code == 503
        assert answer.response.headers["retry-after"] == "1"
        assert answer.json["error"]["code"] == "stopping"


async def test_a_turn_leaves_a_replica_that_has_gone_silent_long_before_its_time_is_up() -> None:
    async with fleet(2, config={"probe": {"interval": SOON, "timeout": "1s"}}) as running:
        first = await running.chat([user("hi")], headers={"X-Session-ID": "s"})
        silent = running.replicas[first.replica]
        silent.api.faults.arm(Fault(FaultKind.HANG))
        answer = await running.chat([user("hi")], headers={"X-Session-ID": "s"})
        assert (answer.response.status_code, answer.kind) == (200, "failover")
        assert answer.replica != first.replica
        assert running.status(first.replica).health == "down"
        silent.api.faults.clear()
