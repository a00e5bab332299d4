"""`homing serve` before real engines, in a process of its own, with what tests and figures ask of it."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.patience import Patience
from support.real_engines import (
    READY_S,
    REQUEST_S,
    SECRET,
    TREE,
    Metrics,
    Replica,
    die_with_parent,
    free_port,
)


class Router:
    """Serves once it is made."""

    def __init__(
        self,
        folder: Path,
        replicas: Sequence[Mapping[str, Any]],
        *,
        policy: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        """`replicas`, `config`: as in a config file. `policy`: as in a policy file; without one, `home`."""
        self.token = secrets.token_hex(16)
        self.port, self.admin_port = free_port(), free_port()
        if policy is not None:
            (folder / "policy.yaml").write_text(json.dumps({"version": 1, "policy": "tried", **policy}))
        path = folder / "router.yaml"
        path.write_text(
            json.dumps(
                {
                    "version": 1,
                    "listen": f"127.0.0.1:{self.port}",
                    "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
                    "policies": ["home" if policy is None else "policy.yaml"],
                    "replicas": list(replicas),
                    **config,
                }
            )
        )
        self.log = folder / "router.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "router.cli", "serve", "-c", str(path)],
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(TREE),
                    "HOMING_ADMIN_TOKEN": self.token,
                    "HOMING_SECRET": SECRET,
                },
                preexec_fn=die_with_parent,
            )
        self.client = httpx.Client(timeout=REQUEST_S)
        patience = Patience(READY_S)
        while not self._is_ready():
            if self.process.poll() is not None or patience.is_over:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.admin("GET", "/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chat_url(self) -> str:
        return f"{self.url}/v1/chat/completions"

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
        return Metrics(self.admin("GET", "/metrics").text).sum(name, **labels)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], session: str, *, tokens: int = 8, **more: Any
    ) -> httpx.Response:
        """One greedy turn. Of one token, its time is the time to first token."""
        body = _body(messages, max_tokens=tokens, **more)
        answer = self.client.post(self.chat_url, json=body, headers={"X-Session-ID": session})
        answer.raise_for_status()
        return answer

    def explain(self, messages: Sequence[Mapping[str, Any]], session: str) -> dict[str, Any]:
        """Where `chat` would go, and why."""
        asked = {"body": _body(messages), "session": session}
        explained: dict[str, Any] = self.admin("POST", "/api/explain", json=asked).raise_for_status().json()
        return explained

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def router_before(
    folder: Path,
    replicas: Mapping[str, Replica],
    *,
    agents: bool = True,
    policy: Mapping[str, Any] | None = None,
) -> Iterator[Router]:
    """A router before these replicas, until the end. `agents`: it knows their KV agents."""
    listed = [
        {"name": name, "url": one.url}
        | ({"kv_agent": f"127.0.0.1:{one.agent.port}"} if agents and one.agent is not None else {})
        for name, one in replicas.items()
    ]
    # An engine whose scheduler and worker are together answers no probe while it computes a step.
    router = Router(folder, listed, policy=policy, probe={"interval": "1s", "timeout": "120s"})
    try:
        yield router
    finally:
        router.stop()


def _body(messages: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **more}
