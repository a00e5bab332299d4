"""Prefill and decode replicas behind the router: what is handed on, what comes back, and what may fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support import fleet as fleets
from support.fleet import MODEL, QUICK, Answered, Fleet, words
from support.plane import until

from router.core.pairbook import PairEnd, Unclaimed, Unreturned
from router.simulator.calls import Record
from router.simulator.settings import ReplicaSettings

PREFILL = replace(QUICK, load_failure="fail", prefill_tps=1000.0)
"""3,000 tokens take 75 ms, so that fetching them costs less."""
DECODE = replace(QUICK, load_failure="recompute")
TWO_WAY = {"role": "prefill", "two_way": True}
SESSION = {"x-session-id": "s"}
CHAT = "/v1/chat/completions"
FAST = {"prefill": {"seed_tokens_per_s": 40_000}, "pull": {"seed_gbps": 2000}}
"""What the simulated replicas come to, so that nothing has to be learned first."""


@asynccontextmanager
async def pairs(
    *,
    prefill: ReplicaSettings = PREFILL,
    decode: ReplicaSettings = DECODE,
    decodes: int = 1,
    two_way: bool = True,
    policy: Mapping[str, Any] | None = None,
    plain: int = 0,
    down: Sequence[str] = (),
    probe: str = fleets.NEVER,
) -> AsyncIterator[Fleet]:
    """Prefill replicas r0 and r1, then decode replicas, then plain ones. No wrong block is ever fetched."""
    settings = [prefill, prefill, *[decode] * decodes, *[QUICK] * plain]
    role = TWO_WAY if two_way else {"role": "prefill"}
    roles: dict[str, Any] = {"r0": role, "r1": role}
    roles |= {f"r{at}": {"role": "decode"} for at in range(2, 2 + decodes)}
    price = {"price": FAST, **(policy or {})}
    async with fleets.fleet(
        len(settings), settings=settings, roles=roles, policy=price, down=down, probe=probe
    ) as fleet:
        yield fleet
        for replica in fleet.replicas.values():
            assert replica.api.handoffs.wrong_blocks == 0


def asked(fleet: Fleet, *names: str, path: str = CHAT) -> list[tuple[str, Record]]:
    return [(name, record) for name, record in fleet.records(*names) if record.path == path]


def book(fleet: Fleet) -> Any:
    return fleet.router.engine.pairs


def holds(fleet: Fleet, name: str) -> float:
    return fleet.replicas[name].api.driver.stats().kv_usage


def explained(fleet: Fleet, messages: list[dict[str, Any]]) -> str:
    """Where the session's next turn would go."""
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    return str(fleet.router.questions.explain(CHAT, body, SESSION["x-session-id"])["replica"])


async def turn(fleet: Fleet, messages: list[dict[str, Any]], **more: Any) -> Answered:
    """A turn of the session, and its reply as the last of `messages`."""
    answer = await fleet.chat(messages, headers=SESSION, **more)
    assert answer.response.status_code == 200, answer.response.text
    messages.append(answer.message)
    return answer


def say(messages: list[dict[str, Any]], tokens: int, seed: object = 0) -> None:
    messages.append({"role": "user", "content": words(tokens, seed)})


def begun(tokens: int = 3000) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": words(40, "system")}]
    say(messages, tokens, "first")
    return messages


async def test_a_prompt_is_computed_by_one_and_answered_by_another() -> None:
    async with pairs() as fleet:
        messages = begun()
        answer = await turn(fleet, messages)
        assert (answer.kind, answer.replica) == ("pair", "r2")
        prefill = answer.response.headers["x-homing-prefill"]
        assert prefill in ("r0", "r1")
        [(name, first)] = asked(fleet, "r0", "r1")
        assert name == prefill
        assert (first.json["max_tokens"], first.json["stream"]) == (1, False)
        assert first.json["kv_transfer_params"] == {"do_remote_decode": True}
        [(_, second)] = asked(fleet, "r2")
        assert second.json["kv_transfer_params"]["remote_engine_id"].startswith(prefill)
        assert second.prompt_tokens is not None
        assert second.cached_tokens is not None
        assert second.prompt_tokens - second.cached_tokens <= 16
        assert holds(fleet, prefill) == 0
        decision = await fleet.decision()
        assert decision["pair"]["prefill"] == prefill
        assert {line["way"] for line in decision["options"]} == {"pair"}


