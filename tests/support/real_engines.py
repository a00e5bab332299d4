"""Real vLLM engines on this machine's processor, each with the connector and a KV agent of its own.

Only for `make engine-test`: HOMING_ENGINE names the Python that has vLLM.
"""

import ctypes
import http.client
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx

from router.kv.hint import sign
from support.kv_proxy import ProxyThread
from support.patience import Patience

TREE: Final = Path(__file__).parents[2]
SECRET: Final = "a secret of the fleet for tests, long enough"
BLOCK: Final = 64
"""Tokens; the model's tokens are bytes."""
ARENA_MIB: Final = 512
READY_S: Final = 600.0
PATIENCE_S: Final = 300.0
"""Of our own time. Waits end with what they wait for: this is for what hangs, and not for what a busy machine
is slow with."""
REQUEST_S: Final = 1200.0
"""For whoever answers a request, likewise; of the world's time."""


def engine_python() -> str:
    """The Python that has vLLM."""
    return str(Path(os.environ["HOMING_ENGINE"]).absolute())


def die_with_parent() -> None:
    """In a child before it becomes what it is to be: end when the tests end, however they do (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worked_s(process: int) -> float:
    """What a process has had of the processor until now (Linux)."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def roomy(mib: int) -> str | None:
    """Shared memory with so much room for arenas; `None`: there is less, so that they go where temporary
    files do. A container has 64 MiB, unless it is told otherwise."""
    shared = "/dev/shm"
    return shared if shutil.disk_usage(shared).free > mib << 20 else None


def make_model(folder: Path, *more: str) -> Path:
    """The small model; a folder that has one is used as it is."""
    if not (folder / "model.safetensors").exists():
        script = TREE / "tools" / "engine" / "make_model.py"
        subprocess.run([engine_python(), str(script), str(folder), *more], check=True, capture_output=True)
    return folder


