"""Why a hit rate is low, told by a whole router to whoever asks."""

import gc
from typing import Any

import pytest
from support.fleet import LASTING, MODEL, Fleet, fleet

from router.core.chain_watch import ChainWatch
from router.dataplane.outline import BodyOutline


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


HISTORY = [say("user", "Where am I? " * 300), say("assistant", "At home."), say("user", "And now?")]


async def session(running: Fleet) -> dict[str, Any]:
    [found] = (await running.admin.get("/api/sessions")).json()["sessions"]
    assert isinstance(found, dict)
    return found


async def test_a_clock_in_the_system_prompt_is_named_to_everybody_who_asks() -> None:
    headers = {"X-Session-ID": "one"}
    async with fleet(2) as running:
        await running.chat([say("system", "It is 9:59:58. Be kind."), *HISTORY[:1]], headers=headers)
        assert (await session(running))["last_break"] is None
        body = [say("system", "It is 10:00:07. Be kind."), *HISTORY]
        asked = {"body": {"model": MODEL, "messages": body}, "session": "one"}
        explained = (await running.admin.post("/api/explain", json=asked)).json()
        await running.chat(body, headers=headers)
        shown = await session(running)
        assert shown["breaks"] == {"digits": 1}
        last = shown["last_break"]
        assert (last["part"], last["cause"], last["message"], last["role"]) == (
            "system",
            "digits",
            0,
            "system",
        )
        assert last["why"].startswith("message 0 (system) differs in its digits only")
        assert 600 < last["lost_tokens"] < 1200
        assert {**explained["break"], "age_s": 0} == {**last, "age_s": 0}
        text = (await running.admin.get("/metrics")).text
        assert 'homing_chain_breaks_total{part="system",cause="digits"} 1' in text
        assert "homing_chain_turns_total 1" in text


async def test_a_session_without_an_id_is_found_again_though_its_opening_changes() -> None:
    async with fleet(2) as running:
        await running.chat([say("system", "It is 9:59:58."), *HISTORY[:1]])
        answer = await running.chat([say("system", "It is 10:00:07."), *HISTORY])
        assert answer.kind == "new"
        shown = (await running.admin.get("/api/sessions?limit=1")).json()["sessions"][0]
        assert shown["breaks"] == {"digits": 1}
        assert shown["last_break"]["why"].endswith("send a session id")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
async def test_turns_that_go_on_are_counted_and_break_nothing(path: str) -> None:
    async with fleet(1) as running:
        for turns in (1, 3, 3):
            body: dict[str, Any] = {"model": MODEL}
            body["input" if path == "/v1/responses" else "messages"] = HISTORY[:turns]
            if path == "/v1/messages":
                body["max_tokens"] = 8
            answer = await running.client.post(path, json=body, headers={"x-session-id": "one"})
            assert answer.status_code == 200, answer.text
        text = (await running.admin.get("/metrics")).text
        assert "homing_chain_turns_total 2" in text
        assert "homing_chain_breaks_total{" not in text


async def test_a_fault_in_watching_costs_no_turn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ChainWatch, "turn", fail)
    async with fleet(1) as running:
        for _ in range(2):
            answer = await running.chat(HISTORY[:1])
            assert answer.response.status_code == 200
        assert caplog.text.count("watching prompts failed") == 1


async def test_what_knows_the_text_is_gone_once_the_answer_has_begun() -> None:
    async with fleet(1) as running:
        body = {"model": MODEL, "messages": HISTORY[:1], **LASTING}
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_raw())
            assert running.router.engine.in_flight() == 1
            gc.collect()
            assert not [found for found in gc.get_objects() if type(found) is BodyOutline]
