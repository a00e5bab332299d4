"""Turns that wait in the router, over real sockets."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

import httpx
from support.fleet import fleet, make_wait
from support.plane import data_plane, pass_time, until
from support.raw import RawClient, RawReplica, Request, Stream, chat, post, raw_client, raw_replica

from router.base.ids import ReplicaId, TenantId
from router.core.plan import Plan, QueueRules, Retry
from router.core.queue import Held
from router.core.request import Chain, Turn
from router.core.strategies.ring import RingOnly
from router.dataplane.limits import Limits
from router.dataplane.server import DataPlane
from router.settings.access import AccessKeys

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\ndata: [DONE]\n\n'

LONG = 60_000
"""Bytes of a prompt above the horizon of 8,192 tokens."""


@dataclass
class Gate:
    """A replica that begins to answer a prompt when the test says so, by the prompt's first word."""

    open: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    came: list[str] = field(default_factory=list)

    async def __call__(self, request: Request, stream: Stream) -> None:
        content: str = request.json()["messages"][0]["content"]  # type: ignore[index]
        name = content.split()[0]
        self.came.append(name)
        await self.open[name].wait()
        await stream.start_events()
        await stream.chunk(EVENT + LAST)
        await stream.end()


@dataclass
class Bench:
    """A router with a queue in front of one gate."""

    plane: DataPlane
    gate: Gate
    replica: RawReplica
    stack: AsyncExitStack

    async def send(self, name: str, *headers: str, size: int = 100) -> RawClient:
        """Send a prompt that begins with this word, and wait until the router has dealt with it."""
        client = await self.stack.enter_async_context(raw_client(self.plane.port))
        dealt = len(self.gate.came) + len(self.plane.waiting)
        content = chat(f"{name} " + "x" * size, stream=True)
        await client.send(post(content, f"X-Session-ID: {name}", *headers))
        await until(lambda: len(self.gate.came) + len(self.plane.waiting) > dealt)
        return client

    def let(self, *names: str) -> None:
        for name in names:
            self.gate.open[name].set()


@asynccontextmanager
async def bench(rules: QueueRules | None = None, **more: object) -> AsyncIterator[Bench]:
    plan = Plan(name="q", strategy=RingOnly(), queue=rules or QueueRules())
    gate = Gate()
    async with raw_replica(gate) as replica, data_plane([replica.url], plan=plan, **more) as plane:  # type: ignore[arg-type]
        async with AsyncExitStack() as stack:
            made = Bench(plane, gate, replica, stack)
            yield made
            for name in made.gate.came:
                made.let(name)
        assert not plane.waiting
        assert plane.engine.held == 0


async def test_an_idle_router_holds_nothing() -> None:
    async with bench() as of:
        client = await of.send("a")
        of.let("a")
        answer = await client.response()
        assert answer.status == 200
        assert "x-homing-waited-ms" not in answer.headers


async def test_turns_wait_here_and_the_shortest_goes_first() -> None:
    async with bench() as of:
        first = await of.send("cold", size=LONG)
        longer = await of.send("longer", size=LONG)
        shorter = await of.send("shorter")
        assert of.gate.came == ["cold"]
        assert of.plane.engine.held == 2
        # uvloop's time goes by milliseconds: less than one is no wait.
        await pass_time(of.plane.now, 0.002)
        of.let("cold")
        await first.response()
        await until(lambda: len(of.gate.came) == 3)
        # The shorter one leaves room for the longer.
        assert of.gate.came == ["cold", "shorter", "longer"]
        of.let("shorter", "longer")
        answer = await shorter.response()
        assert answer.headers["x-homing-decision"] == "new"
        assert int(answer.headers["x-homing-waited-ms"]) > 0
        assert (await longer.response()).status == 200


async def test_a_client_that_leaves_leaves_the_queue() -> None:
    async with bench() as of:
        await of.send("cold", size=LONG)
        leaver = await of.send("leaver")
        assert of.plane.engine.held == 1
        leaver.abort()
        await until(lambda: of.plane.engine.held == 0)
        assert of.plane.held_bytes < LONG + 500
        assert of.gate.came == ["cold"]


async def test_a_client_that_closes_its_sending_side_keeps_its_place_and_one_that_goes_does_not() -> None:
    async with bench() as of:
        await of.send("cold", size=LONG)
        half, gone = await of.send("half"), await of.send("gone")
        half.writer.write_eof()
        gone.writer.close()
        await until(lambda: of.plane.engine.held == 1)
        of.let("cold", "half")
        assert (await half.response()).status == 200


async def test_a_turn_whose_time_is_up_is_refused_and_told_when_to_come_back() -> None:
    async with bench(QueueRules(wait_s=0.2)) as of:
        await of.send("cold", size=LONG)
        answer = await (await of.send("late")).response()
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert isinstance(error, dict)
        assert error["code"] == "queue_expired"
        assert of.gate.came == ["cold"]