async def test_the_client_sees_what_a_single_replica_answers() -> None:
    async with pairs(plain=1) as fleet, fleets.fleet(1) as single:
        for more in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
            body = {"model": MODEL, "messages": begun(), "max_tokens": 12, **more}
            fleet.router.engine.drain(fleet.status("r3").id, True)
            mine = await fleet.client.post(CHAT, json=body)
            alone = await single.client.post(CHAT, json=body)
            assert shape(mine.text) == shape(alone.text)
            assert mine.headers["content-type"] == alone.headers["content-type"]


def shape(text: str) -> Any:
    """An answer without what differs from request to request and from replica to replica."""
    if text.startswith("{"):
        whole = json.loads(text)
        return {name: whole[name] for name in whole if name not in ("id", "created", "usage")}
    events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [
        {name: value for name, value in json.loads(event).items() if name not in ("id", "created", "usage")}
        for event in events
    ]


async def test_the_next_turn_fetches_back_and_computes_only_what_is_new() -> None:
    async with pairs() as fleet:
        messages = begun()
        first = await turn(fleet, messages)
        for number in range(2):
            say(messages, 3000, number)
            # On another replica than the last, which has none of it.
            last = first.response.headers["x-homing-prefill"]
            fleet.router.engine.drain(fleet.status(last).id, True)
            first = await turn(fleet, messages)
            fleet.router.engine.drain(fleet.status(last).id, False)
            prefill = first.response.headers["x-homing-prefill"]
            assert (first.kind, prefill != last) == ("pair-pull", True)
            [*_, (_, record)] = asked(fleet, prefill)
            assert record.prompt_tokens is not None
            assert record.cached_tokens is not None
            assert record.prompt_tokens - record.cached_tokens < 3000 + 16 + 16
            assert first.cached >= 3000
        assert book(fleet).ends[PairEnd.PULLED] == 2
        # Of the last turn alone anything is held.
        await until(lambda: len(fleet.replicas["r2"].api.handoffs) == 1)


@pytest.mark.parametrize("change", ["edited", "shortened", "retokenised", "other"])
async def test_only_what_two_prompts_share_is_fetched(change: str) -> None:
    async with pairs() as fleet:
        messages = begun(1500)
        say_at = len(messages)
        first = await turn(fleet, messages)
        say(messages, 1500, "second")
        await turn(fleet, messages)
        if change == "edited":
            messages[say_at]["content"] = "something else " + messages[say_at]["content"]
        elif change == "shortened":
            del messages[say_at + 1 :]
        elif change == "retokenised":
            # As other tokens than were generated: a space in front moves every token.
            messages[-1]["content"] = " " + messages[-1]["content"]
        else:
            messages[1]["content"] = words(1500, "not the first")
        say(messages, 50, "third")
        for name in ("r0", "r1"):
            if name == first.response.headers["x-homing-prefill"]:
                fleet.router.engine.drain(fleet.status(name).id, True)
        await turn(fleet, messages)
        ends, why = book(fleet).ends, book(fleet).unreturned
        if change == "other":
            assert why[Unreturned.OTHER_TOKENS] + why[Unreturned.CHEAPER] >= 1
        else:
            assert ends[PairEnd.PULLED] + why[Unreturned.CHEAPER] >= 1


async def test_streams_are_one_way_where_they_do_not_tell_what_is_kept() -> None:
    async with pairs() as fleet:
        messages = begun()
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": True}
        answer = await fleet.client.post(CHAT, json=body, headers=SESSION)
        assert "[DONE]" in answer.text
        assert (await fleet.decision())["reason"].endswith("streamed, so nothing comes back from decode")
        assert book(fleet).unclaimed[Unclaimed.STREAMED] == 1
        assert len(book(fleet).claims) == 0


