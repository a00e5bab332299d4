"""A whole router in front of simulated replicas, as `homing serve` would run it, on free ports.

Replicas are looked at once, at the start: a test that wants the router to see more says `probe`.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import yaml

from router.base.ids import ReplicaId
from router.controlplane.roster import Listed
from router.core.fleet import ReplicaSpec, ReplicaStatus
from router.settings.compare import Settings
from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.simulator.agent import KvBeside
from router.simulator.calls import Record
from router.simulator.server import SimulatedReplica
from router.simulator.settings import ReplicaSettings
from router.wiring import Router
from support.plane import until

MODEL = "sim-model"

QUICK = ReplicaSettings(time_scale=40.0)
"""A prompt of 4,000 tokens takes 12 ms, a reply of 50 tokens 25 ms."""

LASTING: Mapping[str, Any] = {"max_tokens": 100_000, "ignore_eos": True, "stream": True}
"""Asks for a reply that no test lasts to the end of: 50 s of a `QUICK` replica's."""

_STAY = {"move": "1h"}
# On a busy machine the replicas look slow, and leaving home for one that has less to do is then right. Tests
# in which sessions are to leave by price say what leaving costs.

NEVER = "1h"
"""Between two looks at a replica: no test lasts so long."""

_PATIENT = "30s"
# For a look at a replica: one that a busy machine is slow to answer is not down.


@dataclass
class Fleet:
    """The router, its replicas by name, and clients of both of its ports."""

    router: Router
    replicas: dict[str, SimulatedReplica]
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    """Sends the admin token."""
    folder: Path
    """Where the config, `router.yaml`, and its policy, `home.yaml`, lie."""
    environ: dict[str, str]
    """What a reload finds in the environment."""

    @property
    def base_url(self) -> str:
        """Without `/v1`: what the Anthropic client wants."""
        return f"http://127.0.0.1:{self.router.dataplane.port}"

    @property
    def openai_url(self) -> str:
        return f"{self.base_url}/v1"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.router.admin.port}"

    @property
    def admin_token(self) -> str:
        return self.router.admin.token

    def status(self, name: str) -> ReplicaStatus:
        """What the router knows of one replica."""
        now = self.router.clock.now()
        return next(status for status in self.router.engine.replicas(now) if status.id == name)

    def records(self, *names: str) -> list[tuple[str, Record]]:
        """What arrived at the replicas of these names, or at all, for clients: the probe left out."""
        return [
            (name, record)
            for name in names or self.replicas
            for record in self.replicas[name].requests
            if record.headers.get("user-agent") != "homing"
        ]

    async def decision(self) -> dict[str, Any]:
        """The latest one, as the admin port shows it."""
        answer = await self.admin.get("/api/decisions?limit=1")
        [decision] = answer.json()["decisions"]
        assert isinstance(decision, dict)
        return decision

    async def chat(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> "Answered":
        """One chat turn by `httpx`. `headers` are headers; all else is for the body."""
        headers = more.pop("headers", {})
        body = {"model": MODEL, "messages": messages, "max_tokens": 16, **more}
        return Answered(await self.client.post("/v1/chat/completions", json=body, headers=headers))

    async def add_replica(self, name: str, settings: ReplicaSettings = QUICK) -> SimulatedReplica:
        """Start one more replica and let the router take it in."""
        replica = SimulatedReplica(replace(settings, name=name))
        await replica.start()
        self.replicas[name] = replica
        router = self.router
        added = ReplicaSpec(ReplicaId(name), replica.url)
        router.discovery.list_config([*router.discovery.fleet, Listed(added)])
        await router.probe_once()
        return replica


@dataclass
class Answered:
    """An answer, with what the router said about it."""

    response: httpx.Response

    @property
    def json(self) -> Any:
        return self.response.json()

    @property
    def replica(self) -> str:
        return self.response.headers["x-homing-replica"]

    @property
    def kind(self) -> str:
        return self.response.headers["x-homing-decision"]

    @property
    def cached(self) -> int:
        """Cached tokens as the replica counted them."""
        details = self.json["usage"]["prompt_tokens_details"] or {}
        return int(details.get("cached_tokens") or 0)

    @property
    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = self.json["choices"][0]["message"]
        return {"role": "assistant", "content": message["content"]}


@asynccontextmanager
async def fleet(
    size: int = 2,
    *,
    settings: ReplicaSettings | Sequence[ReplicaSettings] = QUICK,
    config: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    keys: Mapping[str, str] | None = None,
    api_keys: Mapping[str, str] | None = None,
    kv_agents: Mapping[str, str] | None = None,
    kv: Mapping[str, KvBeside] | None = None,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    probe: str = NEVER,
    down: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    reload: bool = False,
    look_every_s: float = 3600.0,
) -> AsyncIterator[Fleet]:
    """Replicas r0, r1, … and a router on free ports. Fails if anything is left over at the end.

    `config` and `policy` are laid over the usual ones, `keys` is API key → tenant, `api_keys` replica → the
    key that it wants, `kv_agents` replica → where its KV agent listens, `kv` replica → what is simulated
    beside it, `roles` replica → further keys of its entry, `down` names the replicas that do not run, and
    `files` lie beside the config. With `reload` the router reads its files anew when it is told, and looks at
    them every `look_every_s`.
    """
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        replicas: dict[str, SimulatedReplica] = {}
        for number in range(size):
            name = f"r{number}"
            each = settings if isinstance(settings, ReplicaSettings) else settings[number]
            replica = SimulatedReplica(replace(each, name=name), kv=(kv or {}).get(name))
            replicas[name] = replica
            await replica.start()
            # So old that a restart within the test moves its start time as far as a real one does.
            replica.api.start_time -= 3600.0
            if name in down:
                await replica.kill()
        stack.push_async_callback(_kill, replicas)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        environ = _write(
            folder,
            replicas,
            config or {},
            policy or {},
            keys or {},
            api_keys or {},
            kv_agents or {},
            roles or {},
            probe,
        )

        def read(code: Container[str] | None) -> Settings:
            loaded = load_config(folder / "router.yaml", code)
            return Settings(loaded, load_secrets(loaded, environ), environ)

        settings = read(None)
        router = Router(
            settings.loaded,
            settings.secrets,
            rng=Random(5),
            environ=environ,
            read=read if reload else None,
            look_every_s=look_every_s,
        )
        stack.push_async_callback(router.close)
        await router.start()
        running = Fleet(
            router,
            replicas,
            await stack.enter_async_context(_client(router.dataplane.port)),
            await stack.enter_async_context(
                _client(router.admin.port, Authorization=f"Bearer {router.admin.token}")
            ),
            folder,
            environ,
        )
        yield running
        await settled(running)
    assert len(router.dataplane.tasks) == 0
    assert not router.dataplane.connections
    # What was cancelled ends with the next turns of the loop.
    await until(lambda: asyncio.all_tasks() <= before)


def _client(port: int, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60.0, trust_env=False
    )


async def _kill(replicas: Mapping[str, SimulatedReplica]) -> None:
    for replica in replicas.values():
        await replica.kill()


def _write(
    folder: Path,
    replicas: Mapping[str, SimulatedReplica],
    config: Mapping[str, Any],
    policy: Mapping[str, Any],
    keys: Mapping[str, str],
    api_keys: Mapping[str, str],
    kv_agents: Mapping[str, str],
    roles: Mapping[str, Mapping[str, Any]],
    probe: str,
) -> dict[str, str]:
    """Write config and policy; returns the environment."""
    listed = []
    environ = {"HOMING_SECRET": "a-secret-of-the-tests-0123456789abcdef"}
    for name, replica in replicas.items():
        one: dict[str, Any] = {"name": name, "url": replica.url, **roles.get(name, {})}
        if name in api_keys:
            one["api_key_env"] = f"KEY_{name}"
            environ[f"KEY_{name}"] = api_keys[name]
        if name in kv_agents:
            one["kv_agent"] = kv_agents[name]
        listed.append(one)
    if keys:
        environ["HOMING_API_KEYS"] = ",".join(f"{tenant}={key}" for key, tenant in keys.items())
    whole = {"version": 1, "policy": "home", "strategy": "priced", **policy}
    if whole["strategy"] == "priced":
        whole.setdefault("price", _STAY)
    (folder / "home.yaml").write_text(yaml.safe_dump(whole))
    path = folder / "router.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "listen": "127.0.0.1:0",
                "admin": {"listen": "127.0.0.1:0"},
                "policies": ["home.yaml"],
                "replicas": listed,
                "probe": {"interval": probe, "timeout": _PATIENT},
                **config,
            }
        )
    )
    return environ