@dataclass
class KvProcess:
    """A KV agent or gateway."""

    name: str
    folder: Path
    port: int = field(default_factory=free_port)
    secret: str = SECRET
    process: subprocess.Popen[bytes] | None = None
    metrics_port: int = field(default_factory=free_port)

    COMMAND: ClassVar[str]

    def start(self) -> None:
        """Start it and wait until it listens."""
        config = self.folder / f"{self.name}.yaml"
        config.write_text(json.dumps(self._config()))
        log = (self.folder / f"{self.name}.agent.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router.cli", self.COMMAND, "-c", str(config)],
            stdout=log,
            stderr=log,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(TREE)},
            preexec_fn=die_with_parent,
        )
        log.close()
        patience = Patience(READY_S)
        while not self._answers():
            if self.process.poll() is not None or patience.is_over:
                raise RuntimeError((self.folder / f"{self.name}.agent.log").read_text()[-2000:])
            time.sleep(0.05)

    def _config(self) -> dict[str, Any]:
        return {
            "version": 1,
            "listen": f"127.0.0.1:{self.port}",
            "metrics": f"127.0.0.1:{self.metrics_port}",
            "secret_file": str(self._secret_file()),
        }

    def _secret_file(self) -> Path:
        path = self.folder / f"{self.name}.secret"
        path.write_text(self.secret)
        path.chmod(0o600)
        return path

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def metrics(self) -> "Metrics":
        """Its figures as they are now."""
        return Metrics(httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=REQUEST_S).text)

    def figure(self, name: str) -> float:
        """One of them."""
        return self.metrics().sum(f"homing_kv_{name}")

    def processor_s(self) -> float:
        """What it has had of the processor until now (Linux)."""
        assert self.process is not None
        return worked_s(self.process.pid)

    def kill(self) -> None:
        """As if its machine had lost power."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator does."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It is there and says nothing more."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(REQUEST_S)
            self.process = None


@dataclass
class AgentProcess(KvProcess):
    """A KV agent beside one replica."""

    peers: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)
    arena_folder: Path = Path("/dev/shm")
    arena_mib: int = ARENA_MIB
    mode: str = "both"
    codec: str = "raw"
    """Of what is pushed."""
    proxy: ProxyThread | None = None
    """Through which its peers reach it; `None`: they dial it as it is."""

    COMMAND = "kv-agent"

    @property
    def socket(self) -> Path:
        """Where its engine finds it."""
        return self.folder / f"{self.name}.sock"

    def _config(self) -> dict[str, Any]:
        peers = [{"name": name, "address": f"127.0.0.1:{port}"} for name, port in self.peers.items()]
        pools = [
            {"name": name, "address": f"127.0.0.1:{port}", "pool": True} for name, port in self.pools.items()
        ]
        return {
            **super()._config(),
            "kv_agent": self.name,
            "socket": str(self.socket),
            "arena": {"folder": str(self.arena_folder), "size": f"{self.arena_mib}MiB"},
            "mode": self.mode,
            "peers": [*peers, *pools],
            # For pulls without a hint. What ends a pull in a test is what the test does to it.
            "pull": {"stall": "60s", "deadline": "120s"},
            "push": {"codec": self.codec},
        }

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0


@dataclass
class GatewayProcess(KvProcess):
    """A KV gateway, in memory."""

    COMMAND = "kv-gateway"

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "kv_gateway": self.name, "memory": "1GiB"}

    def blocks(self) -> int:
        """How many it holds."""
        return int(self.figure("blocks"))

    def await_blocks(self, count: int, within_s: float = PATIENCE_S) -> None:
        """Until it holds so many: pushes come after the answer."""
        patience = Patience(within_s)
        while (found := self.blocks()) < count:
            if patience.is_over:
                raise AssertionError(f"{self.name} holds {found} blocks, not {count}")
            time.sleep(0.02)


@dataclass(frozen=True)
class Answer:
    """What a replica answered to a prompt."""

    status: int
    body: Mapping[str, Any]
    seconds: float

    @property
    def said(self) -> tuple[str, Any]:
        """The text, and the log-probabilities of each of its tokens and of those that came close."""
        choice = self.body["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return text, choice["logprobs"]

    @property
    def cached(self) -> int:
        """Tokens that were not computed, whether they lay here or were loaded."""
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.body["usage"]["prompt_tokens"])


class Replica:
    """A real engine."""

    def __init__(self, name: str, port: int, log: Path, agent: AgentProcess | None) -> None:
        self.name = name
        self.log = log
        self.agent = agent
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=REQUEST_S)
        self.asked = 0
        self.session = 0
        """Of its processes, as the system numbers sessions."""

    def ask(
        self, prompt: str | Sequence[Mapping[str, Any]], *, timeout_s: float = REQUEST_S, **more: Any
    ) -> Answer:
        """Greedy; `more` as `request` takes it. After `timeout_s` the client leaves."""
        path, sent, headers = self.request(prompt, **more)
        began = time.perf_counter()
        answer = self.client.post(path, json=sent, headers=headers, timeout=timeout_s)
        return Answer(answer.status_code, answer.json(), time.perf_counter() - began)

    def begin(self, prompt: str | Sequence[Mapping[str, Any]], **more: Any) -> http.client.HTTPConnection:
        """The same, not waited for. To close the connection is to leave."""
        path, sent, headers = self.request(prompt, **more)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        connection.request(
            "POST", path, body=json.dumps(sent), headers={"Content-Type": "application/json", **headers}
        )
        return connection

    def request(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        sources: Sequence[str] | None = None,
        tenant: str = "",
        tokens: int = 1,
        hint: Mapping[str, Any] | None = None,
        secret: str = SECRET,
        limits: Mapping[str, Any] | None = None,
        **body: Any,
    ) -> tuple[str, dict[str, Any], dict[str, str]]:
        """Path, body and headers. With `sources`, the request carries a hint for them, signed as the router
        signs it, with `limits` in it; `hint` is put into it after it was signed."""
        self.asked += 1
        request = f"test-{self.name}-{os.getpid()}-{self.asked}-{time.monotonic_ns()}"
        chat = not isinstance(prompt, str)
        sent: dict[str, Any] = {
            "model": "tiny",
            "temperature": 0,
            "max_tokens": tokens,
            ("messages" if chat else "prompt"): prompt,
            **({"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3}),
            **body,
        }
        if tenant:
            sent["cache_salt"] = tenant
        if sources is not None:
            made = make_hint(sources, tenant, **(limits or {}))
            signed = sign(made, secret=secret.encode(), replica=self.name, request=request)
            sent["kv_transfer_params"] = {"homing": {**signed, **(hint or {})}}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        return path, sent, {"X-Request-Id": request}

    def count_tokens(self, messages: Sequence[Mapping[str, Any]], **body: Any) -> int:
        """Of how many tokens a chat's prompt is."""
        answer = self.client.post("/tokenize", json={"model": "tiny", "messages": messages, **body})
        return int(answer.raise_for_status().json()["count"])

    def metrics(self) -> "Metrics":
        return Metrics(self.client.get("/metrics").text)

    def processor_s(self) -> float:
        """What its processes have had of the processor until now (Linux)."""
        total = 0.0
        for folder in Path("/proc").iterdir():
            try:
                # After the name, which may hold anything: state, parent, group, session.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if folder.name.isdigit() and int(fields[3]) == self.session:
                    total += worked_s(int(folder.name))
            except (OSError, IndexError):
                continue
        return total

    def is_well(self) -> bool:
        try:
            return self.client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def forget_cache(self) -> None:
        """Empty the engine's own cache; the agent keeps what it has."""
        self.client.post("/reset_prefix_cache").raise_for_status()

    def await_busy(self, seconds: float = PATIENCE_S) -> None:
        """Until some of its blocks are taken: it tells so a step later."""
        patience = Patience(seconds)
        while not self.metrics().sum("vllm:kv_cache_usage_perc"):
            if patience.is_over:
                raise AssertionError(f"{self.name}: no block is taken")
            time.sleep(0.02)

    def await_idle(self, seconds: float = PATIENCE_S, *, kept: int = 0) -> "Metrics":
        """Until nothing runs or waits, and no more blocks are taken than those `kept`."""
        patience = Patience(seconds)
        while True:
            found = self.metrics()
            asked = found.sum("vllm:num_requests_running") + found.sum("vllm:num_requests_waiting")
            if not asked and found.taken_blocks() <= kept:
                return found
            if patience.is_over:
                raise AssertionError(f"{self.name}: {asked} requests, {found.taken_blocks()} blocks taken")
            time.sleep(0.1)