async def test_the_last_chunk_of_a_newer_engine_is_used_and_not_shown() -> None:
    async with pairs(decode=replace(DECODE, streams_offer=True)) as fleet:
        messages = begun()
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": True}
        answer = await fleet.client.post(CHAT, json=body, headers=SESSION)
        assert "[DONE]" in answer.text
        assert "remote_" not in answer.text
        assert len(book(fleet).claims) == 1
        fleet.router.engine.drain(fleet.status(answer.headers["x-homing-prefill"]).id, True)
        say(messages, 100)
        assert (await turn(fleet, messages)).kind == "pair-pull"
        assert book(fleet).ends[PairEnd.PULLED] == 1


async def test_a_policy_may_have_whole_answers_streamed_from_here() -> None:
    async with pairs(policy={"pair": {"streams": "whole"}}) as fleet, fleets.fleet(1) as single:
        body = {"model": MODEL, "messages": begun(), "max_tokens": 8, "stream": True}
        answer = await fleet.client.post(CHAT, json=body, headers=SESSION)
        alone = await single.client.post(CHAT, json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert said(answer.text) == said(alone.text)
        assert answer.text.endswith("data: [DONE]\n\n")
        assert "token_ids" not in answer.text
        assert len(book(fleet).claims) == 1


def said(stream: str) -> tuple[str, str]:
    text, finish = "", ""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    return text, finish


async def test_other_endpoints_are_one_way_and_what_decode_holds_is_let_go_of() -> None:
    async with pairs() as fleet:
        messages = [{"role": "user", "content": words(2000)}]
        for path, body in (
            ("/v1/messages", {"messages": messages, "max_tokens": 8}),
            ("/v1/responses", {"input": messages[0]["content"], "max_output_tokens": 8, "store": False}),
        ):
            answer = await fleet.client.post(path, json={"model": MODEL, **body}, headers=SESSION)
            assert (answer.status_code, answer.headers["x-homing-decision"]) == (200, "pair"), answer.text
            assert answer.json().get("kv_transfer_params") is None
        completion = await fleet.client.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": words(2000, "c"), "max_tokens": 8},
            headers={"x-session-id": "c"},
        )
        assert completion.headers["x-homing-decision"] == "pair"
        assert book(fleet).unclaimed[Unclaimed.NOT_COMPARABLE] == 2
        await until(lambda: fleet.router.dataplane.pairs.released[True] == 2)  # type: ignore[union-attr]
        assert len(book(fleet).claims) == len(fleet.replicas["r2"].api.handoffs) == 1


async def test_what_sessions_leave_that_end_all_at_once_is_all_let_go_of() -> None:
    async with pairs() as fleet:
        for number in range(9):
            answer = await fleet.chat(begun(200), headers={"x-session-id": f"s{number}"})
            assert (answer.response.status_code, answer.kind) == (200, "pair")
        kept = fleet.replicas["r2"].api.handoffs
        assert len(book(fleet).claims) == len(kept) == 9
        book(fleet).claims.end_sessions(lambda _key: True)
        await until(lambda: fleet.router.dataplane.pairs.released == {True: 9, False: 0})  # type: ignore[union-attr]
        assert len(book(fleet).claims) == len(kept) == 0


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt_logprobs": 1}])
async def test_what_one_replica_must_do_alone_goes_to_decode(more: dict[str, Any]) -> None:
    async with pairs() as fleet:
        await fleet.chat(begun(500), **more)
        assert not asked(fleet, "r0", "r1")
        [(_, record)] = asked(fleet, "r2")
        assert "kv_transfer_params" not in record.json


async def test_without_a_prefill_replica_decode_does_all() -> None:
    async with pairs(down=["r0", "r1"]) as fleet:
        answer = await turn(fleet, begun())
        assert (answer.replica, answer.kind) == ("r2", "new")
        assert "x-homing-prefill" not in answer.response.headers


