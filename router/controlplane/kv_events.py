"""vLLM's KV events as bytes: what they say of a replica's cache, as far as it is of use. Knows no socket.

Maps with a `type` since vLLM 0.24 or so, arrays that begin with it before; hashes as whole numbers or as 32
bytes, of which the last eight are enough. Only the first KV cache group counts: it holds every block.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from router.base.ids import SessionKey
from router.core.residency import Residency

_Hash = int | bytes


class _Stored(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    block_size: int
    group_idx: int | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[_Hash]
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: msgspec.Raw
    block_size: int


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[_Hash]


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]


_BATCH: Final = msgspec.msgpack.Decoder(_Batch)
_MAP: Final = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared)
_ARRAY: Final = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_KIND: Final = msgspec.msgpack.Decoder(dict[str, Any] | list[Any])


class EventsError(Exception):
    """A batch that cannot be understood."""


def apply(payload: bytes, residency: Residency, cleared: Callable[[], None]) -> int:
    """Let a residency know what a batch says; returns how many of its events could not be placed.

    `cleared` is called where all blocks are gone. Raises `EventsError`; what came before it holds.
    """
    lost = 0
    for event in _events(payload):
        match event:
            case _Stored():
                if not event.group_idx:
                    session = SessionKey(event.session_id) if event.session_id is not None else None
                    lost += not _store(residency, event, session)
            case _StoredArray():
                lost += not _store(residency, event, None)
            case _Removed():
                if not event.group_idx:
                    residency.removed(map(_number, event.block_hashes))
            case _RemovedArray():
                residency.removed(map(_number, event.block_hashes))
            case _:
                residency.clear()
                cleared()
    return lost


def _store(residency: Residency, event: _Stored | _StoredArray, session: SessionKey | None) -> bool:
    parent = event.parent_block_hash
    return residency.stored(
        [_number(hash_) for hash_ in event.block_hashes],
        _number(parent) if parent is not None else None,
        event.block_size,
        session,
    )


def _events(payload: bytes) -> Iterator[Any]:
    try:
        for raw in _BATCH.decode(payload).events:
            first = bytes(raw)[:1]
            decoder = _ARRAY if first and (0x90 <= first[0] <= 0x9F or first[0] in (0xDC, 0xDD)) else _MAP
            try:
                yield decoder.decode(raw)
            except msgspec.ValidationError:
                # A kind of event that a later version has added says nothing that would be missed.
                if _is_known(raw):
                    raise
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventsError(f"a batch of KV events cannot be read: {error}") from error


def _is_known(raw: msgspec.Raw) -> bool:
    event = _KIND.decode(raw)
    kind = event.get("type") if isinstance(event, dict) else event[0] if event else None
    return kind in ("BlockStored", "BlockRemoved", "AllBlocksCleared") or not isinstance(kind, str)


def _number(hash_: _Hash) -> int:
    return hash_ if isinstance(hash_, int) else int.from_bytes(hash_[-8:], "big")
