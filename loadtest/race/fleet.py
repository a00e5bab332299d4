"""The simulated replicas, all in one process: `python -m loadtest.race.fleet COUNT SETTINGS EVENTS`.

EVENTS are the ports of their KV events, none where nobody follows them.

Prints its ports as a line of JSON, then does what it is told over its control port, and counts what the
replicas compute over all their lives.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import orjson
import uvloop
from aiohttp import web

from loadtest.race.scenarios import SLOWER
from router.base.tasks import TaskOwner
from router.simulator.events import REPLAY_PORT
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings

_LOOK_S = 0.02


class Fleet:
    """The replicas by number."""

    def __init__(self, count: int, settings: ReplicaSettings, events: Sequence[int] = ()) -> None:
        self.replicas = [
            SimulatedReplica(
                replace(settings, name=f"r{number}", kv_events=events[number] if events else 0), keep=1
            )
            for number in range(count)
        ]
        self._scale = settings.time_scale
        self._ended = [{"prompt": 0, "computed": 0, "turns": 0} for _ in self.replicas]
        """What each did in lives that are over."""
        self.late_s: list[float] = []
        """How late a timer of this process was, time after time: what the simulated times may be off by."""

    async def do(self, what: str, number: int) -> None:
        """Let something happen. Raises `KeyError` or `IndexError` for what there is not."""
        replica = self.replicas[number]
        match what:
            case "kill":
                self._ended[number] = self._of(number)
                await replica.kill()
                # What is left of that life is in the sums.
                replica.model.counters = type(replica.model.counters)()
            case "start":
                await replica.start()
            case "slow":
                replica.api.driver.go_at(self._scale / SLOWER)
            case "restore":
                replica.api.driver.go_at(self._scale)
            case _:
                raise KeyError(what)

    def totals(self) -> dict[str, Any]:
        late = sorted(self.late_s)
        return {
            "replicas": [self._of(number) for number in range(len(self.replicas))],
            "late_ms": late[int(0.99 * len(late))] * 1e3 if late else 0.0,
        }

    def _of(self, number: int) -> dict[str, int]:
        ended, counters = self._ended[number], self.replicas[number].model.counters
        return {
            "prompt": ended["prompt"] + counters.prompt_tokens,
            "computed": ended["computed"] + counters.computed_tokens,
            "turns": ended["turns"] + counters.finished,
        }

    async def watch(self) -> None:
        """Note how late timers are."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self.late_s.append(loop.time() - due)


async def serve(count: int, settings: ReplicaSettings, events: Sequence[int]) -> None:
    """Until SIGTERM."""
    fleet = Fleet(count, settings, events)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def do(request: web.Request) -> web.Response:
        asked = await request.json()
        await fleet.do(asked["what"], asked["replica"])
        return web.Response()

    async def totals(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(fleet.totals()), content_type="application/json")

    app = web.Application()
    app.router.add_post("/do", do)
    app.router.add_get("/totals", totals)
    runner = web.AppRunner(app, access_log=None)
    tasks = TaskOwner()
    try:
        for replica in fleet.replicas:
            await replica.start()
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        tasks.spawn(fleet.watch(), name="watch timers")
        ports = [replica.port for replica in fleet.replicas]
        print(orjson.dumps({"ports": ports, "control": runner.addresses[0][1]}).decode(), flush=True)
        await stop.wait()
    finally:
        await tasks.close()
        await runner.cleanup()
        for replica in fleet.replicas:
            await replica.kill()


def arguments(count: int, settings: ReplicaSettings, events: Sequence[int] = ()) -> list[str]:
    """The command line that starts it."""
    told = [orjson.dumps(asdict(settings)).decode(), orjson.dumps(list(events)).decode()]
    return [sys.executable, "-m", "loadtest.race.fleet", str(count), *told]


def event_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, nor on those that replays then have."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            one, replay = (stack.enter_context(socket.socket()) for _ in range(2))
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                replay.bind(("127.0.0.1", port + REPLAY_PORT))
            except (OSError, OverflowError):
                continue
            ports.append(port)
    return ports


if __name__ == "__main__":
    made = ReplicaSettings(**orjson.loads(sys.argv[2]))
    uvloop.run(serve(int(sys.argv[1]), made, orjson.loads(sys.argv[3])))
