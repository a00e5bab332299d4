"""What is done to a fleet under steady load: reload, add, drain, kill, restart."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from loadtest.steady.clients import Load, Shape, Turn
from loadtest.steady.fleet import TOKEN, Process, SteadyError, fleet, started

KILLED: Final = "c"
"""The replica that is."""

_TURNS: Final = 10
"""Of a session."""


async def operate(
    folder: Path, streams: int, workers: int, flags: Sequence[str], say: Callable[[str], None]
) -> Sequence[Turn]:
    """All turns of so many streams through a router of so many processes, while all of it is done to it.

    `flags`: of the replicas. `say` is told what was done. Raises `SteadyError` where something was not.
    """
    several = ("--workers", str(workers))
    async with fleet(folder, ("a", "b", "c", "d", "added"), *flags) as made:
        made.list("abcd")
        config = made.configure("router")
        async with (
            started(folder / "router.log", "serve", "-c", str(config), *several) as first,
            _admin(first) as admin,
        ):
            # Sessions end and others begin, or a replica that is added would have none: those that go on have
            # no reason to leave their homes.
            load = Load(lambda: [first.url], streams, Shape(turns=_TURNS))
            async with asyncio.TaskGroup() as group:
                running = group.create_task(load.run())
                await load.reached(2 * streams)
                say(f"{streams} streams through {workers} process(es), {len(load.ended)} turns so far")

                made.policy(price={"move": "60ms"})
                answer = await admin.post("/api/reload")
                say(f"policy reloaded: {answer.json()['changes']}")
                await load.reached(streams)

                made.list(["a", "b", "c", "d", "added"])
                while not any(turn.replica == "added" for turn in load.ended):
                    await load.reached(10)
                say("a replica was added, and has had turns")
                await load.reached(streams)

                (await admin.post("/api/replicas/b/drain")).raise_for_status()
                await load.reached(2 * streams)
                since = len(load.ended)
                await load.reached(streams)
                if any(turn.replica == "b" for turn in load.ended[since:]):
                    raise SteadyError("the replica that was drained still gets turns")
                say("a replica was drained")

                made.replicas[KILLED].kill()
                await load.reached(2 * streams)
                say("a replica was killed")

                async with started(folder / "second.log", "serve", "-c", str(config), *several) as second:
                    if second.url != first.url:
                        raise SteadyError(f"the next router listens at {second.url}, not at {first.url}")
                    await load.reached(2 * streams)
                    status = await first.ended()
                    say(f"the router was restarted; the one before ended with {status}")
                    await load.reached(streams)
                    load.stop()
                    await running
    return load.ended


def _admin(router: Process) -> httpx.AsyncClient:
    found = re.search(r"admin (http://\S+?);?(?: |$)", router.line)
    assert found is not None
    return httpx.AsyncClient(
        base_url=found[1], headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False
    )
