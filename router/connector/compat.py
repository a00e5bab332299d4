"""All that the connector knows of vLLM: the one module that imports it, and the one to change for a version.

Run with vLLM 0.32.0. What later or earlier versions may lack is asked for with `getattr`; what they must have
is held by a signature test that runs wherever vLLM can be imported.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base as _base
from vllm.distributed.kv_transfer.kv_connector.v1 import metrics as _metrics

from router.kv.keys import HASH_BYTES, BlockHash, Namespace

TESTED: Final = ("0.32",)
"""The versions of vLLM, by their first two numbers, that the connector was run with."""

Connector: Any = _base.KVConnectorBase_V1
ConnectorMetadata: Any = _base.KVConnectorMetadata
ConnectorRole: Any = _base.KVConnectorRole
HandshakeMetadata: Any = getattr(_base, "KVConnectorHandshakeMetadata", object)
WorkerMetadata: Any = getattr(_base, "KVConnectorWorkerMetadata", object)
HybridCaches: Any = getattr(_base, "SupportsHMA", object)
ConnectorStats: Any = _metrics.KVConnectorStats
PromMetrics: Any = getattr(_metrics, "KVConnectorPromMetrics", object)

logger: Final = logging.getLogger("vllm.homing")
"""Below vLLM's own logger, so that its settings hold."""


def version() -> str:
    """vLLM's first two numbers, `0.32`."""
    return ".".join(str(vllm.__version__).split(".")[:2])


# What a request says.


class Hashes(Sequence[BlockHash]):
    """The engine's own chain of hashes, one for each block that is full of known tokens, as it grows.

    It covers the tokens, LoRA, images, prompt embeddings and the salt, by construction.
    """

    __slots__ = ("_hashes", "_step")

    def __init__(self, request: Any, block_size: int, hash_block_size: int) -> None:
        self._hashes = request.block_hashes
        self._step = block_size // hash_block_size

    def __len__(self) -> int:
        return len(self._hashes) // self._step

    @overload
    def __getitem__(self, at: int) -> BlockHash: ...
    @overload
    def __getitem__(self, at: slice) -> list[BlockHash]: ...
    def __getitem__(self, at: int | slice) -> BlockHash | list[BlockHash]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        # Each hash covers all tokens before it, so that a block is known by its last.
        return BlockHash(bytes(self._hashes[(at + 1) * self._step - 1]).ljust(HASH_BYTES, b"\0"))


def tenant_of(request: Any) -> str:
    """The label that keeps caches apart: the engine keeps its own apart by the same."""
    return getattr(request, "cache_salt", None) or ""


def hint_of(request: Any) -> dict[str, Any] | None:
    """What the router, or whoever sent the request, put into `kv_transfer_params.homing`."""
    params = getattr(request, "kv_transfer_params", None)
    hint = params.get("homing") if isinstance(params, Mapping) else None
    return dict(hint) if isinstance(hint, Mapping) else None


def session_of(request: Any) -> str:
    """The session's name as the engine has it, or `""`."""
    return getattr(request, "session_id", None) or ""


def reads_cache(request: Any) -> bool:
    """Whether the request may start from cached blocks: not if it wants its prompt's log-probabilities."""
    return not getattr(request, "skip_reading_prefix_cache", False)


# What a step does.


class Change(NamedTuple):
    """A request's blocks changed."""

    request: str
    block_ids: Sequence[int]
    anew: bool
    """They are all of its blocks, not more of them."""


def changes(output: Any) -> Iterator[Change]:
    """What this step's schedule changed of each request's blocks."""
    for new in output.scheduled_new_reqs:
        yield Change(new.req_id, new.block_ids[0], anew=True)
    cached = output.scheduled_cached_reqs
    resumed = getattr(cached, "resumed_req_ids", ())
    for request, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
        if block_ids is not None:
            yield Change(request, block_ids[0], anew=request in resumed)


def computed_after(output: Any, request: Any, scheduled: int) -> int:
    """Tokens whose KV is certain once this step has run: drafts may be rejected."""
    drafts = output.scheduled_spec_decode_tokens.get(request.request_id, ())
    return int(request.num_computed_tokens) + scheduled - len(drafts)


