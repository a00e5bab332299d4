"""A data plane in front of given replicas, without control plane: the test says what is well."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

from router.base.ids import ReplicaId
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec
from router.core.observe import Ended, Outcome
from router.core.observer import Observer, Silent
from router.core.plan import Plan
from router.core.strategies.priced import Priced
from router.dataplane.limits import Limits
from router.dataplane.routing import Routing
from router.dataplane.server import DataPlane, Spread, Tracer
from router.settings.access import AccessKeys
from router.settings.routes import RouteTable
from support.loop_clock import loop_clock

SECRET = b"a secret of the tests"

_LOOK_S = 0.002
"""Between two looks at a condition."""


@asynccontextmanager
async def data_plane(
    urls: Sequence[str],
    *,
    plan: Plan | None = None,
    limits: Limits | None = None,
    access: AccessKeys | None = None,
    api_keys: dict[ReplicaId, str] | None = None,
    tenant_header: str | None = None,
    tls: ssl.SSLContext | None = None,
    replica_tls: ssl.SSLContext | None = None,
    engine: Engine | None = None,
    traces: Tracer | None = None,
    overhead: Spread | None = None,
) -> AsyncIterator[DataPlane]:
    """Replicas r0, r1, … at `urls`, all well. Fails if anything is left over at the end.

    `engine`, if given, has no replicas yet, and `plan` is its own.
    """
    plans = [plan or Plan(name="home", strategy=Priced())]
    with loop_clock() as clock:
        engine = engine or Engine(plans, rng=Random(3))
        specs = [ReplicaSpec(ReplicaId(f"r{number}"), url) for number, url in enumerate(urls)]
        engine.set_replicas(specs, clock.now())
        for spec in specs:
            engine.probe_passed(spec.id, clock.now())
        plane = DataPlane(
            engine,
            Routing(plans, RouteTable(()), secret=SECRET),
            clock=clock,
            limits=limits or Limits(),
            access=access,
            tenant_header=tenant_header,
            tls=tls,
            traces=traces,
            overhead=overhead,
        )
        contexts = {} if replica_tls is None else {spec.id: replica_tls for spec in specs}
        plane.set_replicas(specs, api_keys or {}, contexts)
        await plane.start("127.0.0.1", 0)
        try:
            yield plane
            await settled(plane)
        finally:
            await plane.close()


async def settled(plane: DataPlane) -> None:
    """Wait a little for exchanges to end, then check that nothing leaked."""
    await until(lambda: plane.engine.in_flight() == 0 and plane.held_bytes == 0 and len(plane.tasks) <= 1)
    for status in plane.engine.replicas(plane.now()):
        assert (status.in_flight, status.pending_tokens) == (0, 0), status
    assert plane.held_bytes == 0
    assert not plane._live_ids


async def pass_time(now: Callable[[], float], seconds: float) -> None:
    """Wait until a clock has moved on by so much."""
    at = now() + seconds
    await until(lambda: now() >= at, seconds + 30.0)


async def until(true: object, seconds: float = 30.0) -> None:
    """Wait until `true()` holds; fails after `seconds` of the loop's own time.

    A while in which the machine did something else counts as two looks, however long it was: so a short limit
    says how soon something must come about, and not how fast the machine must be.
    """
    assert callable(true)
    loop = asyncio.get_running_loop()
    while not true():
        assert seconds > 0.0, "did not happen in time"
        looked = loop.time()
        await asyncio.sleep(_LOOK_S)
        seconds -= min(loop.time() - looked, 2 * _LOOK_S)


def observe(plane: DataPlane, observer: Observer) -> None:
    """Have it told what happens from now on, and nobody else."""
    plane.engine._teller.observer = observer


class Outcomes(Silent):
    """Keeps how turns ended."""

    def __init__(self, plane: DataPlane) -> None:
        self.seen: list[Outcome] = []
        observe(plane, self)

    def on_ended(self, ended: Ended) -> None:
        self.seen.append(ended.outcome)
