"""Simulated replicas and routers as processes of their own, on loopback, ended with whoever started them."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from loadtest.steady.clients import MODEL

TOKEN: Final = "steady"
"""Of every router's admin port."""
_SECRET: Final = "what the routers of a load test share"

_START_S: Final = 120.0
_HOMING: Final = (sys.executable, "-P", "-m", "router.cli")


class SteadyError(Exception):
    """Something did not start, or did not do as it was told."""


class Process:
    """One, and the address that it names in its first line."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, line: str) -> None:
        self.process = process
        self.url = url
        self.line = line

    def kill(self) -> None:
        """At once, as a crash would."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def ended(self) -> int:
        """Its exit status, once it has one."""
        async with asyncio.timeout(_START_S):
            return await self.process.wait()

    async def stop(self) -> None:
        """In order."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            await self.ended()


@asynccontextmanager
async def started(log: Path, *arguments: str) -> AsyncIterator[Process]:
    """`homing ARGUMENTS`, until the block ends. Raises `SteadyError` where it does not start."""
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *_HOMING,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "HOMING_ADMIN_TOKEN": TOKEN, "HOMING_SECRET": _SECRET},
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://[\d.]+:\d+", line)
        if found is None:
            raise SteadyError(f"'homing {arguments[0]}' did not start; see {log}")
        made = Process(process, found[0], line)
        yield made
        # In order, so that workers are gone when their parent is.
        await made.stop()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Fleet:
    """Replicas by name, and a folder with the config of routers in front of them."""

    def __init__(self, folder: Path, replicas: dict[str, Process]) -> None:
        self.folder = folder
        self.replicas = replicas

    def list(self, names: Sequence[str]) -> None:
        """These are the replicas, for whoever follows the file."""
        listed = [{"name": name, "url": self.replicas[name].url} for name in names]
        beside = self.folder / "replicas.new"
        beside.write_text(json.dumps({"version": 1, "replicas": listed}))
        beside.replace(self.folder / "replicas.yaml")

    def configure(self, name: str, **more: Any) -> Path:
        """Write a router's config; returns its path."""
        path = self.folder / f"{name}.yaml"
        config = {
            "version": 1,
            "listen": "127.0.0.1:0",
            "admin": {"listen": "127.0.0.1:0"},
            "policies": ["policy.yaml"],
            "discovery": {"file": "replicas.yaml"},
            "restart": {"snapshot": f"{name}.snapshot", "handover": f"{name}.handover"},
        }
        # JSON is YAML.
        path.write_text(json.dumps({**config, **more}))
        return path

    def policy(self, **more: Any) -> None:
        """Write the routers' policy."""
        policy = {"version": 1, "policy": "home", "strategy": "priced", "queue": {"order": "least-missing"}}
        (self.folder / "policy.yaml").write_text(json.dumps({**policy, **more}))


@asynccontextmanager
async def fleet(folder: Path, names: Sequence[str], *flags: str) -> AsyncIterator[Fleet]:
    """So many replicas, with flags of `homing engine`."""
    async with AsyncExitStack() as stack:
        replicas = {}
        for name in names:
            log = folder / f"replica-{name}.log"
            arguments = ("engine", "--port", "0", "--name", name, "--model", MODEL, *flags)
            replicas[name] = await stack.enter_async_context(started(log, *arguments))
        made = Fleet(folder, replicas)
        made.policy()
        yield made
