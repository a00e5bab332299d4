"""vLLM's KV events as bytes: what they say of a replica's cache, as far as it is of use. Knows no socket.

Maps with a `type` since vLLM 0.24 or so, arrays that begin with it before; hashes as whole numbers or as 32
bytes, of which the last eight are enough. Only the first KV cache group counts: it holds every block.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from router.base.ids import SessionKey
from router.core.residency import MAX_AT_ONCE, Residency

_Hash = int | bytes
_Hashes = Annotated[list[_Hash], msgspec.Meta(max_length=MAX_AT_ONCE)]
_BlockSize = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Session = Annotated[str, msgspec.Meta(max_length=1024)]


class _Stored(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    block_size: _BlockSize
    group_idx: int | None = None
    session_id: _Session | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: _Hashes
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    token_ids: msgspec.Raw
    block_size: _BlockSize


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: _Hashes


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


class Step(NamedTuple):
    """One event, taken in."""

    blocks: int
    """That it names."""
    placed: bool


def apply(payload: bytes, residency: Residency, cleared: Callable[[], None]) -> Iterator[Step]:
    """Let a residency know what a batch says, an event at each step: whoever goes through them can let others
    have a turn in between.

    `cleared` is called where all blocks are gone. Raises `EventsError`; what came before it holds.
    """
    for event in _events(payload):
        match event:
            case _Stored() if not event.group_idx:
                session = SessionKey(event.session_id) if event.session_id is not None else None
                yield Step(len(event.block_hashes), _store(residency, event, session))
            case _StoredArray():
                yield Step(len(event.block_hashes), _store(residency, event, None))
            case _Removed() if not event.group_idx:
                yield _remove(residency, event)
            case _RemovedArray():
                yield _remove(residency, event)
            case _Cleared() | _ClearedArray():
                residency.clear()
                cleared()
                yield Step(0, True)
            case _:  # of another cache group
                yield Step(0, True)


def _remove(residency: Residency, event: _Removed | _RemovedArray) -> Step:
    residency.removed(map(_number, event.block_hashes))
    return Step(len(event.block_hashes), True)


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
