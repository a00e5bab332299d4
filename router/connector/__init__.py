"""The vLLM connector: pulls KV that lies elsewhere and offers what was computed, through the KV agent.

    --kv-transfer-config '{"kv_connector": "HomingConnector", "kv_connector_module_path": "router.connector",
                           "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

vLLM is imported when `HomingConnector` is asked for, so that the pure parts can be used without it.
"""

from typing import Any

from router.connector.origin import require_own_package

require_own_package(__name__, __path__)

__all__ = ["HomingConnector"]


def __getattr__(name: str) -> Any:
    if name == "HomingConnector":
        from router.connector.adapter import HomingConnector

        return HomingConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
