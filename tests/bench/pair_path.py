"""What a paired turn costs the router itself: `python tests/bench/pair_path.py`. Prints, asserts nothing.

Two simulated prefill replicas and a decode replica in processes of their own; in this one, a whole router and
a client that only writes and reads bytes. Sessions grow over three turns and change their prefill replica
with each, so that every turn after the first renders, compares tokens and fetches back. Shown is this
process's own processor time a turn, the client's included: what replicas take to render, compute and transfer
is theirs.

    python tests/bench/pair_path.py [--tokens 7000] [--sessions 20]
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from time import process_time

import yaml

import router
from router.base.ids import ReplicaId
from router.settings.compare import Settings
from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.wiring import Router

TURNS = 3
PREFILLS = ("p0", "p1")


async def replica(stack: AsyncExitStack, name: str) -> str:
    """Start a simulated replica; its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "engine", "--port", "0", "--name", name),
        *("--prefill-tps", "200000", "--decode-tps", "2000"),
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
            }
        )
    )
    loaded = load_config(path)
    return Settings(
        loaded, load_secrets(loaded, {"HOMING_SECRET": "a-secret-of-the-bench-0123456789abcdef"}), {}
    )


async def ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], session: str, body: bytes
) -> tuple[bytes, bytes]:
    """One request on a connection; head and body of the answer."""
    reader, writer = streams
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"x-session-id: %b\r\ncontent-length: %d\r\n\r\n" % (session.encode(), len(body))
    )
    writer.write(body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


async def measure(tokens: int, sessions: int) -> dict[str, list[float]]:
    """Milliseconds of each turn, by the kind of its decision."""
    taken: dict[str, list[float]] = {}
    chance = Random(1)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {name: await replica(stack, name) for name in (*PREFILLS, "d0")}
        settings = load(folder, urls)
        made = Router(settings.loaded, settings.secrets, rng=Random(1), environ={})
        stack.push_async_callback(made.close)
        await made.start()
        streams = await asyncio.open_connection("127.0.0.1", made.dataplane.port, limit=1 << 24)
        stack.callback(streams[1].close)
        for number in range(sessions):
            words = "".join(chance.choice(("abc ", "def ", "ghi ", "jkl ")) for _ in range(tokens))
            messages = [{"role": "user", "content": f"{number} {words}"}]
            last = None
            for at in range(TURNS):
                body = json.dumps({"model": "sim-model", "messages": messages, "max_tokens": 8}).encode()
                if last is not None:
                    made.engine.drain(ReplicaId(last), True)
                gc.collect()
                began = process_time()
                head, answer = await ask(streams, f"s{number}", body)
                spent = process_time() - began
                if last is not None:
                    made.engine.drain(ReplicaId(last), False)
                fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n") if b": " in line)
                last = fields[b"x-homing-prefill"].decode()
                taken.setdefault(fields[b"x-homing-decision"].decode(), []).append(spent * 1000)
                whole = json.loads(answer)
                if "choices" not in whole:
                    raise SystemExit(answer.decode())
                reply = whole["choices"][0]["message"]["content"]
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": "more " * (tokens // 4) + str(at)},
                ]
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=7000, help="of a session's first prompt")
    parser.add_argument("--sessions", type=int, default=20)
    arguments = parser.parse_args()
    taken = asyncio.run(measure(arguments.tokens, arguments.sessions))
    print(f"router {router.__version__}, prompts of {arguments.tokens} tokens and more")
    for kind, times in sorted(taken.items()):
        ordered = sorted(times)
        print(
            f"{kind:<10}{len(times):>4} turns   p50 {statistics.median(times):6.2f} ms"
            f"   p90 {ordered[int(0.9 * len(ordered))]:6.2f} ms of processor time"
        )


if __name__ == "__main__":
    main()
