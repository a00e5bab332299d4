"""Checks that each module has its test: `router/a/b.py` wants `tests/unit/a/test_b.py`.

A module that runs nothing of its own (values, protocols, constants) needs none. What is tested in another
place is listed here, with that place. Exit status 1 and a line a fault where something is amiss.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

TESTED_ELSEWHERE: Mapping[str, str] = {
    # The relay is tested on sockets, where a client, a replica and the bytes between them can be seen.
    "router/dataplane/call.py": "tests/integration/test_pairs.py",
    "router/dataplane/pairs.py": "tests/integration/test_pairs.py",
    "router/dataplane/client.py": "tests/integration/test_relay.py",
    "router/dataplane/departure.py": "tests/integration/test_trouble.py",
    "router/dataplane/exchange.py": "tests/integration/test_trouble.py",
    "router/dataplane/local.py": "tests/integration/test_relay.py",
    "router/dataplane/pool.py": "tests/integration/test_trouble.py",
    "router/dataplane/problems.py": "tests/integration/test_trouble.py",
    "router/dataplane/routing.py": "tests/integration/test_relay.py",
    "router/dataplane/server.py": "tests/integration/test_relay.py",
    "router/dataplane/upstream.py": "tests/integration/test_trouble.py",
    # A replay's parts are seen in the whole.
    "router/simulator/replay/pulls.py": "tests/unit/simulator/replay/test_fleet.py",
    "router/simulator/replay/stage.py": "tests/unit/simulator/replay/test_fleet.py",
    # What a head's lines have in common is seen where heads are read.
    "router/dataplane/header.py": "tests/unit/dataplane/test_head_reader.py",
    "router/dataplane/last_head.py": "tests/unit/dataplane/test_head_reader.py",
    # What imports vLLM or torch is tested in the real engine's environment.
    "router/connector/adapter.py": "tests/engine/inside/test_adapter.py",
    "router/connector/compat.py": "tests/engine/inside/test_compat.py",
    "router/connector/copies.py": "tests/engine/inside/test_copies.py",
    "router/connector/metrics.py": "tests/engine/inside/test_metrics.py",
    # KV agents are tested in pairs, with engines, a gateway and a faulty network between them.
    "router/kv/agent.py": "tests/integration/test_kv_agents.py",
    "router/kv/agent_figures.py": "tests/integration/test_kv_agents.py",
    "router/kv/engines.py": "tests/integration/test_kv_agents.py",
    "router/kv/gateway.py": "tests/integration/test_kv_gateway.py",
    "router/kv/lending.py": "tests/integration/test_kv_gateway.py",
    "router/kv/pulling.py": "tests/integration/test_kv_agents.py",
    "router/kv/pusher.py": "tests/integration/test_kv_gateway.py",
    "router/kv/remote.py": "tests/integration/test_kv_agents.py",
    "router/kv/serving.py": "tests/integration/test_kv_agents.py",
    "router/kv/sources.py": "tests/integration/test_kv_agents.py",
    # Values that do nothing but be values.
    "router/core/observe.py": "tests/unit/base/test_values.py",
    "router/core/request.py": "tests/unit/base/test_values.py",
    # The listener of the admin API is tested through it.
    "router/controlplane/admin_port.py": "tests/unit/controlplane/test_admin.py",
    # Several processes.
    "router/controlplane/crew.py": "tests/integration/test_workers.py",
    "router/serving.py": "tests/integration/test_cli.py",
    "router/supervisor.py": "tests/integration/test_workers.py",
    "router/worker.py": "tests/integration/test_workers.py",
    # Two routers, one after the other.
    "router/controlplane/succession.py": "tests/integration/test_restart.py",
    # Whole routers: wiring by each client library, the demo by the wheel's trial.
    "router/wiring.py": "tests/clients",
    "router/demo.py": "tools/smoke_wheel.sh",
}
"""Module → the file or folder that tests it."""


def faults(tree: Path, elsewhere: Mapping[str, str]) -> Iterator[str]:
    """One line for each module without a test, and for each line of `elsewhere` that is not true."""
    modules = {path.relative_to(tree).as_posix(): path for path in sorted((tree / "router").rglob("*.py"))}
    for name, path in modules.items():
        test = Path("tests/unit", *path.relative_to(tree / "router").parts[:-1], f"test_{path.name}")
        if (tree / test).is_file():
            if name in elsewhere:
                yield f"{name}: has {test.as_posix()}, and is listed as tested elsewhere"
        elif name not in elsewhere and runs_something(path.read_text("utf-8")):
            yield f"{name}: has no {test.as_posix()}"
    for name, place in elsewhere.items():
        if name not in modules:
            yield f"{name}: is listed as tested elsewhere, and there is no such module"
        elif not (tree / place).exists():
            yield f"{name}: is listed as tested by {place}, which is not there"


def runs_something(source: str) -> bool:
    """Whether a module has a function with a body: more than a docstring, `...` or `pass`."""
    return any(
        any(not _says_nothing(statement) for statement in node.body)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _says_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)


if __name__ == "__main__":
    found = list(faults(Path(__file__).parents[1], TESTED_ELSEWHERE))
    for fault in found:
        print(fault)
    sys.exit(1 if found else 0)
