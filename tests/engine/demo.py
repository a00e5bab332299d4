"""Two real vLLM replicas with the connector, a KV agent beside each, and the router in front of them.

    make engine-demo

An agent's session lives on one replica. That one is drained, as before an upgrade; the router prices the next
turn at the other one as a pull, and gives it a signed hint along. The other fetches the session's KV from the
first one's agent, and goes on nearly as fast as if it had always been there. Prints each turn: where it went,
how long the first token took, and where its KV came from.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import random

import httpx
from support.real_engines import SECRET, TREE, Replica, fleet, free_port, text

TURNS = 6
DRAINED_AFTER = 4


class Router:
    """`homing serve` in front of the replicas."""

    def __init__(self, folder: Path, replicas: dict[str, Replica]) -> None:
        self.token = secrets.token_hex(16)
        self.port, self.admin_port = free_port(), free_port()
        config = folder / "router.yaml"
        config.write_text(
            json.dumps(
                {
                    "version": 1,
                    "listen": f"127.0.0.1:{self.port}",
                    "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
                    "policies": ["home"],
                    "replicas": [
                        {"name": name, "url": one.url, "kv_agent": f"127.0.0.1:{one.agent.port}"}
                        for name, one in replicas.items()
                        if one.agent is not None
                    ],
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
        self.client = httpx.Client(timeout=60)
        self._await_ready()

    def _await_ready(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                if self.admin("GET", "/readyz").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise RuntimeError(self.log.read_text())

    def admin(self, method: str, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.client.request(method, f"http://127.0.0.1:{self.admin_port}{path}", headers=headers)

    def turn(self, messages: list[dict[str, Any]]) -> tuple[httpx.Response, float]:
        """One turn of the session, of one token: its time is the time to first token."""
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0}
        began = time.perf_counter()
        answer = self.client.post(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json=body,
            headers={"X-Session-ID": "demo"},
        )
        answer.raise_for_status()
        return answer, time.perf_counter() - began

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)


def main() -> None:
    chance = random.Random(3)
    print("starting two vLLM engines, two KV agents and the router ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="homing-") as outer:
        folder = Path(outer) / "demo"
        folder.mkdir()
        with fleet(folder, "ab", connector={"deadline_share": 0.5}) as replicas:
            router = Router(folder, replicas)
            try:
                show(router, replicas, chance)
            finally:
                router.stop()


def show(router: Router, replicas: dict[str, Replica], chance: random.Random) -> None:
    messages = [
        {"role": "system", "content": text(chance, 1500)},
        {"role": "user", "content": text(chance, 5000)},
    ]
    print("turn  replica decision   first token  prompt  cached  pulled")
    for number in range(1, TURNS + 1):
        before = {name: one.metrics().loaded_tokens() for name, one in replicas.items()}
        answer, seconds = router.turn(messages)
        name = answer.headers["x-homing-replica"]
        usage = answer.json()["usage"]
        pulled = replicas[name].metrics().loaded_tokens() - before[name]
        print(
            f"{number:>4}  {name:<8}{answer.headers['x-homing-decision']:<10}{seconds * 1000:>9.0f} ms"
            f"{usage['prompt_tokens']:>8}{usage['prompt_tokens_details']['cached_tokens']:>8}{pulled:>8.0f}",
            flush=True,
        )
        messages += [
            {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"] or ""},
            {"role": "user", "content": text(chance, 200)},
        ]
        if number == DRAINED_AFTER:
            router.admin("POST", f"/api/replicas/{name}/drain").raise_for_status()
            print(f"      {name} is drained: the session must go elsewhere")


if __name__ == "__main__":
    main()