async def make_wait(running: Fleet) -> "list[Answered]":
    """The answers to four long turns for the one replica, three of which had to wait for it. For a policy
    that lets turns wait, with a short horizon."""
    replica = running.replicas["r0"]
    replica.fault("hold", count=1)
    turns = [
        asyncio.ensure_future(running.chat([{"role": "user", "content": f"{number} " + "x" * 40_000}]))
        for number in range(4)
    ]
    await until(lambda: running.router.engine.held == 3)
    replica.clear_faults()
    return await asyncio.gather(*turns)


async def settled(running: Fleet) -> None:
    """Wait a little for turns to end, then check that neither router nor replicas kept anything."""
    plane, engine = running.router.dataplane, running.router.engine
    await until(
        lambda: (
            engine.in_flight() == 0
            and plane.held_bytes == 0
            and len(plane.tasks) <= 1
            and not any(replica.in_flight for replica in running.replicas.values() if replica.alive)
        )
    )
    for status in engine.replicas(running.router.clock.now()):
        assert (status.in_flight, status.pending_tokens) == (0, 0), status
    assert not plane._live_ids


def words(count: int, seed: object = 0) -> str:
    """So many words of four bytes, a token each: the same for the same seed."""
    chance = Random(repr(seed))
    return "".join(chance.choice(_VOCABULARY) for _ in range(count))


_VOCABULARY = tuple(
    f"{consonant}{vowel}{end} " for consonant in "bcdfghjklmnp" for vowel in "aeiou" for end in "nrstxz"
)
