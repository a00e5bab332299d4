"""`homing serve`: a router alone, a router that is one of several workers, or the supervisor of those.

Runs one until it is told to stop or a successor has taken over, and says meanwhile what goes on. Each imports
what it needs: a supervisor does without a router.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from router.base.build import version_line
from router.base.heap import settle_heap
from router.base.system import allow_open_files
from router.base.tasks import TaskOwner, first_of
from router.controlplane.place import Place, read_place
from router.controlplane.reload import Read
from router.process import log_to_stderr, run, say, stop_event
from router.settings.compare import Settings
from router.settings.config import RouterConfig
from router.settings.credentials import load_secrets
from router.settings.flags import config_from_flags
from router.settings.load import load_config

if TYPE_CHECKING:
    from router.supervisor import Supervisor
    from router.wiring import Router


def serve(arguments: argparse.Namespace) -> int:
    """Run what the command line says until it ends. Raises `HomingError` for what is refused."""

    def read(code: Container[str] | None) -> Settings:
        base = load_config(arguments.config, code) if arguments.config is not None else None
        loaded = config_from_flags(
            arguments.replica, arguments.policy, arguments.listen, arguments.admin, base=base, code=code
        )
        return Settings(loaded, load_secrets(loaded, os.environ), os.environ)

    place = read_place(arguments.worker) if arguments.worker is not None else None
    settings = read(None)
    log_to_stderr(arguments.log_level, f"worker {place.number}: " if place is not None else "")
    allow_open_files()
    if place is not None:
        return run(_work_until_stopped(settings, read, place))
    if arguments.workers > 1:
        return run(_supervise_until_stopped(settings, arguments.workers, _worker_command(arguments)))
    return run(_serve_until_stopped(settings, read))


def _worker_command(arguments: argparse.Namespace) -> list[str]:
    """What starts a worker of this very router, but for its place."""
    command = [sys.executable, "-P", "-m", "router.cli", "serve", "--log-level", arguments.log_level]
    for flag in ("config", "policy", "listen", "admin"):
        if (value := getattr(arguments, flag)) is not None:
            command += [f"--{flag}", str(value)]
    for url in arguments.replica:
        command += ["--replica", url]
    return [*command, "--worker"]


async def _serve_until_stopped(settings: Settings, read: Read) -> int:
    from router.wiring import Router

    router = Router(settings.loaded, settings.secrets, environ=settings.environ, read=read)
    for notice in router.notices:
        say(f"note: {notice}", sys.stderr)
    if not router.config.replicas and not router.config.discovery:
        say("note: no replicas: every request is refused; give --replica or a config", sys.stderr)
    reloads = TaskOwner()
    _reload_at_hangup(router, reloads)
    stop = stop_event()
    try:
        handed_over = router.succession.handed_over
        await first_of(router.start(), stop.wait())
        if not stop.is_set():
            settle_heap()
            _announce(router)
            await first_of(stop.wait(), handed_over.wait())
        grace_s = _farewell(router.config, handed_over.is_set())
        stop.clear()
        await first_of(router.close(grace_s), stop.wait())
    finally:
        await reloads.close()
        await router.close()
    return 0


def _farewell(config: RouterConfig, handed_over: bool) -> float:
    """Say that this is the end; returns the seconds that running turns get."""
    if handed_over:
        say("homing: a successor has taken over; running turns may end", sys.stderr)
        return config.restart.linger
    say("homing: stopping; running turns may end (once more: at once)", sys.stderr)
    return config.restart.grace


async def _work_until_stopped(settings: Settings, read: Read, place: Place) -> int:
    from router.wiring import Router
    from router.worker import Worker

    router = Router(settings.loaded, settings.secrets, environ=settings.environ, read=read, place=place)
    reloads = TaskOwner()
    _reload_at_hangup(router, reloads)
    stop = stop_event()
    try:
        await Worker(router, place).run(stop)
    finally:
        await reloads.close()
    return 0


async def _supervise_until_stopped(settings: Settings, count: int, command: Sequence[str]) -> int:
    from router.supervisor import Supervisor

    supervisor = Supervisor(settings, count, command)
    for notice in supervisor.notices:
        say(f"note: {notice}", sys.stderr)
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.reload)
    stop = stop_event()
    handed_over = supervisor.succession.handed_over
    try:
        await first_of(supervisor.start(), stop.wait())
        if not stop.is_set():
            await _announce_crew(supervisor)
            await first_of(stop.wait(), handed_over.wait())
        grace_s = _farewell(settings.loaded.value, handed_over.is_set())
        stop.clear()
        await first_of(supervisor.close(grace_s), stop.wait())
    finally:
        await supervisor.close()
    return 0


def _announce(router: "Router") -> None:
    fleet = router.engine.replicas(router.clock.now())
    say(
        _served(
            router.config,
            router.dataplane.port,
            router.admin.port,
            [status.health for status in fleet],
            router.engine.plans[0].name,
        )
    )
    for status in fleet:
        if status.health != "healthy":
            say(f"  {status.id} {status.url}: {status.health} {status.why}".rstrip())
    if router.secrets.admin_token is None:
        say(f"admin token for writes, made up for this run: {router.admin.token}")


async def _announce_crew(supervisor: "Supervisor") -> None:
    fleet = await supervisor.fleet()
    health = [str(replica["health"]) for replica in fleet]
    line = _served(supervisor.config, supervisor.crew.port, supervisor.admin.port, health, supervisor.policy)
    say(f"{line}; {len(supervisor.crew)} workers")
    for replica in fleet:
        if replica["health"] != "healthy":
            say(f"  {replica['name']} {replica['url']}: {replica['health']} {replica['why']}".rstrip())
    if supervisor.secrets.admin_token is None:
        say(f"admin token for writes, made up for this run: {supervisor.admin.token}")


def _served(config: RouterConfig, port: int, admin_port: int, health: Sequence[str], policy: str) -> str:
    well = sum(state == "healthy" for state in health)
    replicas = "1 replica" if len(health) == 1 else f"{len(health)} replicas"
    return (
        f"{version_line()}: {'http' if config.tls is None else 'https'}://{config.listen.host}:{port}"
        f" -> {replicas} ({well} healthy), policy {policy};"
        f" admin http://{config.admin.listen.host}:{admin_port}"
    )


def _reload_at_hangup(router: "Router", tasks: TaskOwner) -> None:
    """Read config and policies anew at SIGHUP. Left alone, the signal would kill."""
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: tasks.spawn(router.reloader.reload("SIGHUP"), name="reload at SIGHUP")
        )
