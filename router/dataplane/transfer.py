"""The parameters with which vLLM's replicas hand KV on to each other: read, held to be sound, trimmed.

vLLM checks nothing of them: what does not add up ends an engine, and what does not fit the prompt brings
wrong blocks. So nothing is passed on here that is not as it is known. Knows no connections and no sessions.
"""

from typing import Final, NamedTuple

import msgspec

from router.dataplane.schemas import TransferParams
from router.dataplane.splice import edited, members

PREFILL: Final = b'{"do_remote_decode":true}'
"""What a prefill replica is sent that has nothing to fetch."""

_PARAMS: Final = msgspec.json.Decoder(TransferParams)


class Offer(NamedTuple):
    """What a decode replica holds of a turn."""

    raw: bytes
    tokens: int
    blocks: int
    """In each group."""


def is_handed(raw: bytes) -> bool:
    """Whether these are a prefill replica's, for a decode replica to fetch by."""
    params = _read(raw)
    return params is not None and params.do_remote_prefill is True and bool(params.remote_block_ids)


def offer_of(raw: bytes, block_tokens: int) -> Offer | None:
    """A decode replica's parameters; `None` where they are not as known, or their blocks do not add up: one
    group for each kind of layers, each with a block for every `block_tokens` tokens."""
    params = _read(raw)
    if params is None or params.do_remote_decode is not True or not params.remote_block_ids:
        return None
    tokens = params.remote_num_tokens
    if tokens is None or tokens < 1:
        return None
    blocks = -(-tokens // block_tokens)
    if any(len(group) != blocks for group in params.remote_block_ids):
        return None
    return Offer(raw, tokens, blocks)


def trimmed(raw: bytes, tokens: int, block_tokens: int) -> bytes:
    """An offer as if it were of its first `tokens` only, a whole number of blocks; all else as it was. 0
    lets go of it without fetching."""
    params = _read(raw)
    assert params is not None
    assert params.remote_block_ids is not None
    blocks = tokens // block_tokens
    # To let go of blocks, all are named, and none is fetched.
    groups = [group[:blocks] if tokens else group for group in params.remote_block_ids]
    instead = {
        "remote_block_ids": msgspec.json.encode(groups),
        "remote_num_tokens": b"%d" % tokens,
    }
    edits = [(one.value, one.end, instead[one.key]) for one in members(raw) if one.key in instead]
    return b"".join(edited(raw, edits))


def _read(raw: bytes) -> TransferParams | None:
    try:
        return _PARAMS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
