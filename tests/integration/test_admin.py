"""Engine, prober, admin port and telemetry together, against local replicas over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from support.fleet import fleet
from support.insight import insight
from support.reloads import Reloads

from router.base.clock import SystemClock
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.controlplane.admin import AdminServer, AdminSources
from router.controlplane.probe import Prober, ProbeTiming
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.strategies.least_loaded import LeastLoaded
from router.telemetry.bill import bill
from router.telemetry.counters import Counters
from router.telemetry.fanout import Fanout
from router.telemetry.health_log import HealthLog
from router.telemetry.metrics import Metrics
from router.telemetry.recent import RecentDecisions

A, B = ReplicaId("a"), ReplicaId("b")
TOKEN = "t0ken"
NO_PLANE = SimpleNamespace(held_bytes=0, connections=(), pools={}, errors={}, tasks=())
TURN = Turn(
    "/v1/chat/completions",
    "tiny",
    OPEN_TENANT,
    SessionKey("k" * 32),
    "x-session-id",
    Chain((1, 2), (80, 400), 1),
)


class Replica:
    """As much of vLLM as the control plane asks for."""

    def __init__(self) -> None:
        self.well = True
        self.hang = False
        self.started = 1000.0
        self.url = ""
        self.never = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        if self.hang:
            await self.never.wait()
        if request.path == "/health":
            return web.Response(status=200 if self.well else 503)
        if request.path == "/v1/models":
            return web.Response(body=b'{"object":"list","data":[{"id":"tiny","max_model_len":16384}]}')
        return web.Response(
            text=f"process_start_time_seconds {self.started}\n"
            'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_waiting{engine="0"} 1\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
            'vllm:cache_config_info{engine="0",block_size="64",num_gpu_blocks="600"} 1\n'
        )


@asynccontextmanager
async def serving() -> AsyncIterator[Replica]:
    replica = Replica()
    app = web.Application()
    app.router.add_get("/{path:.*}", replica.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    replica.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield replica
    finally:
        replica.never.set()
        await runner.cleanup()


class Rig:
    """An assembled control plane and a client of its admin port."""

    def __init__(
        self, http: aiohttp.ClientSession, replicas: dict[ReplicaId, Replica], timeout_s: float
    ) -> None:
        self.http = http
        self.clock = SystemClock()
        self.counters = Counters()
        self.recent = RecentDecisions(self.clock)
        self.engine = Engine(
            [Plan(name="plan", strategy=LeastLoaded())],
            rng=Random(1),
            observer=Fanout([self.counters, self.recent, HealthLog()]),
        )
        specs = [ReplicaSpec(name, replica.url) for name, replica in replicas.items()]
        self.engine.set_replicas(specs, self.clock.now())
        self.prober = Prober(
            self.engine, self.clock, Random(1), timing=ProbeTiming(interval_s=0.01, timeout_s=timeout_s)
        )
        self.admin = AdminServer(
            self.engine,
            self.clock,
            AdminSources(
                metrics=Metrics(self.counters, self.engine, NO_PLANE, self.clock).text,
                policy=lambda: "policy: plan\n",
                explain=lambda path, body, session, tenant: bill(
                    self.engine.decide(TURN.replace(path=path), self.clock.now())
                ),
                reloads=Reloads(),
                insight=insight(decisions=self.recent.newest),
            ),
            token=TOKEN,
        )

    async def ask(self, method: str, path: str, **options: object) -> tuple[int, dict[str, object]]:
        url = f"http://127.0.0.1:{self.admin.port}{path}"
        async with self.http.request(method, url, **options) as answer:
            return answer.status, await answer.json()

    async def until_ready_is(self, status: int) -> dict[str, object]:
        async with asyncio.timeout(60):
            while True:
                got, answer = await self.ask("GET", "/readyz")
                if got == status:
                    return answer


@asynccontextmanager
async def rig(
    *names: ReplicaId, timeout_s: float = 30.0
) -> AsyncIterator[tuple[Rig, dict[ReplicaId, Replica]]]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        replicas = {name: await stack.enter_async_context(serving()) for name in names}
        built = Rig(http, replicas, timeout_s)
        stack.push_async_callback(built.prober.close)
        stack.push_async_callback(built.admin.close)
        await built.admin.start("127.0.0.1", 0)
        yield built, replicas


async def test_readiness_follows_the_replicas() -> None:
    async with rig(A) as (built, replicas):
        assert await built.ask("GET", "/readyz") == (
            503,
            {"ready": False, "reasons": ["a is starting: not probed yet"]},
        )
        await built.prober.first_round(60.0)
        assert await built.ask("GET", "/readyz") == (200, {"ready": True, "reasons": []})
        replicas[A].well = False
        answer = await built.until_ready_is(503)
        (reason,) = answer["reasons"]
        assert reason.startswith("a is down: ")
        assert reason.endswith("/health answered 503")
        replicas[A].well = True
        await built.until_ready_is(200)


async def test_a_router_without_replicas_says_so() -> None:
    async with rig() as (built, _):
        assert await built.prober.first_round(60.0) == ()
        assert await built.ask("GET", "/readyz") == (
            503,
            {"ready": False, "reasons": ["there are no replicas"]},
        )


async def test_a_hung_replica_goes_down_while_the_other_stays_well() -> None:
    async with rig(A, B, timeout_s=1.0) as (built, replicas):
        await built.prober.first_round(60.0)
        replicas[A].hang = True
        async with asyncio.timeout(60):
            while True:
                _, answer = await built.ask("GET", "/api/replicas")
                hung, well = answer["replicas"]
                assert well["health"] == "healthy"
                if hung["health"] == "down":
                    break
        assert hung["why"].endswith("/health did not answer within 1 s")


async def test_what_a_replica_reports_is_shown_and_exported() -> None:
    async with rig(A) as (built, _):
        await built.prober.first_round(60.0)
        _, answer = await built.ask("GET", "/api/replicas")
        (shown,) = answer["replicas"]
        assert shown["models"] == ["tiny"]
        assert shown["capacity_tokens"] == 38400
        assert shown["report"]["waiting"] == 1.0
        async with built.http.get(f"http://127.0.0.1:{built.admin.port}/metrics") as metrics:
            text = await metrics.text()
        assert 'homing_replica_capacity_tokens{replica="a"} 38400\n' in text
        assert 'homing_replica_kv_usage_ratio{replica="a"} 0.5\n' in text
        assert 'homing_replica_health{replica="a",state="healthy"} 1\n' in text


async def test_a_restart_is_noticed_by_the_start_time_and_leaves_the_replica_cold() -> None:
    async with rig(A) as (built, replicas):
        await built.prober.first_round(60.0)
        ticket = built.engine.admit(TURN, built.clock.now())
        ticket.first_byte(built.clock.now())
        ticket.end(Outcome.COMPLETED, built.clock.now(), Usage(100, 5, 0))
        _, answer = await built.ask("GET", "/api/replicas")
        assert answer["replicas"][0]["sessions"] == 1
        replicas[A].started = 2000.0
        async with asyncio.timeout(60):
            while True:
                _, answer = await built.ask("GET", "/api/replicas")
                if answer["replicas"][0]["restarts"] == 1:
                    break
        assert answer["replicas"][0]["sessions"] == 0
        assert answer["replicas"][0]["index_segments"] == 0
        assert built.counters.replicas[A].restarts == 1


async def test_a_turn_can_be_followed_from_its_decision_to_its_end_and_its_session_ended() -> None:
    async with rig(A) as (built, _):
        await built.prober.first_round(60.0)
        ticket = built.engine.admit(TURN, built.clock.now())
        ticket.first_byte(built.clock.now())
        ticket.end(Outcome.COMPLETED, built.clock.now(), Usage(100, 5, 64))
        _, answer = await built.ask("GET", "/api/decisions?limit=5")
        (decision,) = answer["decisions"]
        assert (decision["replica"], decision["kind"], decision["outcome"]) == ("a", "new", "completed")
        assert decision["delivered_cached_tokens"] == 64
        _, answer = await built.ask("GET", "/api/sessions")
        (session,) = answer["sessions"]
        # The table's key goes on with the model's mark; the decision's key is the start of it.
        assert session["key"].startswith(decision["session"])
        assert (session["home"], session["turns"]) == ("a", 1)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        key = session["key"]
        assert await built.ask("DELETE", f"/api/sessions/{key}", headers=headers) == (200, {"ended": key})
        _, answer = await built.ask("GET", "/api/sessions")
        assert (answer["sessions"], answer["total"]) == ([], 0)


async def test_a_drained_replica_gets_no_turns_until_it_is_given_them_again() -> None:
    async with rig(A, B) as (built, _):
        await built.prober.first_round(60.0)
        headers = {"X-Homing-Token": TOKEN}
        assert (await built.ask("POST", "/api/replicas/a/drain", headers=headers))[0] == 200
        _, explained = await built.ask("POST", "/api/explain", json={"body": {}})
        assert [option["replica"] for option in explained["candidates"]] == ["b"]
        await built.ask("POST", "/api/replicas/b/drain", headers=headers)
        assert await built.ask("GET", "/readyz") == (
            503,
            {"ready": False, "reasons": ["a is draining", "b is draining"]},
        )
        status, refused = await built.ask("POST", "/api/explain", json={"body": {}})
        assert (status, refused["error"]["code"]) == (409, "none_healthy")
        await built.ask("POST", "/api/replicas/a/drain", headers=headers, json={"on": False})
        await built.until_ready_is(200)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "rebound.example"}, 403, "foreign_host"),
        ({"Host": "rebound.example", "X-Homing-Token": "wrong"}, 403, "foreign_host"),
        ({"Origin": "https://evil.example", "X-Homing-Token": TOKEN}, 403, "foreign_origin"),
        ({"Origin": "null", "X-Homing-Token": TOKEN}, 403, "foreign_origin"),
        ({}, 401, "token_required"),
        ({"X-Homing-Token": "wrong"}, 401, "token_required"),
        ({"Authorization": "Bearer wrong"}, 401, "token_required"),
        ({"Authorization": f"Basic {TOKEN}"}, 401, "token_required"),
    ],
)
async def test_a_write_that_should_not_be_let_in_changes_nothing(
    headers: dict[str, str], status: int, code: str
) -> None:
    async with rig(A) as (built, _):
        got, answer = await built.ask("POST", "/api/replicas/a/drain", headers=headers)
        assert (got, answer["error"]["code"]) == (status, code)
        assert not built.engine.replicas(0.0)[0].draining


@pytest.mark.parametrize("path", ["/", "/api/replicas", "/metrics", "/livez/", "/api/decisions"])
@pytest.mark.parametrize("headers", [{"Host": "rebound.example"}, {"Origin": "http://evil.example"}])
async def test_a_read_from_a_foreign_page_is_refused(path: str, headers: dict[str, str]) -> None:
    async with rig(A) as (built, _):
        got, answer = await built.ask("GET", path, headers=headers)
        assert got == 403
        assert answer["error"]["code"] in ("foreign_host", "foreign_origin")


async def test_a_listener_that_is_not_loopback_opens_only_liveness_and_readiness() -> None:
    async with rig(A) as (built, _):
        await built.admin.close()
        await built.admin.start("0.0.0.0", 0)
        await built.prober.first_round(60.0)
        for path in ("/livez", "/readyz"):
            assert (await built.ask("GET", path))[0] == 200
        for path in (
            "/metrics",
            "/api/overview",
            "/api/sessions",
            "/api/decisions",
            "/api/policy",
            "/ui/none",
        ):
            status, answer = await built.ask("GET", path)
            assert (status, answer["error"]["code"]) == (401, "token_required")
        assert (await built.ask("POST", "/api/explain", json={"body": {}}))[0] == 401
        # The dashboard's page says nothing of the router: a browser that opens it has no token to send yet.
        async with built.http.get(f"http://127.0.0.1:{built.admin.port}/") as page:
            assert (page.status, page.content_type) == (200, "text/html")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await built.ask("GET", "/api/replicas", headers=headers))[0] == 200


async def test_a_listener_that_is_not_loopback_can_be_reached_by_name() -> None:
    admin = {"listen": "0.0.0.0:0", "hosts": ["homing.internal"], "token_file": "token"}
    async with fleet(1, config={"admin": admin}, files={"token": TOKEN}) as running:

        async def ask(path: str, host: str, **headers: str) -> int:
            client = running.client
            answer = await client.get(running.admin_url + path, headers={"Host": host, **headers})
            return answer.status_code

        for path in ("/livez", "/readyz"):
            assert await ask(path, "probe.example:9090") == 200
        assert await ask("/api/replicas", "homing.internal") == 401
        assert await ask("/api/replicas", "other.internal") == 403
        for host, status in (
            ("homing.internal", 200),
            ("homing.internal:9090", 200),
            ("other.internal", 403),
        ):
            assert await ask("/api/replicas", host, Authorization=f"Bearer {TOKEN}") == status