async def test_a_client_that_waits_less_than_the_policy_lets_hears_in_time() -> None:
    async with bench() as of:
        await of.send("cold", size=LONG)
        began = of.plane.now()
        answer = await (await of.send("late", "X-Stainless-Read-Timeout: 1")).response()
        assert answer.status == 429
        assert 0.8 < of.plane.now() - began < 1.3


async def test_a_total_limit_bounds_the_wait_too() -> None:
    async with bench(limits=Limits(total_s=0.6)) as of:
        cold = await of.send("cold", size=LONG)
        answer = await (await of.send("late")).response()
        assert answer.status in (429, 504)
        assert (await cold.response()).status == 504


async def test_the_time_to_the_first_byte_begins_when_the_turn_is_sent_on() -> None:
    async with bench(limits=Limits(first_byte_s=3.0)) as of:
        cold = await of.send("cold", size=LONG)
        patient = await of.send("patient")
        await pass_time(of.plane.now, 0.6)
        of.let("cold")
        await cold.response()
        await until(lambda: "patient" in of.gate.came)
        await pass_time(of.plane.now, 0.5)
        of.let("patient")
        assert (await patient.response()).status == 200


async def test_a_full_queue_is_a_429() -> None:
    async with bench(QueueRules(most=1)) as of:
        await of.send("cold", size=LONG)
        await of.send("second")
        async with raw_client(of.plane.port) as client:
            answer = await client.exchange(post(chat("third", stream=True)))
        assert answer.status == 429
        assert "retry-after" in answer.headers
        assert "queue_full" in answer.body.decode()


async def test_a_tenant_that_fills_the_queue_makes_room_for_another() -> None:
    keys = {b"k1": TenantId("acme"), b"k2": TenantId("beta")}
    access = AccessKeys((sha256(key).digest(), tenant) for key, tenant in keys.items())
    async with bench(QueueRules(most=2), access=access) as of:
        await of.send("cold", "Authorization: Bearer k1", size=LONG)
        await of.send("two", "Authorization: Bearer k1")
        three = await of.send("three", "Authorization: Bearer k1", size=500)
        async with raw_client(of.plane.port) as other:
            await other.send(post(chat("other", stream=True), "Authorization: Bearer k2"))
            assert (await three.response()).status == 429
            of.let("cold", "two", "other")
            assert (await other.response()).status == 200


async def test_a_turn_that_is_pushed_out_and_whose_client_leaves_holds_up_nobody() -> None:
    keys = {b"k1": TenantId("acme"), b"k2": TenantId("beta")}
    access = AccessKeys((sha256(key).digest(), tenant) for key, tenant in keys.items())
    async with bench(QueueRules(most=2), access=access) as of:
        cold = await of.send("cold", "Authorization: Bearer k1", size=LONG)
        two = await of.send("two", "Authorization: Bearer k1")
        three = await of.send("three", "Authorization: Bearer k1", size=500)
        # It comes without a client, so nothing else has the router look before the one of `three` leaves.
        turn = Turn(
            "/v1/chat/completions", "m", TenantId("beta"), None, "", Chain((1,), (400,), 1), stream=True
        )
        entered = of.plane.engine.enter(turn, of.plane.now())
        assert isinstance(entered, Held)
        three.abort()
        await until(lambda: len(of.plane.waiting) == 1)
        of.let("cold", "two")
        assert (await cold.response()).status == 200
        assert (await two.response()).status == 200
        await until(lambda: of.plane.engine.in_flight() == 0)


async def test_a_priority_passes_and_an_unknown_one_is_refused() -> None:
    async with bench(QueueRules(leads_s={"high": 3600.0})) as of:
        cold = await of.send("cold", size=LONG)
        await of.send("usual")
        await of.send("urgent", "X-Homing-Priority: high", size=30_000)
        async with raw_client(of.plane.port) as client:
            answer = await client.exchange(post(chat("x", stream=True), "X-Homing-Priority: now"))
        assert answer.status == 400
        assert "high" in answer.body.decode()
        of.let("cold")
        await cold.response()
        await until(lambda: len(of.gate.came) == 3)
        assert of.gate.came == ["cold", "urgent", "usual"]
        assert b"x-homing-priority" not in of.replica.requests[1].head.lower()


async def test_a_priority_is_passed_on_to_engines_that_are_said_to_go_by_it() -> None:
    async def sent(rules: QueueRules, *headers: str, path: str = "/v1/chat/completions") -> dict[str, object]:
        async def answer(_request: Request, stream: Stream) -> None:
            await stream.send_json({"choices": [], "usage": {"prompt_tokens": 1}})

        plan = Plan(name="q", strategy=RingOnly(), queue=rules)
        async with raw_replica(answer) as replica, data_plane([replica.url], plan=plan) as plane:
            async with raw_client(plane.port) as client:
                mine = {**chat("x"), "priority": -99}
                assert (await client.exchange(post(mine, *headers, path=path))).status == 200
            body = replica.requests[0].json()
            assert isinstance(body, dict)
            return body

    leads = {"high": 120.0, "low": -120.0, "usual": 0.0}
    told = QueueRules(leads_s=leads, engine_priorities=True)
    assert (await sent(told, "X-Homing-Priority: high"))["priority"] == -120
    assert (await sent(told, "X-Homing-Priority: low"))["priority"] == 120
    for headers, path in (
        ((), "/v1/chat/completions"),
        (("X-Homing-Priority: usual",), "/v1/chat/completions"),
        (("X-Homing-Priority: high",), "/v1/messages"),
    ):
        assert "priority" not in await sent(told, *headers, path=path)
    assert "priority" not in await sent(QueueRules(leads_s=leads), "X-Homing-Priority: high")


