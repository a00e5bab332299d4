"""The clients of the experiment: so many at once, each with one item after the other, over HTTP.

They know nothing of what answers them, and go by the loop's clock, virtual or not.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from loadtest.agents.answers import Answer
from loadtest.experiment.workload import ANSWER_TOKENS, Item

_RAMP_S: Final = 30.0
"""In which the clients begin, one after the other."""
_LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One request."""

    kind: str
    turn: int
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm measured."""

    answered: tuple[Answered, ...]
    computed_tokens: int
    """Prompt tokens that the replicas computed."""
    seconds: float
    """From the first request to the last answer."""

    @property
    def hit_rate(self) -> float:
        return sum(one.cached_tokens for one in self.answered) / self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(one.prompt_tokens for one in self.answered)

    def ttft_s(self, share: float) -> float:
        """The time to first token that so large a share of the requests stayed within."""
        times = sorted(one.ttft_s for one in self.answered)
        return times[min(len(times) - 1, int(share * len(times)))]


async def ask_all(url: str, model: str, items: Sequence[Item], concurrency: int) -> tuple[Answered, ...]:
    """Have so many clients ask all of the items of the router at `url`. Raises `RuntimeError` for an answer
    that is none."""
    waiting = list(reversed(items))
    answered: list[Answered] = []
    limits = httpx.Limits(max_connections=None)

    async def work(client: httpx.AsyncClient, starts_s: float) -> None:
        await asyncio.sleep(starts_s)
        while waiting:
            await _converse(client, model, waiting.pop(), answered)

    async with (
        httpx.AsyncClient(base_url=url, timeout=_LIMIT_S, trust_env=False, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(concurrency):
            starts_s = number * _RAMP_S / concurrency
            group.create_task(work(client, starts_s), name=f"client {number}")
    return tuple(answered)


async def _converse(client: httpx.AsyncClient, model: str, item: Item, answered: list[Answered]) -> None:
    """Ask an item's requests, each once the one before is answered."""
    messages = list(item.opening)
    for turn, (added, tool_s) in enumerate(zip(["", *item.additions], [0.0, *item.tools_s], strict=True), 1):
        if added:
            await asyncio.sleep(tool_s)
            messages.append({"role": "user", "content": added})
        said, one = await _ask(client, model, item, turn, messages)
        answered.append(one)
        messages.append({"role": "assistant", "content": said})


async def _ask(
    client: httpx.AsyncClient, model: str, item: Item, turn: int, messages: list[dict[str, str]]
) -> tuple[str, Answered]:
    loop = asyncio.get_running_loop()
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ANSWER_TOKENS,
        "min_tokens": ANSWER_TOKENS,
        # The likeliest, so that equal seeds are asked equal things in what follows an answer, too.
        "temperature": 0.0,
    }
    headers = {"X-Session-ID": item.session} if item.session else {}
    began, answer = loop.time(), Answer()
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for data in response.aiter_bytes():
            answer.feed(data, loop.time())
    if not answer.complete or answer.prompt_tokens is None:
        raise RuntimeError(f"an answer that breaks off: {answer.error or 'without a reason'}")
    ttft_s = next(iter(answer.came_at), loop.time()) - began
    one = Answered(item.kind, turn, ttft_s, answer.prompt_tokens, answer.cached_tokens or 0)
    return answer.text, one
