"""Real vLLM engines that prefill and decode for one another (NixlConnector), one that does all, and a router.

Only for `make engine-test`, as `real_engines`.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.real_engines import READY_S, SECRET, TREE, Plan, Replica, engines, free_port, make_model

PREFILLS = ("p0", "p1")
DECODE = "d0"
SINGLE = "s0"
KEPT_S = 90
"""For how long decode keeps a turn's blocks."""


@dataclass(frozen=True, kw_only=True)
class PairPlan(Plan):
    """An engine of a pair."""

    decodes: bool = False

    def transfer_config(self, folder: Path) -> dict[str, Any]:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_consumer" if self.decodes else "kv_producer",
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "recompute" if self.decodes else "fail",
            "kv_connector_extra_config": {
                "bidirectional_kv_xfer": True,
                "kv_recompute_threshold": 64,
                "decoder_kv_blocks_ttl": KEPT_S,
                "kv_lease_duration": 30,
            },
        }


def _plan(name: str, *, decodes: bool = False) -> PairPlan:
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "HOMING_NIXL_DELAY_US": "1000",
    }
    # Without, `/render` answers 403.
    arguments = ("--enable-scale-out",)
    return PairPlan(name=name, decodes=decodes, environment=environment, arguments=arguments)


class Router:
    """`homing serve` in front of the pairs."""

    def __init__(self, folder: Path, replicas: Mapping[str, Replica]) -> None:
        self.token = secrets.token_hex(16)
        self.port, self.admin_port = free_port(), free_port()
        listed = [
            {"name": name, "url": replicas[name].url, "role": "prefill", "two_way": True} for name in PREFILLS
        ]
        listed.append({"name": DECODE, "url": replicas[DECODE].url, "role": "decode"})
        (folder / "pairs.yaml").write_text(
            json.dumps(
                {
                    "version": 1,
                    "policy": "pairs",
                    "strategy": "priced",
                    "pair": {"ttl": f"{KEPT_S - 30}s", "deadline": "30s"},
                    "price": {"prefill": {"seed_tokens_per_s": 3000}},
                }
            )
        )
        config = folder / "router.yaml"
        config.write_text(
            json.dumps(
                {
                    "version": 1,
                    "listen": f"127.0.0.1:{self.port}",
                    "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
                    "policies": ["pairs.yaml"],
                    "replicas": listed,
                    "probe": {"interval": "1s", "timeout": "10s"},
                }
            )
        )
        self.log = folder / "router.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "router.cli", "serve", "-c", str(config)],
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(TREE),
                    "HOMING_ADMIN_TOKEN": self.token,
                    "HOMING_SECRET": SECRET,
                },
            )
        self.client = httpx.Client(timeout=120)
        until = time.monotonic() + READY_S
        while not self._is_ready():
            if time.monotonic() > until:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.admin("GET", "/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        return self.client.request(method, url, headers=headers, **more)

    def drain(self, name: str, on: bool) -> None:
        self.admin("POST", f"/api/replicas/{name}/drain", json={"on": on}).raise_for_status()

    def end_sessions(self) -> None:
        for session in self.admin("GET", "/api/sessions").json()["sessions"]:
            self.admin("DELETE", f"/api/sessions/{session['key']}")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's lines that have all of these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = self.admin("GET", "/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.partition("{")[0].partition(" ")[0] == name and all(one in line for one in wanted)
        )

    def chat(
        self, messages: list[dict[str, Any]], session: str, *, tokens: int = 8, **more: Any
    ) -> httpx.Response:
        """One greedy turn."""
        body = {
            "model": "tiny",
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 3,
            **more,
        }
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        answer = self.client.post(url, json=body, headers={"X-Session-ID": session})
        answer.raise_for_status()
        return answer

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def pairs(folder: Path) -> Iterator[tuple[dict[str, Replica], Router]]:
    """Two engines that prefill, one that decodes, one that does all by itself; and a router."""
    model = make_model(folder.parent / "model")
    plans = [*map(_plan, PREFILLS), _plan(DECODE, decodes=True), Plan(name=SINGLE, connector=None)]
    with engines(plans, folder, model) as replicas:
        router = Router(folder, replicas)
        try:
            yield replicas, router
        finally:
            router.stop()
