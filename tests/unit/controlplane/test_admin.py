import errno
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from support.insight import NoHistory, insight
from support.reloads import Reloads
from support.statuses import status

from router.base.clock import ManualClock
from router.base.errors import ErrorKind, HomingError, Refused
from router.base.ids import ReplicaId, SessionKey, TenantId
from router.controlplane.admin import AdminServer, AdminSources
from router.controlplane.reload import Outcome, Reload
from router.core.fleet import ReplicaStatus, Report
from router.core.session import Session

A, B = ReplicaId("a"), ReplicaId("b")
TOKEN = {"X-Homing-Token": "t0ken"}


def replica(
    name: ReplicaId, health: str = "healthy", why: str = "", *, draining: bool = False
) -> ReplicaStatus:
    return status(name, health=health, why=why, draining=draining, report=Report(running=1.0))


def session(key: str) -> Session:
    return Session(
        key=SessionKey(key),
        model="m",
        tenant=TenantId("acme"),
        home=A,
        home_epoch=0,
        resident_tokens=700,
        tail=7,
        reply_tokens=20,
        turns=4,
        moves=1,
        created_at=10.0,
        last_turn_at=90.0,
        source="x-session-id",
    )


@dataclass
class Fleet:
    statuses: list[ReplicaStatus] = field(default_factory=lambda: [replica(A), replica(B)])
    table: list[Session] = field(default_factory=lambda: [session("k2"), session("k1")])
    drained: list[tuple[str, bool]] = field(default_factory=list)

    def replica_ids(self) -> tuple[ReplicaId, ...]:
        return tuple(status.id for status in self.statuses)

    def replicas(self, now: float) -> tuple[ReplicaStatus, ...]:
        assert now == 100.0
        return tuple(self.statuses)

    def sessions(self, limit: int) -> list[Session]:
        return self.table[:limit]

    def session_count(self) -> int:
        return len(self.table)

    def drain(self, replica: ReplicaId, on: bool) -> None:
        if replica not in self.replica_ids():
            raise KeyError(replica)
        self.drained.append((replica, on))

    def end_session(self, key: SessionKey) -> list[Session]:
        found = [entry for entry in self.table if entry.key == key]
        for entry in found:
            self.table.remove(entry)
        return found


def explain(path: str, body: bytes, session: str | None, tenant: str | None) -> dict[str, object]:
    return {"path": path, "body": body.decode(), "session": session, "tenant": tenant}


def fails(error: Exception) -> Callable[..., dict[str, object]]:
    def raising(path: str, body: bytes, session: str | None, tenant: str | None) -> dict[str, object]:
        raise error

    return raising