def free_blocks(pool: Any) -> int | None:
    """Blocks that are free or hold only cached KV that can be evicted; `None`: this version does not say."""
    count = getattr(pool, "get_num_free_blocks", None)
    return None if count is None else int(count())


# What the engine is.


class Unsuitable(Exception):
    """This engine's KV cannot be shared. The text says why; the connector stays out of the way."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An engine's KV cache as both sides see it."""

    block_size: int
    """Tokens."""
    hash_block_size: int
    ranks: int
    tokens_a_step: int


def shape_of(config: Any, kv_cache_config: Any) -> Shape:
    """Raises `Unsuitable`."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Unsuitable(f"the model has {len(groups)} kinds of KV cache, and only one is supported")
    spec = groups[0].kv_cache_spec
    if getattr(spec, "sliding_window", None) or type(spec).__name__.startswith(("Mamba", "Chunked")):
        raise Unsuitable(f"{type(spec).__name__} keeps no whole prefix")
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise Unsuitable(f"{name} is {getattr(parallel, name)}, and only 1 is supported")
    if not config.cache_config.enable_prefix_caching:
        raise Unsuitable("prefix caching is off")
    block_size = int(spec.block_size)
    hash_block_size = int(getattr(kv_cache_config, "hash_block_size", None) or block_size)
    if block_size % hash_block_size:
        raise Unsuitable(f"blocks of {block_size} tokens are no multiple of hashes of {hash_block_size}")
    return Shape(
        block_size,
        hash_block_size,
        int(parallel.tensor_parallel_size),
        int(getattr(config.scheduler_config, "max_num_batched_tokens", 8192)),
    )


def rank_of(config: Any) -> int:
    """This worker's place among those that share a block."""
    parallel = config.parallel_config
    return int(parallel.rank) % int(parallel.tensor_parallel_size)


def engine_name(config: Any, name: str) -> str:
    """The engine's name at its agent: data-parallel engines of one server are several."""
    rank = int(getattr(config.parallel_config, "data_parallel_rank", 0) or 0)
    return f"{name}.{rank}" if rank else name


def recomputes(config: Any) -> bool:
    """Whether a load that falls short is computed, not answered with an error."""
    policy = getattr(config.kv_transfer_config, "kv_load_failure_policy", "recompute")
    return bool(policy == "recompute")


def extra_config(config: Any) -> Mapping[str, Any]:
    """What the operator tells this connector."""
    return config.kv_transfer_config.kv_connector_extra_config or {}


@dataclass(frozen=True, slots=True)
class CacheFacts(HandshakeMetadata):  # type: ignore[misc]  # without vLLM's stubs a base is Any
    """What only a worker knows of its KV cache; each tells the scheduler's side."""

    part_bytes: int
    layout: str
    backend: str
    instruction_set: str
    layers: int


def cache_facts(config: Any, kv_cache_config: Any, layers: Mapping[str, torch.Tensor]) -> CacheFacts:
    """Of this worker's registered caches, one a layer, the engine's blocks along the first axis."""
    tensors = distinct(layers.values())
    first = tensors[0]
    shapes = sorted({str(tuple(tensor.shape[1:])) for tensor in tensors})
    order = getattr(kv_cache_config, "kv_cache_layout", None) or "blocks"
    return CacheFacts(
        part_bytes=sum(tensor[0].numel() * tensor.element_size() for tensor in tensors),
        layout=f"{order} {' '.join(shapes)}"[:256],
        backend=_backend(config, layers),
        instruction_set=_instruction_set(first.device),
        layers=len(tensors),
    )


def distinct(tensors: Any) -> list[torch.Tensor]:
    """The caches without those that are another's: layers may share one."""
    seen: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        seen.setdefault(tensor.data_ptr(), tensor)
    return list(seen.values())


class Digests(NamedTuple):
    """Of the files that an engine was started with."""

    weights: str
    tokenizer: str


def digests(config: Any) -> Digests:
    """Reads files: once, when the engine starts."""
    model = config.model_config
    weights = _folder_of(str(model.model), getattr(model, "revision", None))
    tokenizer = _folder_of(str(model.tokenizer), getattr(model, "tokenizer_revision", None))
    return Digests(
        _weights_digest(weights, model),
        _files_digest(tokenizer, ("tokenizer*", "vocab*", "merges*", "*.tiktoken", "tekken*")),
    )