@pytest.mark.parametrize("fault", ["status:503", "garbage", "cut:20"])
async def test_a_prefill_that_fails_is_done_by_another(fault: str) -> None:
    async with pairs() as fleet:
        fleet.replicas["r0"].fault(fault, path=CHAT)
        fleet.replicas["r1"].fault(fault, path=CHAT, count=1)
        first = await turn(fleet, begun())
        assert first.replica == "r2"
        assert fleet.router.engine.in_flight() == 0


async def test_where_all_prefills_fail_decode_computes() -> None:
    async with pairs() as fleet:
        for name in ("r0", "r1"):
            fleet.replicas[name].fault("status:500", path=CHAT)
        answer = await turn(fleet, begun())
        assert answer.replica == "r2"
        assert book(fleet).ends[PairEnd.ALONE] == 1
        [(_, record)] = asked(fleet, "r2")
        assert "kv_transfer_params" not in record.json


async def test_a_client_error_is_decodes_to_tell() -> None:
    async with pairs() as fleet:
        answer = await fleet.chat([{"role": "user", "content": words(500)}], max_tokens=10**7)
        assert answer.response.status_code == 400
        assert answer.replica == "r2"


async def test_deaths_of_prefill_replicas_end_a_turn_as_any_do() -> None:
    async with pairs() as fleet:
        for name in ("r0", "r1"):
            fleet.replicas[name].fault("die", path=CHAT, count=1)
        answer = await fleet.chat(begun(), headers=SESSION)
        assert answer.response.status_code == 502
        assert "prefill replica" in answer.json["error"]["message"]
        again = await fleet.chat(begun(), headers=SESSION)
        assert (again.response.status_code, again.replica) == (200, "r2")


@pytest.mark.parametrize("fault", ["status:500", "die", "close"])
async def test_decode_that_fails_is_replaced_and_the_prompt_handed_on_anew(fault: str) -> None:
    async with pairs(decodes=2) as fleet:
        messages = begun()
        for name in ("r2", "r3"):
            fleet.replicas[name].fault(fault, path=CHAT, count=1)
        # Which of the two has the turn first is the ring's to say: the other one must not fail as well.
        first = explained(fleet, messages)
        other = "r3" if first == "r2" else "r2"
        fleet.replicas[other].clear_faults()
        answer = await turn(fleet, messages)
        assert (answer.replica, answer.kind) == (other, "failover")
        assert len(asked(fleet, "r0", "r1")) == 2
        [*_, (_, record)] = asked(fleet, other)
        assert record.prompt_tokens is not None
        assert record.cached_tokens is not None
        assert record.prompt_tokens - record.cached_tokens <= 16


async def test_a_prefill_replica_that_dies_before_decode_has_fetched_costs_a_computation() -> None:
    async with pairs() as fleet:
        messages = begun()
        for name in ("r0", "r1"):
            # What it told of is gone with it.
            fleet.replicas[name].api.handoffs.keep = lambda *_kept: None  # type: ignore[method-assign]
        answer = await turn(fleet, messages)
        assert answer.replica == "r2"
        [(_, record)] = asked(fleet, "r2")
        assert record.cached_tokens == 0


async def test_what_is_used_up_or_expired_is_declined_and_computed() -> None:
    async with pairs() as fleet:
        messages = begun()
        first = await turn(fleet, messages)
        fleet.replicas["r2"].api.handoffs.close()
        fleet.router.engine.drain(fleet.status(first.response.headers["x-homing-prefill"]).id, True)
        say(messages, 50)
        answer = await turn(fleet, messages)
        assert answer.replica == "r2"
        assert book(fleet).unreturned[Unreturned.DECLINED] == 1
        for status in fleet.router.engine.replicas(fleet.router.clock.now()):
            assert status.recent_failures == 0.0