class Metrics:
    """One reading of a replica's `/metrics`."""

    _LINE: Final = re.compile(r"([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$")

    def __init__(self, text: str) -> None:
        self.samples: list[tuple[str, str, float]] = []
        for line in text.splitlines():
            if not line.startswith("#") and (found := self._LINE.match(line)):
                self.samples.append((found[1], found[2] or "", float(found[3])))

    def sum(self, name: str, **labels: str) -> float:
        """Over all engines; labels that are not named do not matter."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value for found, has, value in self.samples if found == name and all(one in has for one in wanted)
        )

    def about(self, prefix: str = "vllm:homing_") -> str:
        """What there is of these, for a failed test to show."""
        return "\n".join(
            f"{name}{{{labels}}} {value:g}"
            for name, labels, value in self.samples
            if name.startswith(prefix) and not name.endswith(("_bucket", "_created"))
        )

    def taken_blocks(self) -> int:
        """Blocks of the engine's KV cache that are in use, or kept for somebody."""
        (told,) = [has for name, has, _ in self.samples if name == "vllm:cache_config_info"]
        all_blocks = int(told.partition('num_gpu_blocks="')[2].partition('"')[0])
        # One is never given out, and is not counted in the share.
        return round(self.sum("vllm:kv_cache_usage_perc") * (all_blocks - 1))

    def computed_tokens(self) -> float:
        """Prompt tokens that the engine computed."""
        return self.sum("vllm:prompt_tokens_by_source_total", source="local_compute")

    def loaded_tokens(self) -> float:
        """Prompt tokens whose KV came through the connector."""
        return self.sum("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


def make_hint(sources: Sequence[str], tenant: str = "", **values: Any) -> dict[str, Any]:
    """A hint before it is signed."""
    return {
        "v": 1,
        "session": "s",
        "tenant": tenant,
        "sources": list(sources),
        "epoch": 1,
        "stall_ms": 60_000,
        "deadline_ms": 120_000,
        "system_tokens": 0,
        "exp": int(time.time()) + 600,
        **values,
    }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An engine to be started."""

    name: str
    agent: AgentProcess | None = None
    apart: bool = False
    """Scheduler and worker in processes of their own."""
    blocks: int = 600
    connector: Mapping[str, Any] | None = field(default_factory=dict)
    """More of the connector's settings; `None`: no connector."""
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def spec(self, port: int, folder: Path, model: Path) -> dict[str, Any]:
        """As `tools/engine/start.py` takes it."""
        arguments = [
            *(
                "--model",
                str(model),
                "--served-model-name",
                "tiny",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "16384"),
            *("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(self.blocks)),
            *("--max-num-batched-tokens", "2048", "--enable-prompt-tokens-details"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *self.arguments,
        ]
        if self.connector is not None:
            arguments += ["--kv-transfer-config", json.dumps(self.transfer_config(folder))]
        return {
            "arguments": arguments,
            "log": str(folder / f"{self.name}.engine.log"),
            "environment": {
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if self.apart else "0",
                **self.environment,
            },
        }

    def transfer_config(self, folder: Path) -> dict[str, Any]:
        """What goes to `--kv-transfer-config`."""
        agent = self.agent.socket if self.agent is not None else folder / "no-agent.sock"
        return {
            "kv_connector": "HomingConnector",
            "kv_connector_module_path": "router.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"agent": str(agent), "engine": self.name, **(self.connector or {})},
        }


def engine_environment(**more: str) -> dict[str, str]:
    """Small and quiet: one thread each, no hub, no usage report."""
    return {
        **os.environ,
        "PYTHONPATH": str(TREE),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@contextmanager
def engines(plans: Sequence[Plan], folder: Path, model: Path) -> Iterator[dict[str, Replica]]:
    """Start them, warm them up, and stop them at the end."""
    ports = [free_port() for _ in plans]
    replicas: dict[str, Replica] = {}
    specs = [plan.spec(port, folder, model) for plan, port in zip(plans, ports, strict=True)]
    with tempfile.TemporaryFile() as trouble:
        starter = subprocess.Popen(
            [engine_python(), str(TREE / "tools" / "engine" / "start.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=trouble,
            cwd=folder,
            env=engine_environment(),
        )
        assert starter.stdin is not None
        try:
            starter.stdin.write(json.dumps(specs).encode() + b"\n")
            starter.stdin.flush()
            replicas = {
                plan.name: Replica(plan.name, port, Path(spec["log"]), plan.agent)
                for plan, port, spec in zip(plans, ports, specs, strict=True)
            }
            assert starter.stdout is not None
            told = json.loads(starter.stdout.readline() or b"{}")
            # Each engine is the first process of a session of its own.
            for replica, pid in zip(replicas.values(), told.get("pids", ()), strict=False):
                replica.session = pid
            _await_ready(starter, list(replicas.values()))
            for replica in replicas.values():
                # The first prompts of an engine pay for what is made on first use, and meet the agent.
                for number in range(3):
                    replica.ask(f"warm up {replica.name} {number} " * 40, tokens=4)
            yield replicas
        finally:
            starter.stdin.close()
            starter.wait(REQUEST_S)
            assert starter.stdout is not None
            starter.stdout.close()
            for replica in replicas.values():
                replica.client.close()


@contextmanager
def fleet(
    folder: Path,
    names: str,
    *,
    pool: GatewayProcess | None = None,
    codec: str = "raw",
    proxied: bool = False,
    kind: type[Plan] = Plan,
    **plan: Any,
) -> Iterator[dict[str, Replica]]:
    """Replicas of these names, a KV agent beside each that knows all others, or the pool alone where there is
    one. `codec` is that of pushes; `proxied`: agents reach each other through proxies with faults; `plan` is
    for all replicas, and `kind` whose it is."""
    model = make_model(folder.parent / "model")
    arenas = Path(tempfile.mkdtemp(prefix="homing-test-", dir=roomy(len(names) * ARENA_MIB)))
    agents = {name: AgentProcess(name, folder, arena_folder=arenas, codec=codec) for name in names}
    # On a busy machine a pull may take longer than computing: in tests it is to be right, not fast.
    connector = {"deadline_share": 600, "answer_s": 20, **plan.pop("connector", {})}
    plans = [kind(name=name, agent=agent, connector=connector, **plan) for name, agent in agents.items()]
    try:
        for agent in agents.values() if proxied else ():
            agent.proxy = ProxyThread(agent.port)
        for agent in agents.values():
            if pool is None:
                others = [peer for peer in agents.values() if peer is not agent]
                agent.peers = {peer.name: (peer.proxy or peer).port for peer in others}
            else:
                agent.pools = {pool.name: pool.port}
            agent.start()
        with engines(plans, folder, model) as replicas:
            yield replicas
    finally:
        for agent in agents.values():
            agent.stop()
            if agent.proxy is not None:
                agent.proxy.close()
        shutil.rmtree(arenas)


_WORDS: Final = ("read", "the", "file", "and", "tell", "me", "what", "it", "does", "before", "a", "line")


def text(chance: random.Random, length: int) -> str:
    """So many tokens: the model's tokens are bytes."""
    words = ""
    while len(words) < length:
        words += f"{chance.choice(_WORDS)} {chance.randrange(1000)} "
    return words[:length]


def _await_ready(starter: subprocess.Popen[bytes], replicas: Sequence[Replica]) -> None:
    patience = Patience(READY_S)
    waiting = list(replicas)
    while waiting:
        waiting = [replica for replica in waiting if not replica.is_well()]
        if waiting and (starter.poll() is not None or patience.is_over):
            raise RuntimeError(f"{waiting[0].name} does not start:\n{_tail(waiting[0].log)}")
        select.select([], [], [], 0.2)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:] if log.exists() else "no log"