def namespace(config: Any, kv_cache_config: Any, shape: Shape, facts: CacheFacts, read: Digests) -> Namespace:
    """What must be equal before another engine's KV can be used. Only once the engine has drawn its hash
    seed: when it takes its first request.
    """
    model = config.model_config
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    cache_dtype = str(config.cache_config.cache_dtype)
    return Namespace(
        model=str(getattr(model, "served_model_name", None) or model.model)[:256],
        revision=read.weights,
        tokenizer=read.tokenizer,
        kv_dtype=str(model.dtype) if cache_dtype == "auto" else cache_dtype,
        block_size=shape.block_size,
        block_bytes=facts.part_bytes * shape.ranks,
        layout=facts.layout,
        backend=facts.backend,
        instruction_set=facts.instruction_set,
        layers=facts.layers,
        kv_heads=max(1, int(getattr(spec, "num_kv_heads", 1))),
        head_dim=max(1, int(getattr(spec, "head_size", 1))),
        tp_size=shape.ranks,
        pp_size=1,
        ranks="0" if shape.ranks == 1 else f"0-{shape.ranks - 1}",
        # What goes into a hash, and how, is vLLM's own and changes with its versions.
        hash_algorithm=f"{config.cache_config.prefix_caching_hash_algo} of vLLM {version()}",
        hash_seed=_hash_seed(),
    )


def _hash_seed() -> str:
    """The root of the engine's hash chain. Older versions draw it anew in each process, unless PYTHONHASHSEED
    is set: then agents refuse each other by this field, and nobody wonders why every pull misses."""
    from vllm.v1.core import kv_cache_utils

    root = getattr(kv_cache_utils, "NONE_HASH", None)
    return hashlib.blake2b(repr(root).encode(), digest_size=16).hexdigest()


def _backend(config: Any, layers: Mapping[str, torch.Tensor]) -> str:
    modules = getattr(config.compilation_config, "static_forward_context", {})
    names = {
        str(backend.get_name())
        for layer in layers
        if (backend := getattr(modules.get(layer), "attn_backend", None)) is not None
    }
    return "+".join(sorted(names)) or "unknown"


def _instruction_set(device: torch.device) -> str:
    if device.type == "cuda":
        return "sm" + "".join(map(str, torch.cuda.get_device_capability(device)))
    if device.type != "cpu":
        return str(device.type)
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return str(torch.backends.cpu.get_cpu_capability()) + ("+amx" if amx is not None and amx() else "")


def _folder_of(name: str, revision: str | None) -> Path | str:
    """Where a model's or a tokenizer's files lie, or what it is called where that cannot be told."""
    if (folder := Path(name)).is_dir():
        return folder
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except Exception:  # noqa: BLE001 - another library's, and only a better name is lost
        found = None
    return Path(found).parent if isinstance(found, str) else f"{name}@{revision or 'default'}"


_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 1 << 16


def _weights_digest(where: Path | str, model: Any) -> str:
    """Of the configuration as this engine uses it, and of samples of the weights: reading all of them takes
    minutes, and weights that were trained on differ nearly everywhere."""
    digest = hashlib.blake2b(digest_size=16)
    to_dict = getattr(getattr(model, "hf_config", None), "to_dict", dict)
    described: dict[str, Any] = to_dict()
    # Where a copy of the model lies does not change what it computes.
    described = {
        key: value for key, value in described.items() if key not in ("_name_or_path", "name_or_path")
    }
    said = [described, str(model.dtype), str(getattr(model, "quantization", None))]
    digest.update(json.dumps(said, sort_keys=True, default=str).encode())
    digest.update(_files_digest(where, ("*.safetensors", "*.bin", "*.pt", "*.gguf")).encode())
    return digest.hexdigest()


def _files_digest(where: Path | str, patterns: Sequence[str]) -> str:
    if isinstance(where, str):
        return where[:256]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted({path for pattern in patterns for path in where.glob(pattern)}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(file.read())
                continue
            for at in range(_SAMPLES):
                file.seek(at * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
