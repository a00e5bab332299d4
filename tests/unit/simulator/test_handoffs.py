"""Two simulated replicas hand KV on to each other, as vLLM's do, sharp edges included."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.fleet import words
from support.plane import until

from router.base.errors import SettingsError
from router.simulator.handoffs import BrokenError, fetch_of
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings

SETTINGS = ReplicaSettings(time_scale=50.0, load_failure="fail")
DECODE = replace(SETTINGS, load_failure="recompute")
PREFILL = {"do_remote_decode": True}
ONE = [{"role": "user", "content": words(1000, 1)}]


@asynccontextmanager
async def pair(
    prefill: ReplicaSettings = SETTINGS, decode: ReplicaSettings = DECODE
) -> AsyncIterator[tuple[SimulatedReplica, SimulatedReplica]]:
    async with (
        SimulatedReplica(replace(prefill, name="p")) as p,
        SimulatedReplica(replace(decode, name="d")) as d,
    ):
        yield p, d


async def ask(replica: SimulatedReplica, messages: Any, params: Any = None, **more: Any) -> httpx.Response:
    body = {"model": "sim-model", "messages": messages, "max_tokens": 8, **more}
    if params is not None:
        body["kv_transfer_params"] = params
    async with httpx.AsyncClient(trust_env=False, timeout=20.0) as client:
        return await client.post(f"{replica.url}/v1/chat/completions", json=body)


def used(replica: SimulatedReplica) -> float:
    return replica.api.driver.stats().kv_usage


async def turn(
    p: SimulatedReplica, d: SimulatedReplica, messages: Any, back: Any = PREFILL
) -> dict[str, Any]:
    """One turn through both; the answer is decode's."""
    first = await ask(p, messages, back, max_tokens=1)
    assert first.status_code == 200, first.text
    answer = await ask(d, messages, first.json()["kv_transfer_params"], return_token_ids=True)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


async def test_a_prompt_is_computed_by_one_and_fetched_by_the_other() -> None:
    async with pair() as (p, d):
        first = await ask(p, ONE, PREFILL, max_tokens=1)
        offer = first.json()["kv_transfer_params"]
        assert (offer["do_remote_prefill"], offer["do_remote_decode"]) == (True, False)
        assert offer["remote_num_tokens"] == first.json()["usage"]["prompt_tokens"]
        assert used(p) > 0
        answer = (await ask(d, ONE, offer)).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 1000 // 16 * 16
        assert used(p) == 0
        assert used(d) > 0
        assert answer["choices"] == (await ask(p, ONE)).json()["choices"]
        assert (p.api.handoffs.wrong_blocks, d.api.handoffs.wrong_blocks) == (0, 0)


async def test_the_next_turn_fetches_back_what_decode_holds_and_lets_go_of_it() -> None:
    async with pair() as (p, d), SimulatedReplica(replace(SETTINGS, name="q")) as q:
        answer = await turn(p, d, ONE)
        said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
        longer = [*ONE, said, {"role": "user", "content": words(50, 2)}]
        ids = answer["prompt_token_ids"] + answer["choices"][0]["token_ids"]
        offer = answer["kv_transfer_params"]
        assert offer["remote_num_tokens"] == len(ids) - 1
        assert len(offer["remote_block_ids"][0]) == -(-offer["remote_num_tokens"] // 16)
        second = await ask(q, longer, offer, max_tokens=1)
        cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (len(ids) - 1) // 16 * 16
        assert used(d) == 0
        assert q.api.handoffs.wrong_blocks == 0
        async with httpx.AsyncClient(trust_env=False) as client:
            rendered = await client.post(
                f"{q.url}/v1/chat/completions/render", json={"model": "sim-model", "messages": longer}
            )
        assert rendered.json()["token_ids"][: len(ids) - 1] == ids[:-1]


async def test_what_does_not_fit_the_prompt_brings_wrong_blocks_and_a_200() -> None:
    async with pair() as (p, d), SimulatedReplica(replace(SETTINGS, name="q")) as q:
        answer = await turn(p, d, ONE)
        other = [{"role": "user", "content": words(1000, "another")}]
        wrong = await ask(q, other, answer["kv_transfer_params"], max_tokens=1)
        assert wrong.status_code == 200
        assert q.api.handoffs.wrong_blocks > 0


@pytest.mark.parametrize("policy", ["fail", "recompute"])
async def test_used_up_offers_fail_or_are_computed(policy: str) -> None:
    async with pair() as (p, d), SimulatedReplica(replace(SETTINGS, name="q", load_failure=policy)) as q:
        offer = (await turn(p, d, ONE))["kv_transfer_params"]
        assert (await ask(p, ONE, offer, max_tokens=1)).status_code == 200
        again = await ask(q, ONE, offer, max_tokens=1)
        assert again.status_code == (500 if policy == "fail" else 200)
        if policy == "recompute":
            assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await until(lambda: q.in_flight == 0)


async def test_what_nobody_fetches_is_given_back_in_time() -> None:
    soon = replace(SETTINGS, prefill_lease_s=5.0)
    async with pair(prefill=soon) as (p, _):
        assert (await ask(p, ONE, PREFILL, max_tokens=1)).status_code == 200
        assert used(p) > 0
        await until(lambda: used(p) == 0)
        assert len(p.api.handoffs) == 0


async def test_an_offer_can_be_let_go_of_without_fetching() -> None:
    async with pair() as (p, d):
        offer = (await turn(p, d, ONE))["kv_transfer_params"]
        released = await ask(p, [{"role": "user", "content": "x"}], offer | {"remote_num_tokens": 0})
        assert released.status_code == 200
        assert (used(d), p.api.handoffs.fetched_blocks) == (0, 0)


async def test_streams_tell_what_is_kept_where_the_engine_is_new_enough() -> None:
    for tells in (False, True):
        async with pair(decode=replace(DECODE, streams_offer=tells)) as (p, d):
            offer = (await ask(p, ONE, PREFILL, max_tokens=1)).json()["kv_transfer_params"]
            stream = (await ask(d, ONE, offer, stream=True)).text
            assert ("remote_num_tokens" in stream) is tells
            assert used(d) > 0


def test_parameters_that_do_not_add_up_end_an_engine_or_are_never_answered() -> None:
    offer = {
        "do_remote_decode": True,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "remote_num_tokens": 100,
    }
    with pytest.raises(BrokenError) as dies:
        fetch_of(offer, 1000, SETTINGS)
    assert dies.value.dies
    with pytest.raises(BrokenError) as hangs:
        fetch_of(offer, 1000, replace(SETTINGS, two_way=False))
    assert not hangs.value.dies
    fits = fetch_of(offer | {"remote_block_ids": [list(range(7))]}, 1000, SETTINGS)
    assert fits is not None
    assert fits.blocks == 6
    assert fetch_of({"do_remote_decode": True}, 1000, SETTINGS) is None
    with pytest.raises(SettingsError, match="load_failure: must be fail or recompute, not x"):
        replace(SETTINGS, load_failure="x")


async def test_a_replica_that_dies_keeps_nothing_for_anybody() -> None:
    async with pair() as (p, d):
        offer = (await ask(p, ONE, PREFILL, max_tokens=1)).json()["kv_transfer_params"]
        await p.restart()
        answer = await ask(d, ONE, offer)
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await asyncio.sleep(0)
