"""Starts vLLM servers for tests, each in a process group of its own. Run with the engine's Python.

Reads one JSON list of engines from standard input, each `{"arguments": [...], "log": "file",
"environment": {...}}`, prints one JSON line `{"pids": [...]}`, and stays until it is sent SIGTERM, its
standard input is closed, or all engines have ended. vLLM takes longer to import than a small model to load,
so it is imported once and forked. That is safe as long as no thread has been started and no tensor computed.
"""

import importlib
import json
import multiprocessing
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

# What a server imports before it can answer; a module that this version does not have is left out.
AHEAD: Final = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.api_server.routers",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.model_loader.default_loader",
)
FORKING: Final = (
    "vllm.v1.engine.utils",
    "vllm.v1.engine.coordinator",
    "vllm.v1.executor.multiproc_executor",
    "vllm.utils.system_utils",
)
"""Modules that hold a reference to vLLM's choice of a start method. On a processor it is always `spawn`."""


def import_ahead() -> None:
    """Import what every engine imports, and let engines fork their parts."""
    for name in AHEAD:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    fork = multiprocessing.get_context("fork")
    for name in FORKING:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "get_mp_context"):
            module.get_mp_context = lambda: fork


def calm_nixl(delay_us: int) -> None:
    """Let NIXL's progress thread rest between two looks: without, each engine's keeps a whole core busy."""
    api = importlib.import_module("nixl._api")
    module: Any = sys.modules[api.nixl_agent.__module__]
    bound = module.nixlBind

    class Calm:
        """The bindings, but for agents, which are made with the delay."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bound, name)

        def nixlAgent(self, name: str, config: Any) -> Any:
            config.pthrDelay = delay_us
            return bound.nixlAgent(name, config)

    module.nixlBind = Calm()


def become_engine(spec: dict[str, Any]) -> None:
    """In a forked child: serve until stopped. Does not return."""
    status = 1
    try:
        os.setsid()
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(spec.get("environment", {}))
        if delay := os.environ.get("HOMING_NIXL_DELAY_US"):
            calm_nixl(int(delay))
        sys.argv = ["vllm", *spec["arguments"]]
        entry = importlib.import_module("vllm.entrypoints.launchers.api_server.entry")
        entry.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the last frame of this process: whatever it was, it goes to the log
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    specs = json.loads(sys.stdin.readline())
    import_ahead()
    pids = []
    for spec in specs:
        Path(spec["log"]).parent.mkdir(parents=True, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            become_engine(spec)
        pids.append(pid)
    print(json.dumps({"pids": pids}), flush=True)
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    living = set(pids)
    while living and not stopping:
        readable, _, _ = select.select([0], [], [], 0.2)
        if readable and not os.read(0, 4096):
            break
        living -= {pid for pid in living if os.waitpid(pid, os.WNOHANG)[0]}
    end(living)


def end(pids: set[int]) -> None:
    """Ask engines to end, and end those that have not after 10 s, with whatever they started."""
    for number, patience_s in ((signal.SIGINT, 10.0), (signal.SIGKILL, 5.0)):
        for pid in pids:
            try:
                if number == signal.SIGKILL:
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)
            except ProcessLookupError:
                pass
        for _ in range(int(patience_s / 0.1)):
            pids = {pid for pid in pids if not os.waitpid(pid, os.WNOHANG)[0]}
            if not pids:
                return
            select.select([], [], [], 0.1)


if __name__ == "__main__":
    main()
