from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.insight import NoHistory, insight

from router.base.clock import ManualClock
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.controlplane.answers import proper_answers
from router.controlplane.insight import Insight
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec
from router.core.plan import Plan, QueueRules
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.residency import Residency
from router.core.strategies.priced import Priced

A = ReplicaId("a")
KEY = "0123456789abcdef" * 2


def engine() -> Engine:
    made = Engine([Plan(name="home", strategy=Priced(), queue=QueueRules())], rng=Random(1))
    made.set_replicas([ReplicaSpec(A, "http://a:1")], 0.0)
    made.probe_passed(A, 0.0)
    return made


def turn(session: str = KEY, size: int = 4000) -> Turn:
    chain = Chain((hash(session) & 0xFFFF,), (size,), 1)
    return Turn(
        "/v1/chat/completions", "m", OPEN_TENANT, SessionKey(session), "x-session-id", chain, stream=True
    )


class Client:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def get(self, path: str) -> Any:
        status, answer = await self.ask(path)
        assert status == 200, answer
        return answer

    async def ask(self, path: str) -> tuple[int, Any]:
        async with self._http.get(self._url + path) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def serving(fleet: Engine | None = None, now: float = 100.0, **given: object) -> AsyncIterator[Client]:
    app = web.Application(middlewares=[proper_answers])
    Insight(fleet if fleet is not None else engine(), ManualClock(now), insight(**given)).add_to(app.router)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as http:
            yield Client(http, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def lived(*sessions: str) -> Engine:
    fleet = engine()
    for at, session in enumerate(sessions):
        ticket = fleet.admit(turn(session), 10.0 + at)
        ticket.first_byte(10.0 + at)
    return fleet


async def test_sessions_are_shown_with_ages_and_without_the_hash_of_their_prompt() -> None:
    async with serving(lived(KEY), session=lambda key, now: {"more": (key[:4], now)}) as client:
        answer = await client.get("/api/sessions?limit=1")
    [shown] = answer["sessions"]
    assert shown.pop("key").startswith(KEY)
    assert shown.pop("resident_tokens") > 0
    assert shown == {
        "model": "m",
        "tenant": "",
        "home": "a",
        "turns": 1,
        "moves": 0,
        "source": "x-session-id",
        "age_s": 90.0,
        "idle_s": 90.0,
        "more": ["0123", 100.0],
    }
    assert (answer["total"], answer["matching"], answer["searched"]) == (1, 1, 1)


async def test_sessions_are_searched_and_paged() -> None:
    fleet = lived("a" * 32, "b" * 32, "c" * 32)
    async with serving(fleet) as client:

        async def keys(query: str) -> list[str]:
            return [each["key"][0] for each in (await client.get(f"/api/sessions?{query}"))["sessions"]]

        assert await keys("limit=2") == ["c", "b"]
        assert await keys("limit=2&offset=2") == ["a"]
        assert await keys("find=bbbb") == ["b"]
        assert await keys("home=a&order=tokens") == ["c", "b", "a"]
        assert await keys("home=nowhere") == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("order=age", "bad_order"),
        ("offset=-1", "bad_offset"),
        ("offset=x", "bad_offset"),
        ("limit=0", "bad_limit"),
    ],
)
async def test_a_wish_for_sessions_that_is_not_understood_is_refused(query: str, code: str) -> None:
    async with serving() as client:
        status, answer = await client.ask(f"/api/sessions?{query}")
    assert (status, answer["error"]["code"]) == (400, code)


async def test_one_session_is_told_with_where_it_lies_and_where_it_lived() -> None:
    fleet = lived(KEY)
    residency = Residency()
    residency.stored([1, 2], None, 16, SessionKey(KEY))
    fleet.follow(A, residency)
    stays = {KEY: {"stays": [1]}}
    async with serving(fleet, timeline=stays.get) as client:
        for key in (KEY, fleet.sessions(1)[0].key):
            answer = await client.get(f"/api/sessions/{key}")
            assert answer["key"] == key
            assert [each["home"] for each in answer["sessions"]] == ["a"]
            assert answer["whereabouts"] == [{"place": "a", "tokens": 32, "told_by": "events"}]
            assert answer["timeline"] == {"stays": [1]}


async def test_a_session_that_ended_is_told_by_its_timeline_and_an_unknown_one_is_not() -> None:
    stays = {KEY: {"stays": []}}
    async with serving(timeline=stays.get) as client:
        assert (await client.get(f"/api/sessions/{KEY}"))["sessions"] == []
        status, answer = await client.ask("/api/sessions/nobody")
    assert (status, answer["error"]["code"]) == (404, "no_such_session")


async def test_decisions_are_asked_for_as_wished() -> None:
    asked: list[tuple[int, dict[str, object]]] = []

    def decisions(limit: int, **of: object) -> list[dict[str, object]]:
        asked.append((limit, of))
        return [{"id": 1}]

    async with serving(decisions=decisions) as client:
        assert await client.get("/api/decisions") == {"decisions": [{"id": 1}]}
        await client.get("/api/decisions?limit=7&brief=1&session=k&replica=a&kind=pull")
        status, answer = await client.ask("/api/decisions?brief=yes")
    assert (status, answer["error"]["code"]) == (400, "bad_brief")
    assert asked == [
        (100, {"brief": False, "session": None, "replica": None, "kind": None}),
        (7, {"brief": True, "session": "k", "replica": "a", "kind": "pull"}),
    ]


async def test_one_decision_is_found_by_its_id() -> None:
    bills = {7: {"id": 7, "options": []}}
    async with serving(decision=bills.get) as client:
        assert await client.get("/api/decisions/7") == {"id": 7, "options": []}
        for text in ("8", "x", "-7", "7.0", "9" * 30, "%EF%BC%97"):
            status, answer = await client.ask(f"/api/decisions/{text}")
            assert (status, answer["error"]["code"]) == (404, "no_such_decision"), text


async def test_held_turns_are_shown_with_what_they_wait_for() -> None:
    fleet = engine()
    waiting = [
        held
        for number in range(40)
        if isinstance(held := fleet.enter(turn(f"{number:032d}", 40_000), 90.0 + number / 8, size=70), Held)
    ]
    assert waiting
    async with serving(fleet) as client:
        answer = await client.get("/api/held?limit=2")
    assert answer["total"] == len(waiting)
    assert len(answer["held"]) == 2
    first = answer["held"][0]
    assert first["session"] == waiting[0].turn.session
    assert (first["replica"], first["kind"], first["model"], first["body_bytes"]) == ("a", "new", "m", 70)
    assert first["waited_s"] == 100.0 - waiting[0].arrived
    assert first["deadline_in_s"] == waiting[0].deadline - 100.0
    assert first["missing_tokens"] == first["prompt_tokens"] > 0


async def test_what_telemetry_made_is_handed_on() -> None:
    async with serving(
        moves=lambda limit: {"limit": limit},
        breaks=lambda limit, now: {"limit": limit, "now": now},
        history=NoHistory(),
    ) as client:
        assert await client.get("/api/moves?limit=3") == {"limit": 3}
        assert await client.get("/api/breaks") == {"limit": 100, "now": 100.0}
        assert await client.get("/api/history") == {"turns": []}
