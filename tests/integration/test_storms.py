"""Storms of leaving clients, dying replicas and sudden crowds: nothing is left behind, and no turn fails
that need not."""

import asyncio
import re
import resource
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from support.certificates import Authority
from support.plane import data_plane, observe, settled, until
from support.raw import RawReplica, Request, Stream, chat, post, raw_client, raw_replica

from router.core.decide import Decision
from router.core.fleet import ReplicaStatus
from router.core.observer import Silent
from router.core.request import Turn
from router.dataplane.limits import Limits
from router.dataplane.server import DataPlane

OK = {"id": "x", "object": "chat.completion", "choices": []}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def descriptors():
    """Both ends of every connection live in this process: 2,000 clients may need 8,000 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_sockets() -> int:
    """Of this process. The descriptor that reads the list is in it, and gone when it is looked at."""
    entries = list(Path("/proc/self/fd").iterdir())
    return sum(entry.is_symlink() and str(entry.readlink()).startswith("socket:") for entry in entries)


@asynccontextmanager
async def storm(replicas: Sequence[RawReplica], **more: object) -> AsyncIterator[DataPlane]:
    """A data plane in front of the replicas. When the storm is over nothing of it may be left."""
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    urls = [replica.url for replica in replicas]
    # Clients, router and replicas share one loop here: a crowd takes it longer than one replica may.
    patient = Limits(connect_s=60.0)
    async with data_plane(urls, limits=patient, **more) as plane:  # type: ignore[arg-type]
        yield plane
        await settled(plane)
        await until(lambda: not plane.connections)
        pools = plane.pools.values()
        await until(lambda: sum(map(len, pools)) == sum(replica.open for replica in replicas))
        for pool in pools:
            assert len(pool) == len(pool._idle) <= plane.limits.upstream_idle_connections
        assert not plane._retired
        for pool in pools:
            pool.sweep(plane.now() + plane.limits.upstream_idle_s)
        await until(lambda: not any(replica.open for replica in replicas) and not any(map(len, pools)))
    await until(lambda: asyncio.all_tasks() <= tasks)
    await until(lambda: open_sockets() == sockets)


# --- clients that leave -----------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_clients_that_leave_at_random_moments(tls: bool, tmp_path: Path) -> None:
    chance = Random(11)
    authority = Authority(tmp_path) if tls else None

    async def answer(request: Request, stream: Stream) -> None:
        await asyncio.sleep(chance.random() * 0.02)
        if b'"stream":true' not in request.body:
            await stream.send_json(OK)
            return
        await stream.start_events()
        for _ in range(chance.randrange(12)):
            await stream.chunk(EVENT * chance.choice((1, 1, 400)))
            await asyncio.sleep(chance.random() * 0.004)
        if b"endless" in request.body:
            await stream.gone()
            return
        await stream.chunk(DONE)
        await stream.end()

    answered = 0

    async def visit(plane: DataPlane, number: int) -> None:
        nonlocal answered
        kind = chance.choice(("part", "whole", "endless", "ahead", "stays"))
        request = post(
            chat(f"{kind} {number}" + "x" * chance.choice((0, 50_000)), stream=chance.random() < 0.7),
            f"X-Session-ID: {number % 40}",
            f"X-Request-Id: {number % 7}",
        )
        await asyncio.sleep(chance.random() * 0.5)
        async with raw_client(plane.port, tls=authority.client() if authority else None) as client:
            if kind == "part":
                await client.send(request[: chance.randrange(1, len(request))])
            elif kind == "ahead":
                await client.send(request * 3)
            elif kind == "stays":
                response = await client.exchange(request)
                assert response.status == 200, response.body
                assert response.wire.endswith(b"0\r\n\r\n") or response.json() == OK
                answered += 1
            else:
                await client.send(request)
            await asyncio.sleep(chance.random() * 0.05)
            if chance.random() < 0.5:
                client.abort()

    count = 150 if tls else 400
    async with raw_replica(answer) as one, raw_replica(answer) as two:
        context = authority.server().context if authority else None
        async with storm([one, two], tls=context) as plane:
            await asyncio.gather(*(visit(plane, number) for number in range(count)))
            await settled(plane)
            assert {status.health for status in plane.engine.replicas(plane.now())} == {"healthy"}
    assert answered > count / 8


# --- replicas that die and return -------------------------------------------------------------------


@dataclass
class Failed:
    """A turn that did not come through."""

    said: str
    began: float
    ended: float


@dataclass
class Death:
    """A replica died with turns in its hands."""

    replica: str
    died_at: float
    back_at: float
    held: int
    """Turns that it had, or was given while it was gone."""


class Given(Silent):
    """Counts the turns that each replica was given."""

    def __init__(self, plane: DataPlane) -> None:
        self.turns: Counter[str] = Counter()
        observe(plane, self)

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        self.turns[decision.replica] += 1


async def test_replicas_that_die_and_return_fail_only_the_turns_that_they_held() -> None:
    chance = Random(12)
    loop = asyncio.get_running_loop()
    failures: list[Failed] = []
    deaths: list[Death] = []
    done: Counter[str] = Counter()
    over = False

    async def answer(request: Request, stream: Stream) -> None:
        await asyncio.sleep(0.002 + chance.random() * 0.02)
        if b'"stream":true' not in request.body:
            await stream.send_json(OK)
            return
        await stream.start_events()
        for _ in range(3):
            await stream.chunk(EVENT)
            await asyncio.sleep(0.002)
        await stream.chunk(DONE)
        await stream.end()

    async def converse(plane: DataPlane, number: int) -> None:
        turn = 0
        async with raw_client(plane.port) as client:
            while not over:
                turn += 1
                stream = chance.random() < 0.5
                began = loop.time()
                response = await client.exchange(
                    post(chat(f"{number} " * turn, stream=stream), f"X-Session-ID: {number}")
                )
                said = response.body.decode()
                if response.status == 200 and (DONE in response.body if stream else response.json() == OK):
                    done[response.headers["x-homing-replica"]] += 1
                else:
                    failures.append(Failed(said, began, loop.time()))

    async def probe(plane: DataPlane, replicas: dict[str, RawReplica]) -> None:
        while not over:
            for replica, server in replicas.items():
                if server.listening:
                    plane.engine.probe_passed(replica, plane.now())  # type: ignore[arg-type]
            await asyncio.sleep(0.05)

    async with AsyncExitStack() as stack:
        # One that died is left alone for two seconds, and then gets a turn or two at once. So two never die:
        # a fleet without a well replica refuses turns, and rightly.
        replicas = {f"r{i}": await stack.enter_async_context(raw_replica(answer)) for i in range(6)}
        async with storm(list(replicas.values())) as plane:
            given = Given(plane)

            def status(name: str) -> ReplicaStatus:
                return next(s for s in plane.engine.replicas(plane.now()) if s.id == name)

            async with asyncio.TaskGroup() as crowd:
                crowd.create_task(probe(plane, replicas))
                for number in range(60):
                    crowd.create_task(converse(plane, number))
                for victim in ["r0", "r1", "r2", "r3", "r0", "r1"]:
                    enough = done.total() + 100
                    await until(lambda enough=enough: done.total() > enough)
                    died_at = loop.time()
                    held = status(victim).in_flight - given.turns[victim]
                    await replicas[victim].stop()
                    await asyncio.sleep(0.15)
                    held += given.turns[victim]
                    deaths.append(Death(victim, died_at, loop.time(), held))
                    await replicas[victim].start()
                await until(lambda: set(done) == set(replicas))
                over = True

    assert len(failures) <= sum(death.held for death in deaths)
    for failed in failures:
        match = re.search(r"replica (r\d) (?:closed the connection|cannot be reached)", failed.said)
        assert match, failed
        assert any(
            death.replica == match[1] and failed.began <= death.back_at and death.died_at <= failed.ended
            for death in deaths
        ), failed


async def test_turns_that_no_dying_replica_holds_all_succeed() -> None:
    """Between two turns is when replicas die here: nothing is held, so nothing may fail."""

    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json(OK)

    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(raw_replica(answer)) for _ in range(4)]
        async with storm(replicas) as plane:
            clients = [await stack.enter_async_context(raw_client(plane.port)) for _ in range(40)]
            for round_ in range(12):
                victim = replicas[round_ % 3]
                await victim.stop()
                if round_ % 2:
                    await victim.start()  # it is back before anybody saw that it was gone
                responses = await asyncio.gather(
                    *(
                        client.exchange(post(chat(f"{number}"), f"X-Session-ID: {number}"))
                        for number, client in enumerate(clients)
                    )
                )
                assert [response.status for response in responses] == [200] * len(clients), [
                    response.body for response in responses if response.status != 200
                ]
                if not round_ % 2:
                    await victim.start()
            for client in clients:
                await client.close()
            assert len(replicas[3].requests) > 0


# --- crowds -----------------------------------------------------------------------------------------


async def test_two_thousand_connections_at_once_are_all_served() -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        await stream.send_json(OK)

    async with (
        raw_replica(answer) as one,
        raw_replica(answer) as two,
        storm([one, two]) as plane,
    ):
        everybody = asyncio.Barrier(2000)

        async def visit(number: int) -> int:
            async with raw_client(plane.port, limit=1 << 16) as client:
                await everybody.wait()
                request = post(chat(f"{number}"), f"X-Session-ID: {number}", "X-Request-Id: the-same")
                status = (await client.exchange(request)).status
                await everybody.wait()
                return status

        statuses = await asyncio.gather(*(visit(number) for number in range(2000)))
        assert Counter(statuses) == {200: 2000}
        assert len(one.requests) + len(two.requests) == 2000


async def test_bursts_of_five_hundred_turns_all_succeed_on_both_replicas() -> None:
    async def answer(request: Request, stream: Stream) -> None:
        await asyncio.sleep(0.005)
        if b'"stream":true' in request.body:
            await stream.start_events()
            await stream.chunk(EVENT)
            await stream.chunk(DONE)
            await stream.end()
        else:
            await stream.send_json(OK)

    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(raw_replica(answer))
        two = await stack.enter_async_context(raw_replica(answer))
        plane = await stack.enter_async_context(storm([one, two]))
        async with AsyncExitStack() as gone:
            clients = [
                await gone.enter_async_context(raw_client(plane.port, limit=1 << 16)) for _ in range(500)
            ]
            for burst in range(2):
                responses = await asyncio.gather(
                    *(
                        client.exchange(
                            post(
                                chat(f"{number} {'x' * 2000}", stream=number % 2 == 0),
                                f"X-Session-ID: {number}",
                            )
                        )
                        for number, client in enumerate(clients)
                    )
                )
                assert Counter(response.status for response in responses) == {200: 500}
                kinds = Counter(response.headers["x-homing-decision"] for response in responses)
                assert kinds == ({"new": 500} if burst == 0 else {"home": 500})
        assert len(one.requests) + len(two.requests) == 1000
        assert 200 < len(one.requests) < 800