class Client:
    """Talks to one admin server; answers as (status, JSON)."""

    def __init__(self, server: AdminServer, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.url = f"http://127.0.0.1:{server.port}"

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, object]]:
        sent = {"data": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        async with self.http.request(method, self.url + path, headers=headers, **sent) as answer:
            assert answer.content_type == "application/json"
            return answer.status, await answer.json()


@asynccontextmanager
async def admin(
    fleet: Fleet | None = None,
    explain: Callable[..., dict[str, object]] = explain,
    max_body_bytes: int = 1000,
    reloads: Reloads | None = None,
    ended: Callable[[Sequence[Session]], None] = lambda _sessions: None,
    agents: dict[ReplicaId, str] | None = None,
    listening: bool = True,
) -> AsyncIterator[Client]:
    sources = AdminSources(
        metrics=lambda: "homing_up 1\n",
        policy=lambda: "policy: home\n",
        explain=explain,
        reloads=reloads if reloads is not None else Reloads(),
        ended=ended,
        insight=insight(history=NoHistory({A: {"hit_rate": 0.5}})),
        agents=lambda: agents or {},
        breakers=lambda: {A: "open", B: "closed"} if agents else {},
        listening=lambda: listening,
    )
    server = AdminServer(
        fleet if fleet is not None else Fleet(),
        ManualClock(100.0),
        sources,
        token="t0ken",
        max_body_bytes=max_body_bytes,
    )
    await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as http:
            yield Client(server, http)
    finally:
        await server.close()


def problem(answer: dict[str, object]) -> tuple[str, str]:
    error = answer["error"]
    assert isinstance(error, dict)
    return error["code"], error["message"]


async def test_it_is_live_as_long_as_it_answers() -> None:
    async with admin(Fleet(statuses=[])) as client:
        assert await client.ask("GET", "/livez") == (200, {"live": True})


@pytest.mark.parametrize(
    ("statuses", "status", "reasons"),
    [
        ([], 503, ["there are no replicas"]),
        ([replica(A, "starting")], 503, ["a is starting"]),
        (
            [replica(A, "down", "refused"), replica(B, draining=True)],
            503,
            ["a is down: refused", "b is draining"],
        ),
        ([replica(A, "down", "refused"), replica(B, "probation")], 200, []),
        ([replica(A, "down", "refused"), replica(B)], 200, []),
    ],
)
async def test_it_is_ready_while_one_replica_takes_turns(
    statuses: list[ReplicaStatus], status: int, reasons: list[str]
) -> None:
    async with admin(Fleet(statuses=statuses)) as client:
        assert await client.ask("GET", "/readyz") == (status, {"ready": status == 200, "reasons": reasons})


@pytest.mark.parametrize(
    ("statuses", "reasons"),
    [
        ([replica(A)], ["the data port does not listen yet"]),
        ([replica(A, "starting")], ["the data port does not listen yet", "a is starting"]),
    ],
)
async def test_it_is_not_ready_before_clients_can_connect(
    statuses: list[ReplicaStatus], reasons: list[str]
) -> None:
    async with admin(Fleet(statuses=statuses), listening=False) as client:
        assert await client.ask("GET", "/readyz") == (503, {"ready": False, "reasons": reasons})
        _, overview = await client.ask("GET", "/api/overview")
        assert overview["ready"] is False


async def test_metrics_are_served_as_prometheus_text() -> None:
    async with admin() as client, client.http.get(client.url + "/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert await answer.text() == "homing_up 1\n"


async def test_replicas_are_shown_with_all_that_is_known_and_null_for_what_is_not() -> None:
    async with admin() as client:
        _, answer = await client.ask("GET", "/api/replicas")
        assert answer["replicas"][0] == {
            "name": "a",
            "url": "http://a:8000",
            "health": "healthy",
            "why": "",
            "draining": False,
            "models": ["m"],
            "in_flight": 3,
            "pending_tokens": 40,
            "working_set_tokens": 500,
            "sessions": 2,
            "index_segments": 60,
            "report": {
                "start_time": None,
                "running": 1.0,
                "waiting": None,
                "kv_usage": None,
                "kv_capacity_tokens": None,
                "host_kv_tokens": None,
                "block_tokens": None,
            },
            "report_age_s": 0.5,
            "capacity_tokens": None,
            "recent_failures": 0.25,
            "restarts": 1,
            "trust": 0.875,
            "held": 5,
            "free_tokens": 300_000,
            "horizon_tokens": 8192,
            "leaving": False,
            "role": "both",
            "lately": {"hit_rate": 0.5},
        }
        assert answer["replicas"][1]["lately"] is None


async def test_the_policy_is_served_as_yaml() -> None:
    async with admin() as client, client.http.get(client.url + "/api/policy") as answer:
        assert answer.content_type == "application/yaml"
        assert await answer.text() == "policy: home\n"


async def test_explain_hands_on_the_body_byte_for_byte() -> None:
    async with admin() as client:
        sent = b'{"path": "/v1/completions", "session": "s", "tenant": "t", "body": {"b" : [1,  2],"a":1.0} }'
        assert await client.ask("POST", "/api/explain", sent) == (
            200,
            {"path": "/v1/completions", "session": "s", "tenant": "t", "body": '{"b" : [1,  2],"a":1.0}'},
        )


async def test_explain_takes_a_chat_without_a_session_unless_told_otherwise() -> None:
    async with admin() as client:
        _, bill = await client.ask("POST", "/api/explain", {"body": {}})
        assert bill == {"path": "/v1/chat/completions", "session": None, "tenant": None, "body": "{}"}


async def test_a_turn_that_would_be_refused_is_answered_with_the_reason() -> None:
    refusal = Refused(ErrorKind.OVERLOADED, "all full", retry_after_s=1.0)
    async with admin(explain=fails(refusal)) as client:
        status, answer = await client.ask("POST", "/api/explain", {"body": {}})
        assert status == 409
        assert problem(answer) == ("overloaded", "all full")


async def test_a_body_that_cannot_be_routed_is_the_callers_fault() -> None:
    async with admin(explain=fails(Refused(ErrorKind.BAD_REQUEST, "no messages"))) as client:
        status, answer = await client.ask("POST", "/api/explain", {"body": {}})
        assert status == 400
        assert problem(answer) == ("bad_request", "no messages")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "JSON"),
        (b"{}", "body"),
        (b"[]", "array"),
        (b'{"body":{},"sesion":"s"}', "sesion"),
        (b"{", "JSON"),
    ],
)
async def test_an_explain_that_is_malformed_is_refused_by_name(body: bytes, named: str) -> None:
    async with admin() as client:
        status, answer = await client.ask("POST", "/api/explain", body)
        assert status == 400
        code, message = problem(answer)
        assert code == "bad_request"
        assert named.lower() in message.lower()


