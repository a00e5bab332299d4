import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
from aiohttp import web

from router.base.clock import SystemClock
from router.base.ids import ReplicaId
from router.controlplane.probe import Prober, ProbeTiming
from router.core.fleet import ModelCard, ReplicaSpec, Report

A, B = ReplicaId("a"), ReplicaId("b")
QUICK = ProbeTiming(interval_s=0.01, timeout_s=30.0, models_every_s=60.0, models_retry_s=0.01)


@dataclass
class Fleet:
    """An engine as far as probing sees it; `until` wakes at every call."""

    specs: dict[ReplicaId, ReplicaSpec] = field(default_factory=dict)
    passed: list[ReplicaId] = field(default_factory=list)
    failed: list[tuple[ReplicaId, str]] = field(default_factory=list)
    reports: list[tuple[ReplicaId, Report]] = field(default_factory=list)
    cards: list[tuple[ReplicaId, tuple[ModelCard, ...]]] = field(default_factory=list)
    broken: bool = False
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def replica_ids(self) -> tuple[ReplicaId, ...]:
        return tuple(self.specs)

    def spec(self, replica: ReplicaId) -> ReplicaSpec:
        return self.specs[replica]

    def probe_passed(self, replica: ReplicaId, now: float) -> None:
        if self.broken:
            raise RuntimeError("a fault of ours")
        self.passed.append(replica)
        self.told.set()

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None:
        self.failed.append((replica, why))
        self.told.set()

    def report(self, replica: ReplicaId, report: Report, now: float) -> None:
        self.reports.append((replica, report))
        self.told.set()

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...], now: float) -> None:
        self.cards.append((replica, cards))
        self.told.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not seen():
                self.told.clear()
                await self.told.wait()


class Replica:
    """A local server whose answers a test sets while it runs."""

    def __init__(self) -> None:
        self.health: web.Response | int = 200
        self.metrics = b"vllm:num_requests_running 1\nprocess_start_time_seconds 1000\n"
        self.metrics_status = 200
        self.models = b'{"data":[{"id":"m"}]}'
        self.asked: list[tuple[str, str | None]] = []
        self.hang = False
        self.never = asyncio.Event()
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, request.headers.get("Authorization")))
        if self.hang:
            await self.never.wait()
        if request.path == "/metrics":
            return web.Response(body=self.metrics, status=self.metrics_status)
        if request.path == "/v1/models":
            return web.Response(body=self.models)
        if isinstance(self.health, int):
            return web.Response(status=self.health)
        return self.health


