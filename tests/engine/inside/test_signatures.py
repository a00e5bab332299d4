"""What the connector relies on in vLLM is there, called as it expects. A version that differs says where."""

import dataclasses
import inspect

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput

from router.connector import HomingConnector, compat

CALLS = {
    "__init__": ["vllm_config", "role", "kv_cache_config"],
    "bind_gpu_block_pool": ["gpu_block_pool"],
    "build_connector_meta": ["scheduler_output"],
    "build_connector_worker_meta": [],
    "get_block_ids_with_load_errors": [],
    "get_finished": ["finished_req_ids"],
    "get_handshake_metadata": [],
    "get_kv_connector_stats": [],
    "get_num_new_matched_tokens": ["request", "num_computed_tokens"],
    "on_new_request": ["request"],
    "register_kv_caches": ["kv_caches"],
    "request_finished": ["request", "block_ids"],
    "reset_cache": [],
    "save_kv_layer": ["layer_name", "kv_layer", "attn_metadata", "kwargs"],
    "set_xfer_handshake_metadata": ["metadata"],
    "shutdown": [],
    "start_load_kv": ["forward_context", "kwargs"],
    "update_connector_output": ["connector_output"],
    "update_state_after_alloc": ["request", "blocks", "num_external_tokens"],
    "wait_for_layer_load": ["layer_name"],
    "wait_for_save": [],
    "build_kv_connector_stats": ["data"],
    "build_prom_metrics": ["vllm_config", "metric_types", "labelnames", "per_engine_labelvalues"],
}
"""vLLM 0.32: method → parameters."""

FIELDS = {
    SchedulerOutput: {
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
    },
    CachedRequestData: {"req_ids", "resumed_req_ids", "new_block_ids"},
    NewRequestData: {"req_id", "block_ids"},
    KVConnectorOutput: {"finished_recving", "invalid_block_ids", "kv_connector_worker_meta"},
    KVCacheConfig: {"num_blocks", "kv_cache_groups", "kv_cache_layout", "hash_block_size"},
}


def test_this_version_was_tried() -> None:
    assert vllm.__version__.startswith(compat.TESTED), (
        f"vLLM {vllm.__version__} was not tried: run `make engine-test` with it, and add it to compat.TESTED"
    )


def test_methods_take_what_they_took() -> None:
    differing = {}
    for name, expected in CALLS.items():
        method = getattr(base.KVConnectorBase_V1, name, None)
        found = None if method is None else [p for p in inspect.signature(method).parameters if p != "self"]
        if found != expected:
            differing[name] = found
    assert not differing


def test_everything_abstract_is_there() -> None:
    assert not HomingConnector.__abstractmethods__
    assert base.supports_hma(HomingConnector)


def test_what_is_overridden_exists() -> None:
    ours = {
        name for name, value in vars(HomingConnector).items() if callable(value) and not name.startswith("_")
    }
    known = set(dir(base.KVConnectorBase_V1)) | {"request_finished_all_groups"}
    assert ours <= known, f"vLLM calls none of {ours - known}"


def test_values_have_the_fields_that_are_read() -> None:
    missing = {
        kind.__name__: fields - {field.name for field in dataclasses.fields(kind)}
        for kind, fields in FIELDS.items()
    }
    assert not {name: fields for name, fields in missing.items() if fields}
    assert callable(BlockPool.get_num_free_blocks)
    assert {"reset", "aggregate", "reduce", "is_empty"} <= set(dir(KVConnectorStats))
    assert callable(KVConnectorPromMetrics.observe)


def test_transfer_results_are_made_of_what_get_finished_says() -> None:
    # The default asks `get_finished`; a version where it does not would never hear of a load's end.
    assert "get_finished" in inspect.getsource(base.KVConnectorBase_V1.get_transfer_results)
