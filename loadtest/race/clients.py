"""The sessions: as many at once as the scenario says, each sending its next turn when the last is answered.

Each has a connection of its own, kept alive. A request that met a connection which was closed as it was sent
goes again, once, as HTTP clients do.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple, cast

import httptools

from loadtest.agents.answers import Answer
from loadtest.agents.conversation import Conversation
from loadtest.agents.profile import Profile
from loadtest.agents.sessions import Planner, SessionPlan, TurnPlan, place
from router.base.tasks import TaskOwner

TURN_S: Final = 120.0
"""Real seconds after which a turn has failed."""


class Turn(NamedTuple):
    """One turn, over. Times are simulated seconds since the start."""

    at_s: float
    """When it was sent."""
    ended_s: float
    place: str
    ttft_s: float | None
    """`None` where no content came."""
    failure: str | None
    """Why it did not come through."""


class Session(NamedTuple):
    """A session that came to its end, and was played from its first turn."""

    began_s: float
    ended_s: float


@dataclass(slots=True)
class Played:
    """What came of it all."""

    turns: list[Turn] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)


class Crowd:
    """The sessions of one run."""

    def __init__(
        self, profile: Profile, seed: int, *, port: int, count: int, scale: float, come_within_s: float
    ) -> None:
        """`scale`: simulated seconds a real one. The first `count` sessions come one after the other within
        `come_within_s` simulated seconds."""
        self.played = Played()
        self._profile = profile
        self._seed = seed
        self._planner = Planner(profile, seed)
        self._port = port
        self._count = count
        self._scale = scale
        self._come_within_s = come_within_s
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._tasks = TaskOwner()

    def now(self) -> float:
        return (self._loop.time() - self._origin) * self._scale

    def begin(self) -> None:
        self._origin = self._loop.time()
        for slot in range(self._count):
            self._tasks.spawn(self._user(slot), name=f"user {slot}")

    async def close(self) -> None:
        """All that is under way is left; it counts neither as answered nor as failed."""
        await self._tasks.close()

    async def sleep_until(self, at_s: float) -> None:
        await asyncio.sleep((at_s - self.now()) / self._scale)

    async def _user(self, slot: int) -> None:
        """Sessions slot, slot + count, slot + 2 count, …: which ones does not depend on anybody's speed."""
        number = slot
        await asyncio.sleep(self._come_within_s * slot / self._count / self._scale)
        while True:
            plan = self._planner.session(number)
            # The first ones are met half-way: a fleet is never asked a hundred first turns at once.
            met = Random(f"{self._seed}/met/{slot}").randrange(len(plan.turns)) if number == slot else 0
            began = self.now()
            done = await self._play(plan, met)
            if done and met == 0:
                self.played.sessions.append(Session(began, self.now()))
            if not done:
                # As its user would, who reads the error first.
                await asyncio.sleep(1.0 / self._scale)
            number += self._count

    async def _play(self, plan: SessionPlan, met: int) -> bool:
        """Whether it came to its end."""
        conversation = Conversation(
            plan,
            model="sim-model",
            compaction=self._profile.kinds[plan.kind].compaction,
            exact_answers=self._profile.exact_answers,
        )
        for turn in plan.turns[:met]:
            conversation.pretend(turn)
        headers = f"{self._profile.header}: {plan.id}\r\n"
        if plan.parent is not None:
            headers += f"X-Parent-Session-ID: {plan.parent}\r\n"
        connection = _Connection(self._port)
        try:
            for number, turn in enumerate(plan.turns[met:], met):
                if number > met:
                    await asyncio.sleep(turn.gap_s / self._scale)
                answer = await self._turn(connection, headers, conversation.ask(turn), number, turn)
                if answer is None:
                    return False
                conversation.answered(answer.text)
                if turn.agent is not None and not await self._play(turn.agent, 0):
                    return False
            return True
        finally:
            connection.close()

    async def _turn(
        self, connection: "_Connection", headers: str, body: bytes, number: int, turn: TurnPlan
    ) -> Answer | None:
        at = self.now()
        began = self._loop.time()
        answer = Answer()
        leaves_after = None
        if turn.leaves_after is not None:
            leaves_after = max(1, int(turn.leaves_after * turn.answer_tokens))
        failure: str | None
        try:
            async with asyncio.timeout(TURN_S):
                failure = await connection.ask(
                    request(self._port, headers, body), answer, leaves_after=leaves_after
                )
        except TimeoutError:
            failure = f"no end within {TURN_S:g} s"
            connection.close()
        except OSError as error:
            failure = f"no connection: {error}"
        if failure == LEFT:
            failure = None
        elif failure is None and len(answer.came_at) < turn.answer_tokens:
            failure = "answer too short"
        ttft = (answer.came_at[0] - began) * self._scale if answer.came_at else None
        self.played.turns.append(Turn(at, self.now(), place(number), ttft, failure))
        return answer if failure is None else None


def request(port: int, headers: str, body: bytes) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection:
    """A client's connection, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire: _Wire | None = None

    async def ask(self, request: bytes, answer: Answer, *, leaves_after: int | None = None) -> str | None:
        """Send it and read the answer to its end: what went wrong, `None` for nothing, `LEFT` where the
        connection was closed after so many pieces of content. Raises `OSError` where there is none."""
        for _ in range(2):
            reused = self._wire is not None and not self._wire.transport.is_closing()
            if not reused:
                _, self._wire = await asyncio.get_running_loop().create_connection(
                    _Wire, "127.0.0.1", self._port
                )
            assert self._wire is not None
            failure = await self._wire.ask(request, answer, leaves_after)
            if not (reused and failure == _CLOSED):
                break
        return failure

    def close(self) -> None:
        if self._wire is not None:
            self._wire.transport.abort()
            self._wire = None


_CLOSED: Final = "closed without an answer"
LEFT: Final = "left"


class _Wire(asyncio.Protocol):
    """One request after the other. Called back by the parser for the parts of an answer."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = Answer()
        self._parser: httptools.HttpResponseParser | None = None
        self._done: asyncio.Future[str | None] | None = None
        self._errors = b""
        self._began = False
        self._leaves_after: int | None = None

    def ask(self, request: bytes, answer: Answer, leaves_after: int | None) -> "asyncio.Future[str | None]":
        self._answer = answer
        self._leaves_after = leaves_after
        self._errors = b""
        self._began = False
        self._parser = httptools.HttpResponseParser(self)
        self._done = self._loop.create_future()
        self.transport.write(request)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._end("cut" if self._began else _CLOSED)

    def data_received(self, data: bytes) -> None:
        self._began = True
        try:
            assert self._parser is not None
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._end(f"no answer that can be read: {error}")
            self.transport.abort()

    def on_body(self, piece: bytes) -> None:
        assert self._parser is not None
        if self._parser.get_status_code() == 200:
            self._answer.feed(piece, self._loop.time())
            if self._leaves_after is not None and len(self._answer.came_at) >= self._leaves_after:
                self._end(LEFT)
                self.transport.abort()
        else:
            self._errors += piece

    def on_message_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.transport.close()
        if status != 200:
            self._end(f"{status}: {self._errors[:300].decode(errors='replace')}")
        elif self._answer.error is not None:
            self._end(f"cut: {self._answer.error[:300]}")
        else:
            self._end(None if self._answer.complete else "cut")

    def _end(self, failure: str | None) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            done.set_result(failure)


def was_cut(turn: Turn) -> bool:
    """Whether it failed with part of the answer given: what no router can mend."""
    return turn.failure is not None and turn.ttft_s is not None
