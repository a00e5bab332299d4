import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from router.controlplane.front import Front


@dataclass
class Crew:
    sockets: dict[int, Path] = field(default_factory=dict)
    stopping: bool = False
    restarts: int = 0

    def __len__(self) -> int:
        return 3

    def admins(self) -> Mapping[int, Path]:
        return self.sockets


@asynccontextmanager
async def worker(crew: Crew, folder: Path, reasons: list[str] | None) -> AsyncIterator[None]:
    """One that says why it is not ready; without `reasons` it says nothing at all."""
    number = len(crew.sockets)
    path = crew.sockets[number] = folder / str(number)
    forever = asyncio.Event()

    async def readyz(_request: web.Request) -> web.Response:
        if reasons is None:
            await forever.wait()
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    app = web.Application()
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        yield
    finally:
        forever.set()
        await runner.cleanup()


async def asked(crew: Crew) -> tuple[int, list[str]]:
    front = Front(crew, token="t0ken")
    await front.start("127.0.0.1", 0)
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{front.port}/readyz") as answer,
        ):
            said = await answer.json()
            assert said["ready"] == (answer.status == 200)
            return answer.status, said["reasons"]
    finally:
        await front.close()


async def test_one_worker_that_is_ready_is_enough_whatever_the_others_say_or_do_not(tmp_path: Path) -> None:
    crew = Crew({7: tmp_path / "gone"})
    async with (
        worker(crew, tmp_path, ["a is down"]),
        worker(crew, tmp_path, None),
        worker(crew, tmp_path, []),
        # Well below what one that hangs is waited for.
        asyncio.timeout(5.0),
    ):
        assert await asked(crew) == (200, [])


async def test_where_none_is_ready_each_reason_is_told_once(tmp_path: Path) -> None:
    crew = Crew()
    async with (
        worker(crew, tmp_path, ["a is down", "b is down"]),
        worker(crew, tmp_path, ["b is down", "c is down"]),
    ):
        status, reasons = await asked(crew)
        assert (status, sorted(reasons)) == (503, ["a is down", "b is down", "c is down"])


@pytest.mark.parametrize(
    ("crew", "reason"), [(Crew(), "no worker serves"), (Crew(stopping=True), "the router is stopping")]
)
async def test_without_workers_and_while_stopping_it_is_not_ready(crew: Crew, reason: str) -> None:
    assert await asked(crew) == (503, [reason])
