"""The parameters with which vLLM's replicas hand KV on to each other: read, held to be sound, trimmed.

vLLM checks nothing of them: what does not add up ends an engine, and what does not fit the prompt brings
wrong blocks. So nothing is passed on here that is not as it is known. Knows no connections and no sessions.
"""

from typing import Final, NamedTuple

import msgspec

from router.core.token_ids import TokenIds
from router.dataplane.abridged import Abridged, abridged
from router.dataplane.schemas import TransferParams
from router.dataplane.splice import Edit, edited, members

PREFILL: Final = b'{"do_remote_decode":true}'
"""What a prefill replica is sent that has nothing to fetch."""

_PARAMS: Final = msgspec.json.Decoder(TransferParams)


class Offer(NamedTuple):
    """What a decode replica holds of a turn."""

    raw: bytes
    tokens: int
    blocks: int
    """In each group."""


class _Params(NamedTuple):
    """Parameters as they were read."""

    brief: Abridged
    known: TransferParams
    groups: list[TokenIds]
    """The ids of the blocks, by kind of layers."""


def is_handed(raw: bytes) -> bool:
    """Whether these are a prefill replica's, for a decode replica to fetch by."""
    params = _read(raw)
    return params is not None and params.known.do_remote_prefill is True and bool(params.groups)


def offer_of(raw: bytes, block_tokens: int) -> Offer | None:
    """A decode replica's parameters; `None` where they are not as known, or their blocks do not add up: one
    group for each kind of layers, each with a block for every `block_tokens` tokens."""
    params = _read(raw)
    if params is None or params.known.do_remote_decode is not True or not params.groups:
        return None
    tokens = params.known.remote_num_tokens
    if tokens is None or tokens < 1:
        return None
    blocks = -(-tokens // block_tokens)
    for group in params.groups:
        if len(group) != blocks:
            return None
    return Offer(raw, tokens, blocks)


def trimmed(raw: bytes, tokens: int, block_tokens: int) -> bytes:
    """An offer as if it were of its first `tokens` only, a whole number of blocks; all else as it was. 0
    lets go of it without fetching."""
    params = _read(raw)
    assert params is not None
    blocks = tokens // block_tokens
    # To let go of blocks, all are named, and none is fetched.
    named = b",".join([(group.first(blocks) if tokens else group).told for group in params.groups])
    text = params.brief.text
    edits: list[Edit] = []
    for one in members(text):
        if one.key == "remote_block_ids":
            edits.append((one.value, one.end, b"[%b]" % named))
        elif one.key == "remote_num_tokens":
            edits.append((one.value, one.end, b"%d" % tokens))
    return b"".join(edited(text, edits))


def _read(raw: bytes) -> _Params | None:
    """The parameters; `None` where they are not as known. Blocks are told by lists of numbers as tokens are,
    hundreds of them, and none is made a number here either."""
    brief = abridged(raw)
    try:
        known = _PARAMS.decode(brief.text)
    except (msgspec.DecodeError, RecursionError):
        return None
    groups: list[TokenIds] = []
    for listed in known.remote_block_ids or ():
        group = TokenIds.read(brief.restored(bytes(listed)))
        if group is None:
            return None
        groups.append(group)
    return _Params(brief, known, groups)
