"""Sessions that take one streamed turn after another, and how each turn ended. Knows nothing of routers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import aiohttp

MODEL: Final = "sim-model"

# Words of four letters, a token each at the simulated replica.
_WORDS: Final = tuple(f"{one}{two}{three} " for one in "bdfgklmn" for two in "aeiou" for three in "lnrst")

_PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Turn:
    """How one ended."""

    session: str
    replica: str
    """That answered; "" where none did."""
    kind: str
    status: int
    """0 = no answer."""
    fault: str
    """What went wrong, "" if nothing did."""
    told: bool
    """Where it broke off: whether the stream ended with an error event that says so."""
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Shape:
    """What the sessions do."""

    system_tokens: int = 200
    """Of each session's own."""
    user_tokens: int = 60
    """That each turn adds, beside the reply."""
    reply_tokens: int = 20
    turns: int = 0
    """Of a session, after which another one takes its place; 0 = it goes on for ever."""
    fresh_connections: bool = False
    """Each turn connects anew, so that whoever shares the address may get it."""


@dataclass(slots=True)
class Load:
    """So many sessions at once, each at one URL or taking turns over several."""

    urls: Callable[[], Sequence[str]]
    streams: int
    shape: Shape = field(default_factory=Shape)
    seed: int = 1
    ended: list[Turn] = field(default_factory=list)
    under_way: Counter[str] = field(default_factory=Counter)
    """Turns, by the URL that they were sent to."""
    stopping: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `stop`: each turn that has begun is finished."""
        connector = aiohttp.TCPConnector(limit=0, force_close=self.shape.fresh_connections)
        timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(self.streams):
                group.create_task(self._stream(http, number))

    def stop(self) -> None:
        """Begin no further turns."""
        self.stopping = True

    async def reached(self, turns: int) -> None:
        """Wait until so many more turns have ended."""
        wanted = len(self.ended) + turns
        await self._until(lambda: len(self.ended) >= wanted)

    async def left(self, url: str) -> None:
        """Wait until no turn is under way there."""
        await self._until(lambda: not self.under_way[url])

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._changed.clear()
            await self._changed.wait()

    async def _stream(self, http: aiohttp.ClientSession, number: int) -> None:
        life = 0
        while not self.stopping:
            await self._session(http, f"s{number}-{life}", Random(f"{self.seed} {number} {life}"))
            life += 1

    async def _session(self, http: aiohttp.ClientSession, session: str, rng: Random) -> None:
        messages = [{"role": "system", "content": _text(rng, self.shape.system_tokens)}]
        turn = 0
        while not self.stopping and (not self.shape.turns or turn < self.shape.turns):
            messages.append({"role": "user", "content": _text(rng, self.shape.user_tokens)})
            urls = self.urls()
            # Two routers behind a balancer: a session's turns go now here, now there.
            url = urls[rng.randrange(len(urls))]
            self.under_way[url] += 1
            ended, said = await self._turn(http, url, session, messages)
            self.under_way[url] -= 1
            self.ended.append(ended)
            self._changed.set()
            if ended.fault:
                messages.pop()
                await asyncio.sleep(0.05)
                continue
            messages.append({"role": "assistant", "content": said})
            turn += 1

    async def _turn(
        self, http: aiohttp.ClientSession, url: str, session: str, messages: list[dict[str, str]]
    ) -> tuple[Turn, str]:
        body = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": self.shape.reply_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        replica, kind, status = "", "", 0
        said, told, done = [], False, False
        usage: dict[str, Any] = {}
        fault = ""
        try:
            async with http.post(
                f"{url}/v1/chat/completions", json=body, headers={"X-Session-ID": session}
            ) as answer:
                status = answer.status
                replica = answer.headers.get("x-homing-replica", "")
                kind = answer.headers.get("x-homing-decision", "")
                if status != 200:
                    fault = f"{status}: {(await answer.text())[:300]}"
                async for event in _events(answer):
                    if event == "[DONE]":
                        done = True
                        continue
                    found = json.loads(event)
                    if "error" in found:
                        told, fault = True, str(found["error"].get("message", ""))[:300]
                    for choice in found.get("choices", ()):
                        said.append(choice["delta"].get("content") or "")
                    usage = found.get("usage") or usage
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            fault = fault or f"{type(error).__name__}: {error}"
        if not fault and not done:
            fault = "the stream ended before its end, without a word"
        details = usage.get("prompt_tokens_details") or {}
        ended = Turn(
            session,
            replica,
            kind,
            status,
            fault,
            told,
            usage.get("prompt_tokens", 0),
            details.get("cached_tokens", 0),
        )
        return ended, "".join(said)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in answer.content:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


def _text(rng: Random, tokens: int) -> str:
    return "".join(rng.choice(_WORDS) for _ in range(tokens))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a steady load noticed."""

    turns: int
    broken_off: int
    """Streams that ran on the replica that was killed, and ended with an error event."""
    failed: tuple[Turn, ...]
    """All others that did not end well: there must be none."""


def judge(ended: Sequence[Turn], killed: str) -> Verdict:
    """`killed`: the replica that was."""
    faulty = [turn for turn in ended if turn.fault]
    failed = [turn for turn in faulty if not (turn.replica == killed and turn.status == 200 and turn.told)]
    return Verdict(len(ended), len(faulty) - len(failed), tuple(failed))


def hit_rate(ended: Sequence[Turn]) -> float:
    """Cached tokens of all prompts, as their replicas reported them; 0 where there are none."""
    prompts = sum(turn.prompt_tokens for turn in ended)
    return sum(turn.cached_tokens for turn in ended) / prompts if prompts else 0.0


def kinds(ended: Sequence[Turn]) -> str:
    """Turns by decision, in words."""
    counts = Counter(turn.kind or "none" for turn in ended)
    return ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