async def test_draining_is_on_unless_told_otherwise() -> None:
    fleet = Fleet()
    async with admin(fleet) as client:
        drained = (200, {"replica": "a", "draining": True})
        assert await client.ask("POST", "/api/replicas/a/drain", headers=TOKEN) == drained
        assert await client.ask("POST", "/api/replicas/a/drain", {}, TOKEN) == drained
        assert await client.ask("POST", "/api/replicas/a/drain", {"on": False}, TOKEN) == (
            200,
            {"replica": "a", "draining": False},
        )
    assert fleet.drained == [("a", True), ("a", True), ("a", False)]


@pytest.mark.parametrize(("name", "path"), [("pod a/1", "pod%20a%2F1"), ("{a}<b>", "%7Ba%7D%3Cb%3E")])
async def test_a_replica_name_may_need_escaping_in_the_path(name: str, path: str) -> None:
    fleet = Fleet(statuses=[replica(ReplicaId(name))])
    async with admin(fleet) as client:
        url = client.url + f"/api/replicas/{path}/drain"
        async with client.http.post(aiohttp.client.URL(url, encoded=True), headers=TOKEN) as answer:
            assert answer.status == 200
    assert fleet.drained == [(name, True)]


async def test_draining_an_unknown_replica_names_the_nearest() -> None:
    fleet = Fleet(statuses=[replica(ReplicaId("gpu-1"))])
    async with admin(fleet) as client:
        status, answer = await client.ask("POST", "/api/replicas/gpu1/drain", headers=TOKEN)
        assert status == 404
        assert problem(answer) == ("no_such_replica", "there is no replica 'gpu1'; did you mean 'gpu-1'?")
        _, answer = await client.ask("POST", "/api/replicas/zzz/drain", headers=TOKEN)
        assert problem(answer)[1] == "there is no replica 'zzz'; /api/replicas lists them"


@pytest.mark.parametrize("body", [b"no", b'{"on": "yes"}', b'{"off": true}'])
async def test_a_drain_order_that_is_not_understood_changes_nothing(body: bytes) -> None:
    fleet = Fleet()
    async with admin(fleet) as client:
        status, _ = await client.ask("POST", "/api/replicas/a/drain", body, TOKEN)
        assert status == 400
    assert fleet.drained == []


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "token_required"),
        (TOKEN | {"Origin": "http://evil.example"}, 403, "foreign_origin"),
        (TOKEN | {"Host": "evil.example"}, 403, "foreign_host"),
    ],
)
async def test_who_is_not_let_in_reaches_no_endpoint(headers: dict[str, str], status: int, code: str) -> None:
    fleet = Fleet()
    async with admin(fleet) as client:
        got, answer = await client.ask("POST", "/api/replicas/a/drain", headers=headers)
        assert (got, problem(answer)[0]) == (status, code)
    assert fleet.drained == []


async def test_a_session_can_be_ended_once_and_whoever_wants_to_know_is_told() -> None:
    told: list[Session] = []
    async with admin(ended=told.extend) as client:
        assert await client.ask("DELETE", "/api/sessions/k1", headers=TOKEN) == (200, {"ended": "k1"})
        status, answer = await client.ask("DELETE", "/api/sessions/k1", headers=TOKEN)
        assert status == 404
        assert problem(answer)[0] == "no_such_session"
    assert [session.key for session in told] == ["k1"]


async def test_a_body_beyond_the_limit_is_refused() -> None:
    async with admin(max_body_bytes=100) as client:
        status, answer = await client.ask("POST", "/api/explain", b"x" * 200)
        assert status == 413
        assert problem(answer)[0] == "body_too_large"


async def test_a_fault_inside_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with admin(explain=fails(RuntimeError("inner secret"))) as client:
        status, answer = await client.ask("POST", "/api/explain", {"body": {}})
        assert status == 500
        assert "inner secret" not in str(answer)
    assert "inner secret" in caplog.text


def server(**options: object) -> AdminServer:
    sources = AdminSources(metrics=str, policy=str, explain=explain, reloads=Reloads(), insight=insight())
    return AdminServer(Fleet(), ManualClock(100.0), sources, **options)


async def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            HomingError, match=rf"cannot listen on 127.0.0.1:{port}: the address is in use; .*--admin"
        ):
            await server().start("127.0.0.1", port)


async def test_a_port_that_takes_privileges_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(site: web.TCPSite) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(web.TCPSite, "start", start)
    with pytest.raises(HomingError, match=r"cannot listen on 127\.0\.0\.1:80: .*a port above 1023"):
        await server().start("127.0.0.1", 80)


