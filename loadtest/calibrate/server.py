"""A real vLLM server on this machine's processor, and requests to it whose first tokens are timed."""

import asyncio
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from loadtest.calibrate.errors import CalibrateError
from loadtest.calibrate.script import Limits

_TREE: Final = Path(__file__).parents[2]
_READY_S: Final = 120.0
_STOP_S: Final = 40.0


class Answer(NamedTuple):
    """When it came, and what of the prompt was cached."""

    sent_s: float
    """On the clock of `time.perf_counter`."""
    ttft_s: float
    total_s: float
    cached_tokens: int


class Counters(NamedTuple):
    """Of the engine's `/metrics`."""

    queries: int
    hits: int
    preemptions: int


class Server:
    """A running engine."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Send a prompt of token ids and read its answer of so many tokens as it comes."""
        body = {
            "model": "tiny",
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        content = json.dumps(body)
        headers = {"Content-Type": "application/json"}
        # Read after the end: a client that is busy sees tokens late.
        pieces: list[tuple[float, bytes]] = []
        sent = time.perf_counter()
        async with self._client.stream(
            "POST", "/v1/completions", content=content, headers=headers
        ) as response:
            async for piece in response.aiter_raw():
                pieces.append((time.perf_counter(), piece))
        said = b"".join(piece for _, piece in pieces)
        if response.status_code != 200:
            raise CalibrateError(f"the engine answered {response.status_code}: {said!r}")
        last = max(at for at, piece in pieces if b'"text"' in piece)
        return Answer(sent, pieces[0][0] - sent, last - sent, _cached_tokens(said))

    async def counters(self) -> Counters:
        text = (await self._client.get("/metrics")).text

        def value(name: str) -> float:
            return sum(float(found) for found in re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", text, re.M))

        return Counters(
            int(value("prefix_cache_queries_total")),
            int(value("prefix_cache_hits_total")),
            int(value("num_preemptions_total")),
        )

    async def version(self) -> str:
        said: str = (await self._client.get("/version")).json()["version"]
        return said

    async def is_well(self) -> bool:
        try:
            return (await self._client.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False


def _cached_tokens(stream: bytes) -> int:
    for line in stream.splitlines():
        if line.startswith(b"data: {") and (usage := json.loads(line[len("data: ") :]).get("usage")):
            return (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    raise CalibrateError("an answer without usage")


@asynccontextmanager
async def server(python: Path, model: Path, limits: Limits) -> AsyncIterator[Server]:
    """Start an engine, and stop it at the end. Scheduler and worker have a process of their own, as by
    default, so that the API server does not slow the steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="homing-engine-") as folder:
        log = Path(folder) / "engine.log"
        spec = {
            "arguments": [
                *("--model", str(model), "--served-model-name", "tiny"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--dtype", "float32", "--enforce-eager", "--max-model-len", "16384"),
                *("--block-size", str(limits.block_size)),
                *("--num-gpu-blocks-override", str(limits.blocks)),
                *("--max-num-batched-tokens", str(limits.batch_tokens)),
                *("--max-num-seqs", str(limits.max_num_seqs)),
                *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
            ],
            "log": str(log),
        }
        starter = subprocess.Popen(  # noqa: ASYNC220 - nothing else waits for this loop yet
            [python, _TREE / "tools" / "engine" / "start.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_PLUGINS": "",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
            },
        )
        if starter.stdin is None:
            raise CalibrateError("the engine's starter has no standard input")
        try:
            starter.stdin.write(json.dumps([spec]).encode() + b"\n")
            starter.stdin.flush()
            # vLLM's server closes idle connections after 5 s; one of ours is never as old.
            limits_ = httpx.Limits(max_keepalive_connections=64, keepalive_expiry=2.0)
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=120.0, limits=limits_
            ) as client:
                engine = Server(client)
                until = time.monotonic() + _READY_S
                while not await engine.is_well():
                    if starter.poll() is not None or time.monotonic() > until:
                        said = log.read_text(errors="replace")[-3000:] if log.exists() else "no log"
                        raise CalibrateError(f"the engine does not start:\n{said}")
                    await asyncio.sleep(0.3)
                yield engine
        finally:
            starter.stdin.close()
            starter.wait(_STOP_S)
