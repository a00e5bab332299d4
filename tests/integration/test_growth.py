"""A router that lives long does not grow: what it remembers is bounded, what a turn takes it gives back."""

import gc
import sys
from random import Random

import pytest
from support.plane import data_plane, settled, until
from support.raw import RawClient, RawReplica, Request, Stream, post, raw_client, raw_replica

from router.base.clock import SystemClock
from router.core.engine import Engine
from router.core.model import Models
from router.core.plan import Plan
from router.core.prefix import PrefixIndex
from router.core.session import SessionTable
from router.core.stored import StoredResponses
from router.core.strategies.priced import Priced
from router.dataplane import routing
from router.telemetry.counters import Counters
from router.telemetry.fanout import Fanout
from router.telemetry.recent import RecentDecisions

TURNS = 1500
"""In each of the two halves: far more than any of the tables here holds."""

USAGE = {"prompt_tokens": 90, "completion_tokens": 2, "total_tokens": 92}


async def answer(request: Request, stream: Stream) -> None:
    number = len(request.body)
    if "/responses" in request.line:
        await stream.send_json({"id": f"resp_{request.headers['x-request-id']}", "object": "response"})
    elif b'"stream":true' in request.body:
        await stream.start_events()
        await stream.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        await stream.chunk(b"data: [DONE]\n\n")
        await stream.end()
    else:
        await stream.send_json({"id": f"x{number}", "choices": [], "usage": USAGE})


def turn(number: int) -> bytes:
    """No two are of one session, and no two say the same."""
    messages = [{"role": "user", "content": f"{number} {place} {'x' * 200}"} for place in range(4)]
    # A tenant's stored responses are its own, so those turns are of one.
    tenant = 0 if number % 3 == 2 else number
    headers = (f"X-Session-ID: s{number}", f"X-Request-Id: q{number}", f"X-Tenant: t{tenant}")
    model = f"m{number % 90}"
    match number % 3:
        case 0:
            return post({"model": model, "messages": messages}, *headers)
        case 1:
            return post({"model": model, "messages": messages, "stream": True}, *headers)
        case _:
            body: dict[str, object] = {"model": model, "input": messages}
            if number > 2:
                body["previous_response_id"] = f"resp_q{number - 3}"
            return post(body, *headers, path="/v1/responses")


async def run(client: RawClient, port: int, replica: RawReplica, numbers: range) -> None:
    for number in numbers:
        response = await client.exchange(turn(number))
        assert response.status == 200, response.body
        if number % 50 == 0:
            async with raw_client(port) as leaves:
                await leaves.send(turn(-number))
                leaves.abort()
            replica.requests.clear()


def blocks() -> int:
    """Pieces of memory in use in this process. A string that is kept somewhere is one, as is an object."""
    gc.collect()
    return sys.getallocatedblocks()


async def test_some_thousand_turns_of_ever_new_sessions_leave_the_router_as_large_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "_REMEMBERED_KEYS", 100)
    monkeypatch.setattr(routing, "_REMEMBERED_SALTS", 100)
    clock = SystemClock()
    plan = Plan(name="home", strategy=Priced())
    engine = Engine(
        [plan],
        rng=Random(3),
        observer=Fanout((Counters(), RecentDecisions(clock, max_records=100))),
        index=PrefixIndex(max_segments=500),
        sessions=SessionTable(max_sessions=200),
        models=Models(most=40),
        responses=StoredResponses(most=100),
    )
    async with (
        raw_replica(answer) as one,
        raw_replica(answer) as two,
        data_plane([one.url, two.url], plan=plan, engine=engine, tenant_header="x-tenant") as plane,
        raw_client(plane.port) as client,
    ):
        sizes = []
        for half in range(2):
            await run(client, plane.port, one, range(half * TURNS, (half + 1) * TURNS))
            await settled(plane)
            await until(lambda: len(plane.connections) == 1)
            one.requests.clear()
            two.requests.clear()
            sizes.append(blocks())
    assert sizes[1] - sizes[0] < TURNS / 4, sizes
