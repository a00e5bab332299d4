"""A namespace, block hashes and secrets for tests of the KV layer."""

import hashlib

from router.kv.keys import ROOT, BlockHash, Namespace

NAMESPACE = Namespace(
    model="tiny",
    revision="1",
    tokenizer="abc",
    kv_dtype="float32",
    block_size=16,
    block_bytes=4096,
    layout="heads,tokens,2*dim",
    backend="cpu",
    instruction_set="avx2",
    layers=2,
    kv_heads=2,
    head_dim=8,
    tp_size=1,
    pp_size=1,
    ranks="0",
    hash_algorithm="sha256",
    hash_seed="0",
)

SECRET = b"the fleet's secret, 32 bytes long"


def chain(name: str, count: int, *, after: BlockHash = ROOT) -> list[BlockHash]:
    """Hashes of `count` blocks that follow `after`; another name is another text."""
    hashes = []
    for at in range(count):
        after = BlockHash(hashlib.sha256(after + f"{name}{at}".encode()).digest())
        hashes.append(after)
    return hashes


def content(hash_: bytes, size: int) -> bytes:
    """A block's bytes: what they are follows from its hash, so that a wrong one shows."""
    return hashlib.shake_128(hash_).digest(size)