async def test_a_policy_without_a_queue_takes_no_notice_of_a_priority() -> None:
    gate = Gate()
    gate.open["a"].set()
    async with (
        raw_replica(gate) as replica,
        data_plane([replica.url]) as plane,
        raw_client(plane.port) as client,
    ):
        answer = await client.exchange(post(chat("a", stream=True), "X-Homing-Priority: high"))
    assert answer.status == 200


async def test_a_turn_that_a_replica_failed_does_not_wait_again() -> None:
    async def fails(request: Request, stream: Stream) -> None:
        await stream.send_json({"error": "no"}, "503 Service Unavailable")

    gate = Gate()
    plan = Plan(name="q", strategy=RingOnly(), queue=QueueRules(), retry=Retry(attempts=2))
    async with raw_replica(fails) as bad, raw_replica(gate) as good:
        async with data_plane([bad.url, good.url], plan=plan) as plane, AsyncExitStack() as stack:
            clients = []
            for number in range(8, 14):
                client = await stack.enter_async_context(raw_client(plane.port))
                content = chat(f"n{number} " + "x" * LONG, stream=True)
                await client.send(post(content, f"X-Session-ID: n{number}"))
                clients.append(client)
                gate.open[f"n{number}"].set()
            for client in clients:
                assert (await client.response()).status == 200
            assert bad.requests
            await until(lambda: plane.engine.held == 0)


async def test_the_turns_of_a_replica_that_is_drained_wait_for_another() -> None:
    gates = [Gate(), Gate()]
    plan = Plan(name="q", strategy=RingOnly(), queue=QueueRules())
    async with raw_replica(gates[0]) as a, raw_replica(gates[1]) as b:
        async with data_plane([a.url, b.url], plan=plan) as plane, AsyncExitStack() as stack:
            for number in range(8, 16):
                client = await stack.enter_async_context(raw_client(plane.port))
                content = chat(f"n{number} " + "x" * LONG, stream=True)
                await client.send(post(content, f"X-Session-ID: n{number}"))
            await until(lambda: plane.engine.held == 6)
            plane.engine.drain(ReplicaId("r0"), True)
            for gate in gates:
                for number in range(8, 16):
                    gate.open[f"n{number}"].set()
            await until(lambda: sum(len(gate.came) for gate in gates) == 8)
            assert len(gates[0].came) == 1


async def test_a_router_that_stops_lets_turns_wait_for_its_grace_and_then_says_so() -> None:
    async with bench() as of:
        cold = await of.send("cold", size=LONG)
        waits, in_vain = await of.send("waits"), await of.send("vain", size=LONG)
        closing = asyncio.ensure_future(of.plane.close(grace_s=0.4))
        await asyncio.sleep(0.05)
        of.let("cold", "waits")
        assert (await cold.response()).status == 200
        assert (await waits.response()).status == 200
        assert (await in_vain.response()).status == 503
        await closing


async def test_what_waits_is_told_on_the_admin_port() -> None:
    rules = {"order": "least-missing", "horizon": "1ms"}
    async with fleet(1, policy={"queue": rules}) as running:
        answers = await make_wait(running)
        waited = [answer for answer in answers if "x-homing-waited-ms" in answer.response.headers]
        assert waited
        decisions = (await running.admin.get("/api/decisions")).json()["decisions"]
        assert max(decision["waited_ms"] for decision in decisions) > 0
        metrics = (await running.admin.get("/metrics")).text
        assert 'homing_queue_wait_seconds_count{end="dispatched"}' in metrics
        assert 'homing_replica_held{replica="r0"} 0' in metrics


async def test_the_default_policy_serves_a_storm_and_loses_no_turn() -> None:
    shipped = {"queue": {"order": "least-missing"}}
    async with fleet(2, policy=shipped, probe="50ms") as running:
        async with httpx.AsyncClient(base_url=running.base_url, timeout=60, trust_env=False) as client:

            async def turn(number: int) -> int:
                body = {
                    "model": "sim-model",
                    "messages": [{"role": "user", "content": f"{number} " + "x" * (number % 7) * 4000}],
                    "max_tokens": 4,
                    "stream": True,
                }
                return (await client.post("/v1/chat/completions", json=body)).status_code

            statuses = await asyncio.gather(*(turn(number) for number in range(120)))
        assert set(statuses) == {200}
        assert running.router.engine.held == 0
