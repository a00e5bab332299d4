"""The access log of a whole router, and its replay."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.fleet import LASTING, MODEL, Fleet, fleet
from support.plane import until

from router.base.ids import OPEN_TENANT
from router.simulator.replay.command import Options, run_replay
from router.simulator.replay.reading import read_trace

SECRET_TEXT = "a secret of the user's"
SYSTEM = {"role": "system", "content": "You answer questions. " * 60}


def logging_to(path: Path | str) -> dict[str, Any]:
    return {"telemetry": {"access_log": str(path)}}


async def converse(
    running: Fleet, name: str, turns: int, *, stream: bool = False, **headers: str
) -> list[int]:
    """A conversation; the tokens of its prompts."""
    messages = [SYSTEM, {"role": "user", "content": f"{SECRET_TEXT} {name} " * 40}]
    for number in range(turns):
        end = {"X-Homing-Session-End": "true"} if number == turns - 1 else {}
        sent = {
            "X-Session-ID": name,
            **end,
            **{key.replace("_", "-"): value for key, value in headers.items()},
        }
        answer = await running.chat(messages, headers=sent, stream=stream)
        assert answer.response.status_code == 200
        messages += [
            {"role": "assistant", "content": f"reply {number}"},
            {"role": "user", "content": "go on " * 30},
        ]
    return [record.prompt_tokens or 0 for _, record in running.records()][-turns:]


async def settled(running: Fleet, lines: int) -> None:
    log = running.router.recording.access_log
    assert log is not None
    await until(lambda: log.written + log.lost >= lines)


async def test_what_was_served_comes_out_of_the_replay_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    async with fleet(3, config=logging_to(path)) as running:
        await converse(running, "one", 4)
        await converse(running, "two", 3, stream=True)
        await converse(running, "child", 2, x_parent_session_id="two")
        served = [record.prompt_tokens or 0 for _, record in running.records()]
        cached = sum(record.cached_tokens or 0 for _, record in running.records())
        # None of these is a turn that can be replayed.
        refused = await running.chat([{"role": "user", "content": "x"}], model="nowhere")
        assert refused.response.status_code == 404
        key = running.router.routing.key_of
        await settled(running, 10)
    text = path.read_text()
    assert SECRET_TEXT not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["prompt_tokens"] for line in lines if "refused" not in line] == served
    assert sum(line["cached_tokens"] or 0 for line in lines if "refused" not in line) == cached

    trace = read_trace(path)
    assert [note.partition(":")[2] for note in trace.notes] == [
        " refused by the router (the first is line 10)"
    ]
    names = {session.id: session for session in trace.sessions}
    assert set(names) == {f"{key(OPEN_TENANT, name)}/{MODEL}" for name in ("one", "two")}
    two = names[f"{key(OPEN_TENANT, 'two')}/{MODEL}"]
    assert [agent.session.id for agent in two.agents] == [f"{key(OPEN_TENANT, 'child')}/{MODEL}"]
    turns = [turn for session in trace.sessions for turn in session.turns]
    turns += [turn for agent in two.agents for turn in agent.session.turns]
    assert sorted(turn.prompt_tokens for turn in turns) == sorted(served)
    assert sum(turn.last for turn in turns) == 3
    assert all(turn.output_tokens == 16 for turn in turns)

    answer = json.loads(
        run_replay(Options(trace=path, policies=("home", "round-robin"), replicas=3, json=True))
    )
    assert answer["policies"]["home"]["turns"] == 9
    assert answer["notes"] == list(trace.notes)
    # The simulated replica has blocks of 16 tokens, the replay of 64; the rest is the same model.
    assert answer["policies"]["home"]["hit_rate"] == pytest.approx(cached / sum(served), abs=0.12)
    assert answer["policies"]["home"]["hit_rate"] > answer["policies"]["round-robin"]["hit_rate"]
    assert "note: 1 line not used: refused" in run_replay(Options(trace=path))


async def test_a_rotated_log_is_two_that_can_each_be_replayed(tmp_path: Path) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    async with fleet(1, config=logging_to(path)) as running:
        messages = [SYSTEM]
        for number in range(6):
            messages.append({"role": "user", "content": f"question {number}"})
            await running.chat(messages, headers={"X-Session-ID": "one"})
            await settled(running, number + 1)
            if number == 2:
                path.rename(old)
                # The look that begins the new file.
                log = running.router.recording.access_log
                assert log is not None
                await running.chat(messages, headers={"X-Session-ID": "other"})
    for part, at_least in ((old, 3), (path, 3)):
        trace = read_trace(part)
        assert sum(len(session.turns) for session in trace.sessions) >= at_least, trace.notes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
async def test_a_full_disk_fails_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(1, config=logging_to("/dev/full")) as running:
        for _ in range(3):
            answer = await running.chat([SYSTEM], headers={"X-Session-ID": "one"})
            assert answer.response.status_code == 200
        await settled(running, 3)
        text = (await running.admin.get("/metrics")).text
        assert 'homing_access_log_lines_total{result="lost"} 3' in text
        assert 'homing_access_log_lines_total{result="written"} 0' in text
    assert caplog.text.count("cannot be written: No space left on device; turns go on") == 1


async def test_a_log_in_a_folder_that_is_not_there_is_no_reason_not_to_start(tmp_path: Path) -> None:
    async with fleet(1, config=logging_to(tmp_path / "missing" / "access.log")) as running:
        answer = await running.chat([SYSTEM])
        assert answer.response.status_code == 200
        (tmp_path / "missing").mkdir()
        await settled(running, 1)
        await running.chat([SYSTEM])
        await settled(running, 2)
    assert (tmp_path / "missing" / "access.log").read_text().count("\n") >= 1


async def test_tenants_are_hashed_and_their_turns_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    keys = {"key-of-acme": "acme", "key-of-evil": "evil"}
    async with fleet(2, config=logging_to(path), keys=keys) as running:
        for key in (*keys, "key-of-acme"):
            await running.chat([SYSTEM], headers={"x-api-key": key, "X-Session-ID": "one"})
        await settled(running, 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["tenant"] for line in lines}) == len({line["session"] for line in lines}) == 2
    assert "acme" not in path.read_text()
    assert len({line["new"][:16] for line in lines if line["new"]}) == 2


async def test_a_client_that_leaves_has_a_line_too(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    async with fleet(1, config=logging_to(path)) as running:
        body = {"model": MODEL, "messages": [SYSTEM], **LASTING}
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_raw())
        await until(lambda: running.router.engine.in_flight() == 0)
        await settled(running, 1)
        await asyncio.sleep(0)
    [line] = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["outcome"], line["source"]) == ("cancelled", "derived")
    assert line["ttft_ms"] > 0
