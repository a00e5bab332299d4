"""Prefill and decode on real engines: right answers whatever becomes of the history, and nothing is left."""

import http.client
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import Patience
from support.real_engines import BLOCK, PATIENCE_S, REQUEST_S, Replica, text
from support.real_pairs import DECODE, PREFILLS, SINGLE, pairs
from support.real_router import Router

Fleet = tuple[dict[str, Replica], Router]
Messages = list[dict[str, Any]]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("pairs")
    with pairs(folder) as made:
        yield made


def said(answer: dict[str, Any]) -> tuple[Any, list[float]]:
    """The reply and the log-probability of each of its tokens and of those that were close."""
    choice = answer["choices"][0]
    listed = choice["logprobs"]["content"]
    figures = [one["logprob"] for token in listed for one in token["top_logprobs"]]
    return (choice["message"]["content"], [token["token"] for token in listed]), figures


def same_as_alone(fleet: Fleet, messages: Messages, answer: dict[str, Any], **more: Any) -> None:
    """What a single engine answers, which has nothing from anybody, to the last bit but rounding."""
    single = fleet[0][SINGLE]
    single.forget_cache()
    alone = single.ask(messages, tokens=8, **more).body
    reply, figures = said(answer)
    expected, theirs = said(alone)
    assert reply == expected
    assert figures == pytest.approx(theirs, abs=2e-3)


def running(replica: Replica) -> float:
    return replica.metrics().sum("vllm:num_requests_running")


def computed(replica: Replica) -> float:
    return replica.metrics().computed_tokens()


def turn(fleet: Fleet, messages: Messages, session: str, **more: Any) -> tuple[str, str, float, float]:
    """One turn; the reply becomes the last message. Who prefilled, the decision's kind, tokens that prefill
    computed, and those that it fetched."""
    replicas, router = fleet
    before = {name: (computed(replicas[name]), replicas[name].metrics().loaded_tokens()) for name in PREFILLS}
    answer = router.chat(messages, session, logprobs=True, top_logprobs=3, **more)
    name = answer.headers["x-homing-prefill"]
    assert answer.headers["x-homing-replica"] == DECODE
    same_as_alone(fleet, messages, answer.json(), **more)
    message = answer.json()["choices"][0]["message"]
    messages.append({"role": "assistant", "content": message["content"] or ""})
    own = replicas[name]
    return (
        name,
        answer.headers["x-homing-decision"],
        computed(own) - before[name][0],
        own.metrics().loaded_tokens() - before[name][1],
    )


def elsewhere(
    fleet: Fleet, last: str, messages: Messages, session: str, **more: Any
) -> tuple[str, str, float, float]:
    """The session's next turn, on another prefill replica than `last`."""
    fleet[1].drain(last, True)
    try:
        return turn(fleet, messages, session, **more)
    finally:
        fleet[1].drain(last, False)


def begun(chance: random.Random, tokens: int = 3000) -> Messages:
    return [
        {"role": "system", "content": text(chance, 300)},
        {"role": "user", "content": text(chance, tokens)},
    ]


@pytest.mark.parametrize("tools", [False, True])
def test_each_turn_fetches_the_last_one_back_and_computes_what_is_new(fleet: Fleet, tools: bool) -> None:
    chance = random.Random(int(tools))
    more = {"tools": TOOLS} if tools else {}
    messages = begun(chance)
    session = f"grows-{tools}"
    last, kind, _, _ = turn(fleet, messages, session, **more)
    assert kind == "pair"
    for _ in range(2):
        new = text(chance, 900)
        messages.append({"role": "user", "content": new})
        last, kind, own, fetched = elsewhere(fleet, last, messages, session, **more)
        assert kind == "pair-pull"
        assert fetched > 800
        # What is new, and what re-tokenising the reply or cutting to whole blocks costs.
        assert own < len(new) + 16 * BLOCK


@pytest.mark.parametrize("change", ["edited", "shortened", "retokenised", "other"])
def test_a_history_that_has_changed_gets_the_right_answer(fleet: Fleet, change: str) -> None:
    chance = random.Random(change)
    messages = begun(chance, 1500)
    last, *_ = turn(fleet, messages, change)
    messages.append({"role": "user", "content": text(chance, 1500)})
    last, *_ = elsewhere(fleet, last, messages, change)
    if change == "edited":
        messages[3]["content"] = messages[3]["content"][:700] + "X" + messages[3]["content"][701:]
    elif change == "shortened":
        del messages[3:]
    elif change == "retokenised":
        messages[-1]["content"] = messages[-1]["content"].upper() + " "
    else:
        messages[0]["content"] = text(chance, 300)
    messages.append({"role": "user", "content": text(chance, 300)})
    elsewhere(fleet, last, messages, change)
    messages.append({"role": "user", "content": text(chance, 100)})
    turn(fleet, messages, change)


def streamed() -> Messages:
    return begun(random.Random(9), 1500)


def test_streams_work_one_way(fleet: Fleet) -> None:
    replicas, router = fleet
    messages = streamed()
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, "stream": True}
    answer = router.client.post(router.chat_url, json=body, headers={"X-Session-ID": "streamed"})
    assert answer.headers["x-homing-decision"] == "pair"
    assert "remote_" not in answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    reply = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    replicas[SINGLE].forget_cache()
    alone = replicas[SINGLE].ask(messages, tokens=8).body
    assert reply == (alone["choices"][0]["message"]["content"] or "")


@pytest.mark.parametrize("stage", ["at once", "prefill", "decode"])
def test_a_client_that_leaves_leaves_nothing(fleet: Fleet, stage: str) -> None:
    replicas, router = fleet
    messages = begun(random.Random(stage), 9000)
    body = {"model": "tiny", "messages": messages, "max_tokens": 2000, "ignore_eos": True}
    busy = {"at once": (), "prefill": PREFILLS, "decode": (DECODE,)}[stage]
    client = http.client.HTTPConnection("127.0.0.1", router.port, timeout=REQUEST_S)
    headers = {"Content-Type": "application/json", "X-Session-ID": f"leaves-{stage}"}
    client.request("POST", "/v1/chat/completions", body=json.dumps(body), headers=headers)
    patience = Patience(PATIENCE_S)
    while busy and not any(running(replicas[name]) for name in busy):
        assert not patience.is_over, "the turn does not get there"
        time.sleep(0.02)
    client.close()
    while any(running(replicas[name]) for name in (*PREFILLS, DECODE)):
        assert not patience.is_over, "it goes on"
        time.sleep(0.05)


def test_everything_is_given_back(fleet: Fleet) -> None:
    """After all of the above: what decode keeps is let go of when its sessions end."""
    replicas, router = fleet
    router.end_sessions()
    for name in PREFILLS:
        # Blocks for a decode replica that never came are kept for the lease of 30 s.
        replicas[name].await_idle()
    # A stream tells nobody how to fetch what it left, or to let go of it: that stays for decode's own time.
    usage = replicas[SINGLE].ask(streamed(), tokens=8).body["usage"]
    replicas[DECODE].await_idle(kept=-(-usage["total_tokens"] // BLOCK))
    assert router.metric("homing_pair_prompts_total", result="failed") == 0
    for replica in replicas.values():
        assert "Traceback" not in replica.log.read_text(errors="replace")
    assert Path(router.log).read_text().count("Traceback") == 0
