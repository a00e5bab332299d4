"""What a KV block is known by: the namespace it can be used in, its tenant, and a hash of what it holds.

Knows nothing of where blocks lie, and does not compute block hashes: the connector does, or the engine.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, NewType, Self

FORMAT_VERSION: Final = 1
"""Of a block's bytes and of what is said about it. Blocks of another version are never read."""

BlockHash = NewType("BlockHash", bytes)
"""`HASH_BYTES` bytes over all tokens from the prompt's beginning to the block's end, and whatever else
changes its KV (LoRA, images, salt)."""

SpaceId = NewType("SpaceId", bytes)
"""`SPACE_BYTES` bytes: a namespace's digest."""

HASH_BYTES: Final = 32
SPACE_BYTES: Final = 16

ROOT: Final = BlockHash(bytes(HASH_BYTES))
"""The parent of a prompt's first block."""

_TEXT: Final = 256
_NUMBER: Final = 1 << 48


class KeyFault(ValueError):
    """A namespace, tenant or hash that cannot be one. The text names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Everything that must be equal before one engine can use another's KV. Raises `KeyFault`."""

    model: str
    revision: str
    """Of the weights: a commit, or a digest of the files."""
    tokenizer: str
    """A digest of the tokenizer's files."""
    kv_dtype: str
    block_size: int
    """Tokens."""
    block_bytes: int
    """Of all layers and of all ranks in `ranks`."""
    layout: str
    """Order of a block's axes, as in `NHD` or `blocks,heads,tokens,2*dim`."""
    backend: str
    """The attention backend: some pack a block's inside for their kernels."""
    instruction_set: str
    """Of the processor or accelerator that the packing depends on."""
    layers: int
    kv_heads: int
    head_dim: int
    tp_size: int
    pp_size: int
    ranks: str
    """Whose parts a block holds, in order: `0` or `0-3`."""
    hash_algorithm: str
    hash_seed: str
    """Equal seeds give equal hashes. An engine that draws its own says so here, and is refused by name."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int or field.type == "int":
                if type(value) is not int or not 0 < value < _NUMBER:
                    raise KeyFault(f"{field.name}: {value!r} is not a positive whole number")
            elif type(value) is not str or not 0 < len(value) <= _TEXT:
                raise KeyFault(f"{field.name}: {str(value)[:40]!r} is not a text of 1 to {_TEXT} characters")

    @property
    def space(self) -> SpaceId:
        """The digest under which blocks of this namespace are kept."""
        exact = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return SpaceId(hashlib.blake2b(exact.encode(), digest_size=SPACE_BYTES, person=b"homing-kv").digest())

    def as_dict(self) -> dict[str, str | int]:
        """Field → value, as it goes over the wire."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, str | int]) -> Self:
        """Raises `KeyFault` for a field that is missing, unknown or wrong."""
        known = {field.name for field in fields(cls)}
        for name in sorted(known ^ values.keys()):
            raise KeyFault(f"{name[:_TEXT]}: {'missing' if name in known else 'unknown'}")
        return cls(**values)  # type: ignore[arg-type]  # types are checked field by field on the way in

    def differences(self, other: "Namespace") -> tuple[str, ...]:
        """One text for each field that differs, `kv_dtype: bfloat16 here, fp8 there`; none: compatible."""
        ours, theirs = self.as_dict(), other.as_dict()
        return tuple(
            f"{name}: {ours[name]} here, {theirs[name]} there" for name in ours if ours[name] != theirs[name]
        )


def nearest_difference(one: Namespace, others: Sequence[Namespace]) -> tuple[str, ...]:
    """What tells `one` from the most similar of `others`; empty where one of them is the same, or none is
    there."""
    return min((one.differences(other) for other in others), key=len, default=())


class BlockKey(NamedTuple):
    """A block's whole name. Another tenant's block with the same hash is another block."""

    space: SpaceId
    tenant: str
    hash: BlockHash


def pack_hashes(hashes: Sequence[bytes]) -> bytes:
    """Hashes end to end: a message holds one run of bytes, not a list of as many objects."""
    return b"".join(hashes)


def unpack_hashes(packed: bytes) -> Iterator[BlockHash]:
    """What `pack_hashes` packed. Raises `KeyFault` where a piece is left over."""
    if len(packed) % HASH_BYTES:
        raise KeyFault(f"hashes: {len(packed)} bytes are no multiple of {HASH_BYTES}")
    return (BlockHash(packed[at : at + HASH_BYTES]) for at in range(0, len(packed), HASH_BYTES))