@asynccontextmanager
async def serving() -> AsyncIterator[Replica]:
    replica = Replica()
    app = web.Application()
    app.router.add_get("/{path:.*}", replica.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    replica.url = f"http://{host}:{port}"
    try:
        yield replica
    finally:
        replica.never.set()
        await runner.cleanup()


@asynccontextmanager
async def probing(
    fleet: Fleet, timing: ProbeTiming = QUICK, api_keys: dict[ReplicaId, str] | None = None
) -> AsyncIterator[Prober]:
    prober = Prober(fleet, SystemClock(), Random(1), timing=timing, api_keys=api_keys)
    try:
        yield prober
    finally:
        await prober.close()


def fleet_of(**urls: str) -> Fleet:
    return Fleet({ReplicaId(name): ReplicaSpec(ReplicaId(name), url) for name, url in urls.items()})


def dead_url() -> str:
    with socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{spare.getsockname()[1]}"


async def test_the_first_round_brings_health_metrics_and_models() -> None:
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            assert await prober.first_round(60.0) == ()
            assert fleet.passed[0] == A
            assert fleet.reports[0] == (A, Report(start_time=1000.0, running=1.0))
            assert fleet.cards == [(A, (ModelCard("m", b'{"id":"m"}'),))]


async def test_a_fleet_without_replicas_is_looked_over_at_once() -> None:
    async with probing(Fleet()) as prober:
        assert await prober.first_round(60.0) == ()


async def test_a_hung_replica_delays_nobody_else() -> None:
    async with serving() as hung, serving() as well:
        hung.hang = True
        fleet = fleet_of(a=hung.url, b=well.url)
        async with probing(fleet, ProbeTiming(interval_s=0.01, timeout_s=30.0)) as prober:
            assert A in await prober.first_round(0.05)
            seen = len(fleet.passed)
            await fleet.until(lambda: len(fleet.passed) >= seen + 5)
            assert set(fleet.passed) == {B}
            assert fleet.failed == []


async def test_a_replica_that_does_not_answer_in_time_fails_with_the_time() -> None:
    async with serving() as replica:
        replica.hang = True
        fleet = fleet_of(a=replica.url)
        async with probing(fleet, ProbeTiming(interval_s=0.01, timeout_s=0.05)) as prober:
            assert await prober.first_round(60.0) == ()
            assert fleet.failed[0] == (A, "/health did not answer within 0.05 s")


async def test_a_replica_that_fails_four_looks_in_a_row_is_told_of_until_it_answers() -> None:
    told: list[tuple[ReplicaId, str, int]] = []
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        prober = Prober(
            fleet,
            SystemClock(),
            Random(1),
            timing=ProbeTiming(interval_s=0.01, timeout_s=30.0),
            on_silent=lambda name, why: told.append((name, why, len(fleet.failed))),
        )
        try:
            await prober.first_round(60.0)
            replica.health = 503
            await fleet.until(lambda: len(fleet.failed) >= 3)
            replica.health = 200
            seen = len(fleet.passed)
            await fleet.until(lambda: len(fleet.passed) > seen)
            assert (len(fleet.failed), told) == (3, [])
            replica.health = 503
            await fleet.until(lambda: len(fleet.failed) >= 9)
            assert told[:2] == [(A, "/health answered 503", 7), (A, "/health answered 503", 8)]
        finally:
            await prober.close()


async def test_a_replica_that_is_not_there_fails_with_the_reason() -> None:
    fleet = fleet_of(a=dead_url())
    async with probing(fleet) as prober:
        await prober.first_round(60.0)
        replica, why = fleet.failed[0]
        assert replica == A
        assert why.startswith("no connection: ")
        assert why == "no connection: Connection refused"


async def test_a_host_name_that_cannot_be_resolved_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    fleet = fleet_of(a="http://replica.invalid:8000")
    async with probing(fleet) as prober:
        await prober.first_round(60.0)
        assert fleet.failed[0] == (A, "its host name cannot be resolved")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
async def test_a_probe_that_the_router_could_not_even_send_says_nothing_of_the_replica(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect(*_args: object, **_options: object) -> None:
        raise OSError(number, "x")

    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        async with probing(fleet, ProbeTiming(interval_s=0.01, timeout_s=30.0)) as prober:
            with monkeypatch.context() as short:
                short.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", connect)
                await prober.first_round(60.0)
                assert (fleet.passed, fleet.failed) == ([], [])
                assert os.strerror(number) in caplog.text
            await fleet.until(lambda: fleet.passed)
            assert fleet.failed == []


async def test_a_resolver_without_an_answer_says_nothing_of_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    fleet = fleet_of(a="http://replica.invalid:8000")
    async with probing(fleet) as prober:
        await prober.first_round(60.0)
        assert (fleet.passed, fleet.failed) == ([], [])


async def test_a_health_check_that_answers_an_error_fails_with_the_status() -> None:
    async with serving() as replica:
        replica.health = 503
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            assert fleet.failed[0] == (A, "/health answered 503")
            assert fleet.reports == []
            assert {path for path, _ in replica.asked} == {"/health"}


async def test_a_redirect_is_not_followed_with_the_replicas_key() -> None:
    async with serving() as replica, serving() as elsewhere:
        replica.health = web.Response(status=307, headers={"Location": elsewhere.url + "/health"})
        fleet = fleet_of(a=replica.url)
        async with probing(fleet, api_keys={A: "secret"}) as prober:
            await prober.first_round(60.0)
            assert fleet.failed[0] == (A, "/health answered 307")
            assert elsewhere.asked == []


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"]
)
async def test_what_is_no_proper_answer_fails_the_probe(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        fleet = fleet_of(a=f"http://127.0.0.1:{port}")
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            _, why = fleet.failed[0]
            assert "connection ended before" in why or "no proper HTTP answer" in why


async def test_keys_go_only_to_the_replica_they_belong_to() -> None:
    async with serving() as keyed, serving() as open_one:
        fleet = fleet_of(a=keyed.url, b=open_one.url)
        async with probing(fleet, api_keys={A: "sk-a"}) as prober:
            await prober.first_round(60.0)
            assert {key for _, key in keyed.asked} == {"Bearer sk-a"}
            assert {key for _, key in open_one.asked} == {None}


async def test_metrics_beyond_the_limit_are_not_read_and_health_goes_on() -> None:
    async with serving() as replica:
        replica.metrics = b"vllm:num_requests_running 1\n" + b"# filler\n" * 500_000
        fleet = fleet_of(a=replica.url)
        async with probing(fleet, ProbeTiming(interval_s=0.01, timeout_s=30.0)) as prober:
            await prober.first_round(60.0)
            await fleet.until(lambda: len(fleet.passed) >= 2)
            assert fleet.reports == []
            assert fleet.failed == []


async def test_a_compressed_answer_is_not_unfolded() -> None:
    async def squeeze(request: web.Request) -> web.Response:
        return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    app = web.Application()
    app.router.add_get("/{path:.*}", squeeze)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fleet = fleet_of(a=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            assert fleet.failed[0] == (A, "/health answered compressed, which was not asked for")
    finally:
        await runner.cleanup()


async def test_a_failing_scrape_reports_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as replica:
        replica.metrics_status = 404
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            await fleet.until(lambda: len(fleet.passed) >= 4)
            assert fleet.reports == []
            warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
            assert warned == ["replica a: /metrics answered 404; routing goes on without"]
            replica.metrics_status = 200
            await fleet.until(lambda: len(fleet.reports) >= 1)


async def test_a_moved_start_time_is_reported_and_the_models_are_read_again() -> None:
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            await fleet.until(lambda: len(fleet.reports) >= 3)
            assert len(fleet.cards) == 1
            replica.models = b'{"data":[{"id":"other"}]}'
            replica.metrics = b"process_start_time_seconds 2000\n"
            await fleet.until(lambda: len(fleet.cards) >= 2)
            assert fleet.reports[-1][1].start_time == 2000.0
            assert [card.id for card in fleet.cards[-1][1]] == ["other"]


async def test_the_models_are_read_again_when_a_replica_comes_back() -> None:
    async with serving() as replica:
        replica.metrics = b"\n"
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            replica.health = 500
            await fleet.until(lambda: bool(fleet.failed))
            replica.health = 200
            await fleet.until(lambda: len(fleet.cards) == 2)


async def test_the_models_are_read_again_after_their_interval() -> None:
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        async with probing(
            fleet, ProbeTiming(interval_s=0.01, timeout_s=30.0, models_every_s=0.02)
        ) as prober:
            await prober.first_round(60.0)
            await fleet.until(lambda: len(fleet.cards) >= 3)


async def test_a_server_that_says_yes_to_everything_and_lists_no_models_is_no_replica() -> None:
    async with serving() as replica:
        replica.models = b"<html>"
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            assert (fleet.cards, fleet.passed, fleet.reports) == ([], [], [])
            [(_, why)] = fleet.failed
            assert why.startswith("/v1/models answered, and not with a list of models: its model list cannot")
            replica.models = b'{"data":[]}'
            await fleet.until(lambda: fleet.cards == [(A, ())] and bool(fleet.passed))


async def test_a_model_list_that_cannot_be_read_any_more_leaves_the_replica_well() -> None:
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        async with probing(
            fleet, ProbeTiming(interval_s=0.01, timeout_s=30.0, models_every_s=0.02)
        ) as prober:
            await prober.first_round(60.0)
            replica.models = b"<html>"
            asked = len(replica.asked)
            await fleet.until(lambda: any(path == "/v1/models" for path, _ in replica.asked[asked:]))
            seen = len(fleet.passed)
            await fleet.until(lambda: len(fleet.passed) >= seen + 3)
            assert fleet.failed == []


async def test_replicas_that_come_are_watched_and_those_that_go_are_left() -> None:
    async with serving() as one, serving() as two:
        fleet = fleet_of(a=one.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            fleet.specs = {B: ReplicaSpec(B, two.url)}
            prober.set_replicas()
            await fleet.until(lambda: B in fleet.passed)
            asked = len(one.asked)
            seen = len(fleet.passed)
            await fleet.until(lambda: len(fleet.passed) >= seen + 5)
            # One request may have been on its way when its watch ended.
            assert len(one.asked) <= asked + 1


async def test_a_replica_whose_url_changed_is_asked_at_the_new_one() -> None:
    async with serving() as one, serving() as two:
        fleet = fleet_of(a=one.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            fleet.specs = {A: ReplicaSpec(A, two.url)}
            assert await prober.first_round(60.0) == ()
            assert two.asked


async def test_setting_the_same_replicas_again_disturbs_nothing() -> None:
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            prober.set_replicas()
            await fleet.until(lambda: len(fleet.passed) >= 3)
            assert len(fleet.cards) == 1


async def test_a_fault_of_ours_in_one_round_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as replica:
        fleet = fleet_of(a=replica.url)
        fleet.broken = True
        async with probing(fleet) as prober:
            await prober.first_round(60.0)
            assert fleet.failed[0] == (A, "the router's own probe failed")
            assert any(record.exc_info for record in caplog.records)
            fleet.broken = False
            await fleet.until(lambda: bool(fleet.passed))


async def test_closing_ends_every_watch_even_a_hung_one() -> None:
    async with serving() as replica:
        replica.hang = True
        fleet = fleet_of(a=replica.url)
        prober = Prober(fleet, SystemClock(), Random(1), timing=ProbeTiming(timeout_s=60.0))
        assert await prober.first_round(0.02) == (A,)
        async with asyncio.timeout(30):
            await prober.close()
            await prober.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe ")]


async def test_a_prober_that_never_started_can_be_closed() -> None:
    await Prober(Fleet(), SystemClock(), Random(1)).close()
