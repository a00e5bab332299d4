"""What a paired turn costs the router itself: `python tests/bench/pair_path.py`. Prints, asserts nothing.

Two simulated prefill replicas and a decode replica in processes of their own; in this one, a whole router,
and a client in a thread of its own. Sessions grow over three turns and change their prefill replica with
each: the second turn renders, compares tokens and fetches back, the third finds some where the first one
was. Shown is the processor time of the router's thread a turn: what replicas take to render, compute and
transfer is theirs.

    python tests/bench/pair_path.py [--tokens 7000] [--sessions 20]
"""

import argparse
import asyncio
import gc
import http.client
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from time import clock_gettime, pthread_getcpuclockid

import uvloop
import yaml

import router
from router.base.ids import ReplicaId
from router.settings.compare import Settings
from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.wiring import Router

TURNS = 3
BLOCK_TOKENS = 16
PREFILLS = ("p0", "p1")


async def replica(stack: AsyncExitStack, name: str, kv_blocks: int) -> str:
    """Start a simulated replica with so much KV; its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "engine", "--port", "0", "--name", name),
        *("--prefill-tps", "200000", "--decode-tps", "2000", "--kv-blocks", str(kv_blocks)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    stack.callback(process.terminate)
    assert process.stdout is not None
    while line := await process.stdout.readline():
        for word in line.decode().split():
            if word.startswith("http://"):
                return word.strip(".,;")
    raise RuntimeError(f"{name} does not start")


def load(folder: Path, urls: dict[str, str]) -> Settings:
    """The settings of a router before these replicas."""
    replicas = [
        {
            "name": name,
            "url": url,
            **({"role": "prefill", "two_way": True} if name in PREFILLS else {"role": "decode"}),
        }
        for name, url in urls.items()
    ]
    (folder / "policy.yaml").write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "policy": "pairs",
                "strategy": "priced",
                "price": {"prefill": {"seed_tokens_per_s": 100_000}, "pull": {"seed_gbps": 5000}},
            }
        )
    )
    path = folder / "router.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "listen": "127.0.0.1:0",
                "admin": {"listen": "127.0.0.1:0"},
                "policies": ["policy.yaml"],
                "replicas": replicas,
                "probe": {"interval": "1h"},  # no part of a turn
            }
        )
    )
    loaded = load_config(path)
    return Settings(
        loaded, load_secrets(loaded, {"HOMING_SECRET": "a-secret-of-the-bench-0123456789abcdef"}), {}
    )


async def measure(tokens: int, sessions: int) -> dict[str, list[float]]:
    """Milliseconds of each turn, by the kind of its decision."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Decode holds the last turn of each session until the end. Replicas are not looked at here, so it
        # would have nobody to tell that it is full.
        kv_blocks = 4 * tokens * (sessions + 1) // BLOCK_TOKENS
        urls = {name: await replica(stack, name, kv_blocks) for name in (*PREFILLS, "d0")}
        settings = load(folder, urls)
        made = Router(settings.loaded, settings.secrets, rng=Random(1), environ={})
        stack.push_async_callback(made.close)
        await made.start()
        client = Client(made, asyncio.get_running_loop())
        return await asyncio.to_thread(client.run, tokens, sessions)


class Client:
    """In another thread than the router, whose processor time it reads."""

    def __init__(self, router: Router, loop: asyncio.AbstractEventLoop) -> None:
        self._router = router
        self._loop = loop
        self._clock = pthread_getcpuclockid(threading.get_ident())
        self._connection = http.client.HTTPConnection("127.0.0.1", router.dataplane.port, timeout=60)

    def run(self, tokens: int, sessions: int) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {}
        chance = Random(1)
        gc.collect()
        gc.freeze()
        for number in range(sessions):
            words = "".join(chance.choice(("abc ", "def ", "ghi ", "jkl ")) for _ in range(tokens))
            messages = [{"role": "user", "content": f"{number} {words}"}]
            last = None
            for at in range(TURNS):
                if last is not None:
                    self._drain(last, True)
                kind, prefill, reply, seconds = self._turn(f"s{number}", messages)
                if last is not None:
                    self._drain(last, False)
                last = prefill
                taken.setdefault(kind, []).append(seconds * 1000)
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": "more " * (tokens // 4) + str(at)},
                ]
        return taken

    def _turn(self, session: str, messages: list[dict[str, str]]) -> tuple[str, str, str, float]:
        """The decision's kind, who prefilled, what was said, and the router's time."""
        body = json.dumps({"model": "sim-model", "messages": messages, "max_tokens": 8})
        headers = {"Content-Type": "application/json", "X-Session-ID": session}
        began = clock_gettime(self._clock)
        self._connection.request("POST", "/v1/chat/completions", body=body, headers=headers)
        answer = self._connection.getresponse()
        whole = json.loads(answer.read())
        self._settle()
        seconds = clock_gettime(self._clock) - began
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {whole}")
        return (
            answer.headers["x-homing-decision"],
            answer.headers["x-homing-prefill"],
            whole["choices"][0]["message"]["content"],
            seconds,
        )

    def _drain(self, name: str, on: bool) -> None:
        self._on_loop(lambda: self._router.engine.drain(ReplicaId(name), on))

    def _settle(self) -> None:
        """Until the router has done what it does of a turn after its last byte."""
        self._on_loop(lambda: None)

    def _on_loop(self, act: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=7000, help="of a session's first prompt")
    parser.add_argument("--sessions", type=int, default=20)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `homing serve`
        taken = runner.run(measure(arguments.tokens, arguments.sessions))
    print(f"router {router.__version__}, prompts of {arguments.tokens} tokens and more")
    for kind, times in sorted(taken.items()):
        ordered = sorted(times)
        print(
            f"{kind:<10}{len(times):>4} turns   p50 {statistics.median(times):6.2f} ms"
            f"   p90 {ordered[int(0.9 * len(ordered))]:6.2f} ms of processor time"
        )


if __name__ == "__main__":
    main()
