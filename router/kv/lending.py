"""What a shelf gives to those who dial: blocks on loan, and judgements of blocks on offer."""

from typing import Final, TypeVar

from router.kv import messages as m
from router.kv.arena import Handle
from router.kv.keys import BlockHash, BlockKey, KeyFault, SpaceId, unpack_hashes
from router.kv.serving import Lent
from router.kv.shelf import Shelf
from router.kv.store import Appended, Block, Store, Zone

P = TypeVar("P")

_SUM: Final = 8


def lend_block(shelf: Shelf, block: Block[Handle]) -> Lent:
    """The block's bytes, which stay as they are until they are given back."""
    handle = block.place
    shelf.owner.retain(handle)
    return Lent(head_of(block), shelf.owner.arena.block(handle), lambda: shelf.owner.release(handle))


def head_of(block: Block[P], session: str = "") -> m.BlockHead:
    """What is said of a block's bytes."""
    key = block.key
    return m.BlockHead(
        key.space, key.tenant, key.hash, block.parent, block.checksum, block.zone.value, session
    )


def offer_of(blocks: list[Block[P]]) -> m.OfferBlocks:
    """An offer of blocks of one namespace and tenant."""
    key = blocks[0].key
    return m.OfferBlocks(
        key.space,
        key.tenant,
        b"".join(block.key.hash for block in blocks),
        b"".join(block.parent for block in blocks),
        b"".join(block.checksum.to_bytes(_SUM, "little") for block in blocks),
    )


def wanted_of(store: Store[P], offer: m.OfferBlocks) -> bytes:
    """A byte for each block of an offer: 1 where its bytes are worth sending. Raises `KeyFault`.

    A block whose parent comes before it in the same offer is judged as if the parent were here.
    """
    hashes, parents = list(unpack_hashes(offer.hashes)), list(unpack_hashes(offer.parents))
    if len(parents) != len(hashes) or len(offer.checksums) != _SUM * len(hashes):
        raise KeyFault("an offer of unequal lists")
    judged = bytearray()
    coming: set[BlockHash] = set()
    for at, (hash_, parent) in enumerate(zip(hashes, parents, strict=True)):
        total = int.from_bytes(offer.checksums[at * _SUM : (at + 1) * _SUM], "little")
        outcome = store.offer(BlockKey(SpaceId(offer.space), offer.tenant, hash_), parent, total)
        wanted = outcome is Appended.STORED or (outcome is Appended.ORPHAN and parent in coming)
        if wanted:
            coming.add(hash_)
        judged.append(wanted)
    return bytes(judged)


def chain_of(blocks: list[Block[P]]) -> tuple[list[BlockHash], int]:
    """A session's blocks as they are told: hashes, and how many of the first are system blocks."""
    system = 0
    for block in blocks:
        if block.zone is not Zone.SYSTEM:
            break
        system += 1
    return [block.key.hash for block in blocks], system