async def test_a_replica_that_is_not_set_up_for_it_is_given_up_on_and_computes() -> None:
    """The config says two-way and the engine is not: it hangs, for as long as the policy lets it."""
    async with pairs(
        prefill=replace(PREFILL, two_way=False), policy={"pair": {"deadline": "200ms"}}
    ) as fleet:
        messages = begun()
        first = await turn(fleet, messages)
        fleet.router.engine.drain(fleet.status(first.response.headers["x-homing-prefill"]).id, True)
        say(messages, 50)
        answer = await turn(fleet, messages)
        assert answer.replica == "r2"
        assert book(fleet).unreturned[Unreturned.DECLINED] == 1


async def test_without_two_way_replicas_nothing_comes_back() -> None:
    async with pairs(two_way=False) as fleet:
        messages = begun()
        await turn(fleet, messages)
        say(messages, 50)
        assert (await turn(fleet, messages)).kind == "pair"
        for _, record in asked(fleet, "r0", "r1"):
            assert record.json["kv_transfer_params"] == {"do_remote_decode": True}


async def test_a_session_that_ends_lets_go_of_what_decode_holds() -> None:
    async with pairs() as fleet:
        await turn(fleet, begun())
        assert len(fleet.replicas["r2"].api.handoffs) == 1
        [session] = (await fleet.admin.get("/api/sessions")).json()["sessions"]
        await fleet.admin.delete(f"/api/sessions/{session['key']}")
        await until(lambda: len(fleet.replicas["r2"].api.handoffs) == 0)
        assert holds(fleet, "r2") == 0


async def test_a_restart_of_decode_ends_what_it_held() -> None:
    async with pairs(probe="50ms") as fleet:
        messages = begun()
        await turn(fleet, messages)
        assert len(book(fleet).claims) == 1
        await fleet.replicas["r2"].restart()
        await until(lambda: len(book(fleet).claims) == 0)
        await until(lambda: fleet.status("r2").health in ("healthy", "probation"))
        say(messages, 50)
        assert (await turn(fleet, messages)).replica == "r2"


@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_a_client_that_leaves_aborts_whoever_has_its_turn(where: str) -> None:
    slow = replace(PREFILL, time_scale=0.02, prefill_tps=100.0)
    settings = {"prefill": slow} if where == "prefill" else {"decode": replace(DECODE, time_scale=0.02)}
    async with pairs(**settings) as fleet:  # type: ignore[arg-type]
        names = ("r0", "r1") if where == "prefill" else ("r2",)
        asking = asyncio.ensure_future(fleet.chat(begun(2000), headers=SESSION))
        await until(lambda: any(fleet.replicas[name].in_flight for name in names))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not any(replica.in_flight for replica in fleet.replicas.values()))
        await until(lambda: fleet.router.engine.in_flight() == 0)


async def test_pairs_and_replicas_that_do_both_serve_side_by_side() -> None:
    async with pairs(plain=1) as fleet:
        kinds = {
            (await fleet.chat(begun(1000 + at), headers={"x-session-id": f"s{at}"})).kind for at in range(8)
        }
        assert kinds == {"pair", "new"}


async def test_sessions_in_a_burst_each_get_their_own_answers() -> None:
    async with pairs(decodes=2) as fleet, fleets.fleet(1) as single:

        async def session(at: int) -> None:
            messages = [{"role": "user", "content": words(600, f"session {at}")}]
            for number in range(4):
                body = {"model": MODEL, "messages": messages, "max_tokens": 8}
                headers = {"x-session-id": f"s{at}"}
                mine = await fleet.client.post(CHAT, json=body, headers=headers)
                alone = await single.client.post(CHAT, json=body)
                assert mine.status_code == 200, mine.text
                reply = mine.json()["choices"][0]["message"]["content"]
                assert reply == alone.json()["choices"][0]["message"]["content"]
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": words(60, (at, number))},
                ]

        await asyncio.gather(*(session(at) for at in range(8)))
        assert book(fleet).ends[PairEnd.FAILED] == book(fleet).ends[PairEnd.ALONE] == 0