async def test_an_address_that_is_not_ours_is_an_error_of_its_own() -> None:
    with pytest.raises(HomingError, match=r"the admin API cannot listen on 192\.0\.2\.1:0: "):
        await server(token="t").start("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
@pytest.mark.parametrize("token", [None, ""])
async def test_a_listener_that_is_not_loopback_does_not_start_without_a_token(
    host: str, token: str | None
) -> None:
    with pytest.raises(
        HomingError, match=r"has no token: give one \(admin.token_file or HOMING_ADMIN_TOKEN\)"
    ):
        await server(token=token).start(host, 0)


async def test_two_servers_make_up_different_tokens() -> None:
    assert server().token != server().token


async def test_policies_are_put_with_the_token_and_the_answer_says_what_changed() -> None:
    reloads = Reloads(Reload(Outcome.APPLIED, "PUT /api/policy", 98.0, ("policies: home → ring",)))
    async with admin(reloads=reloads) as client:
        assert (await client.ask("PUT", "/api/policy", body=b"policy: ring"))[0] == 401
        assert reloads.asked == []
        status, answer = await client.ask("PUT", "/api/policy", body=b"policy: ring", headers=TOKEN)
        assert status == 200
        assert answer == {
            "outcome": "applied",
            "cause": "PUT /api/policy",
            "age_s": 2.0,
            "changes": ["policies: home → ring"],
            "faults": [],
        }
    assert reloads.asked == [("PUT /api/policy", b"policy: ring")]


async def test_settings_that_are_refused_are_an_error_with_every_fault() -> None:
    faults = ("body:1: policy: is missing", "body:2: strategy: unknown")
    async with admin(reloads=Reloads(Reload(Outcome.REFUSED, "x", 98.0, (), faults))) as client:
        for method, path in (("PUT", "/api/policy"), ("POST", "/api/reload")):
            status, answer = await client.ask(method, path, headers=TOKEN)
            assert status == 400
            assert answer["error"]["code"] == "refused"
            assert answer["error"]["message"] == "\n".join(faults)
        _, answer = await client.ask("GET", "/api/reload")
        assert answer["last"]["faults"] == list(faults)


async def test_a_reload_is_asked_for_with_the_token_and_the_last_one_can_be_read() -> None:
    reloads = Reloads()
    async with admin(reloads=reloads) as client:
        assert await client.ask("GET", "/api/reload") == (200, {"last": None})
        assert (await client.ask("POST", "/api/reload"))[0] == 401
        assert (await client.ask("POST", "/api/reload", headers=TOKEN))[0] == 200
        _, answer = await client.ask("GET", "/api/reload")
        assert (answer["last"]["outcome"], answer["last"]["age_s"]) == ("unchanged", 10.0)
    assert reloads.asked == [("POST /api/reload", None)]


async def test_the_overview_tells_what_the_fleet_is_and_what_to_look_at() -> None:
    fleet = Fleet(statuses=[replica(A), replica(B, "down", "refused")])
    async with admin(fleet) as client:
        status, answer = await client.ask("GET", "/api/overview")
    assert status == 200
    assert answer["ready"] is True
    assert answer["shadow"] is False
    assert answer["router"]["up_s"] == 0.0
    assert len(answer["router"]["instance"]) == 16
    assert (answer["fleet"]["replicas"], answer["fleet"]["held"], answer["fleet"]["sessions_known"]) == (
        2,
        10,
        2,
    )
    assert answer["notices"] == [
        {"level": "warning", "about": "replicas", "name": "b", "text": "b is down: refused"}
    ]
    assert answer["lately"] == {"turns": 0}


async def test_each_process_is_an_instance_of_its_own() -> None:
    async with admin() as one, admin() as other:
        instances = [
            (await each.ask("GET", "/api/overview"))[1]["router"]["instance"] for each in (one, other)
        ]
    assert instances[0] != instances[1]


async def test_kv_agents_are_shown_with_what_is_wrong() -> None:
    async with admin(agents={A: "", B: "refused"}) as client:
        assert await client.ask("GET", "/api/kv-agents") == (
            200,
            {
                "agents": [
                    {"agent": "a", "up": True, "why": ""},
                    {"agent": "b", "up": False, "why": "refused"},
                ],
                "breakers": [{"source": "a", "state": "open"}, {"source": "b", "state": "closed"}],
            },
        )


async def test_the_dashboard_is_a_page_with_a_policy_of_its_own() -> None:
    async with admin() as client:
        async with client.http.get(client.url + "/") as page:
            assert (page.status, page.content_type) == (200, "text/html")
            assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert page.headers["X-Frame-Options"] == "DENY"
        status, answer = await client.ask("GET", "/ui/none.js")
        assert (status, problem(answer)[0]) == (404, "not_found")
