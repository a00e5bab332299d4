"""The connector inside an engine: it needs vLLM, torch and little else, and brings nothing heavy along."""

import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[3]

STAND_INS = """
import importlib.abc, sys, types

REFUSED = {"aiohttp", "pydantic", "orjson", "yaml", "opentelemetry", "httpx", "uvloop", "httptools",
           "uhashring", "xxhash"}

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ImportError(f"{name} was asked for")

sys.meta_path.insert(0, Refusing())

class Module(types.ModuleType):
    __path__ = []

def module(name, **values):
    made = sys.modules[name] = Module(name)
    made.__dict__.update(values)

class Base:
    def __init__(self, vllm_config, role, kv_cache_config):
        self.metadata = None

class Tensor: ...
class Device: ...

module("torch", Tensor=Tensor, device=Device)
v1 = "vllm.distributed.kv_transfer.kv_connector.v1"
module("vllm", __version__="0.32.0")
for name in ("vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector"):
    module(name)
names = ("KVConnectorBase_V1", "KVConnectorMetadata", "KVConnectorRole", "KVConnectorHandshakeMetadata",
         "KVConnectorWorkerMetadata", "SupportsHMA")
base = {name: type(name, (), {}) for name in names}
base["KVConnectorBase_V1"] = Base
base["KVConnectorRole"].SCHEDULER, base["KVConnectorRole"].WORKER = 0, 1
metrics = {name: type(name, (), {}) for name in ("KVConnectorStats", "KVConnectorPromMetrics")}
module(v1)
module(v1 + ".base", **base)
module(v1 + ".metrics", **metrics)
sys.modules[v1].base, sys.modules[v1].metrics = sys.modules[v1 + ".base"], sys.modules[v1 + ".metrics"]
"""


def fresh(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(TREE)},
    )


def test_the_connector_is_imported_without_anything_heavy() -> None:
    done = fresh(
        STAND_INS
        + """
from router.connector import HomingConnector
assert issubclass(HomingConnector, Base)
assert not REFUSED & {name.partition(".")[0] for name in sys.modules}
ours = {name for name in sys.modules if name.startswith("router.")}
assert all(name.startswith(("router.connector", "router.kv", "router.base")) for name in ours), ours
assert "asyncio" not in sys.modules, "an event loop in the engine's process"
"""
    )
    assert done.returncode == 0, done.stderr


def test_the_refusing_finder_refuses() -> None:
    done = fresh(STAND_INS + "import aiohttp")
    assert "aiohttp was asked for" in done.stderr


def test_the_pure_parts_need_no_vllm() -> None:
    done = fresh(
        """
import sys
import router.connector, router.connector.scheduler_side, router.connector.worker_side
assert not {"vllm", "torch", "asyncio"} & set(sys.modules)
try:
    router.connector.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
"""
    )
    assert done.returncode == 0, done.stderr
