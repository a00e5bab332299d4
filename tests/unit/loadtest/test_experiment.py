"""The experiment: the same requests in each arm, in virtual time, and what travels is not computed again."""

import asyncio
import time
from random import Random

import pytest

from loadtest.experiment.clients import Answered, Outcome
from loadtest.experiment.simulated import Fleet, play
from loadtest.experiment.tables import arms_table, turns_table
from loadtest.experiment.virtual import LoopClock, VirtualLoop
from loadtest.experiment.workload import AGENT_TOKENS, TURN_TOKENS, TURNS, agent, workload


def test_hours_pass_at_once_and_in_order():
    async def wait() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.skip()
        began, woken = LoopClock(loop).now(), []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(round(loop.time() - began))

        await asyncio.gather(*map(sleeper, (7200, 60, 3600)))
        return woken

    began = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(wait()) == [60, 3600, 7200]
    assert time.monotonic() - began < 3600


def test_the_loop_waits_for_sockets_in_real_time_until_it_skips():
    async def shout() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.skip()
        async with server, asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"there\n")
            back = await reader.readline()
            writer.close()
            return back

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(shout()) == b"there\n"


def test_requests_are_shared_out_as_published_and_equal_for_a_seed():
    items = workload(200, 3)
    assert [item.opening for item in items] == [item.opening for item in workload(200, 3)]
    count = {kind: sum(item.kind == kind for item in items) for kind in ("system", "agent", "question")}
    assert count == {"system": 40, "agent": 10, "question": 80}
    one = agent(Random(0), "a")
    assert len(one.additions) == len(one.tools_s) == TURNS - 1
    prompts = [AGENT_TOKENS + TURN_TOKENS * turn for turn in range(TURNS)]
    assert (sum(prompts), max(prompts)) == (26_960, 4840)


@pytest.mark.timeout(300)
def test_an_agents_prompt_is_computed_once_where_its_kv_travels():
    item = agent(Random(1), "agent")
    off, pool, both, affine = (
        play(arm, [item], Fleet(concurrency=1)) for arm in ("off", "push-pool", "both", "affinity + both")
    )
    for outcome in (off, pool, both, affine):
        assert [one.turn for one in outcome.answered] == list(range(1, TURNS + 1))
    assert off.computed_tokens > 2 * both.computed_tokens
    for outcome in (pool, both, affine):
        assert outcome.computed_tokens < 1.1 * max(one.prompt_tokens for one in outcome.answered)
    # From turn 2 on the time to the first token does not grow with the prompt.
    later = [one.ttft_s for one in both.answered[1:]]
    assert max(later) < 2 * min(later) < both.answered[0].ttft_s
    assert affine.ttft_s(0.5) <= both.ttft_s(0.5)


def test_a_token_is_as_many_bytes_as_who_answers_takes_for_one():
    wide, narrow = (workload(100, 3, token_bytes) for token_bytes in (4, 1))
    lengths = [
        sorted(len(message["content"]) for item in items for message in item.opening)
        for items in (wide, narrow)
    ]
    assert lengths[0] == [4 * length for length in lengths[1]]
    assert max(lengths[1]) == 4000


def test_what_a_template_puts_around_texts_is_left_out_of_them():
    bare, framed = (agent(Random(1), "a", 1, framing) for framing in (0, 20))
    (system, asked), (same, less) = ([len(one["content"]) for one in item.opening] for item in (bare, framed))
    assert (system, asked) == (same, less + 20) == (AGENT_TOKENS // 2, AGENT_TOKENS // 2)
    assert [{len(text) for text in item.additions} for item in (bare, framed)] == [{380}, {360}]


def test_tables_show_medians_over_seeds_beside_the_first_arm():
    def outcome(computed: int, *times_s: float) -> Outcome:
        answered = [
            Answered("agent", turn, ttft_s, 1000, 250 * turn) for turn, ttft_s in enumerate(times_s, 1)
        ]
        return Outcome(tuple(answered), computed, 9.0)

    off = [outcome(1000, 0.1, 0.2), outcome(2000, 0.3, 0.4), outcome(4000, 0.5, 0.6)]
    both = [outcome(500, 0.01), outcome(500, 0.03), outcome(3000, 0.02)]
    head, first, second = (line.split() for line in arms_table({"off": off, "both": both}).splitlines())
    assert first == ["off", "400", "ms", "400", "ms", "38%", "2000", "+0%"]
    assert second == ["both", "20", "ms", "20", "ms", "25%", "500", "-50%"]
    assert head[-2:] == ["prefill", "work"]
    assert turns_table({"off": off[0], "both": off[1]}).splitlines()[1].split()[:4] == [
        "off",
        "2000",
        "1000",
        "100",
    ]
