"""The simulated tokenizer: text to tokens and back, and the chain of block hashes over them.

A token is four bytes: a piece of UTF-8 text padded with 0xFF, or a marker that starts with 0xFF. UTF-8
never contains 0xFF, so the two cannot be mistaken for each other, and a text cut at its start tokenises
alike wherever it stands: what the replica generates comes back in the next turn as the same tokens.
"""

import struct
from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

TOKEN_BYTES: Final = 4
_PAD: Final = b"\xff"

SYSTEM: Final = b"\xffsys"
USER: Final = b"\xffusr"
ASSISTANT: Final = b"\xffast"
TOOL: Final = b"\xfftol"
TOOLS: Final = b"\xffdef"
"""Opens the definitions of the tools."""
CALL: Final = b"\xffcal"
"""Opens a tool call inside an assistant message."""
MEDIA: Final = b"\xffimg"
"""Opens an image or another part that is not text."""
END: Final = b"\xffend"
"""Ends a message; what the model samples to stop."""


def encode(text: str) -> bytes:
    """The tokens of a text, four bytes each."""
    raw = text.encode()
    return raw + _PAD * (-len(raw) % TOKEN_BYTES)


def decode(tokens: bytes) -> str:
    """The text of tokens; markers show as `<|name|>`, bytes that are no UTF-8 as U+FFFD."""
    parts: list[bytes] = []
    for start in range(0, len(tokens), TOKEN_BYTES):
        piece = tokens[start : start + TOKEN_BYTES]
        parts.append(b"<|" + piece[1:] + b"|>" if piece.startswith(_PAD) else piece.rstrip(_PAD))
    return b"".join(parts).decode(errors="replace")


def to_ids(tokens: bytes) -> list[int]:
    """Token ids as the API shows them."""
    return list(struct.unpack(f"<{len(tokens) // TOKEN_BYTES}I", tokens))


def from_ids(ids: Iterable[int]) -> bytes:
    """The reverse of `to_ids`. Raises `ValueError` for an id that is no token."""
    listed = list(ids)
    try:
        return struct.pack(f"<{len(listed)}I", *listed)
    except struct.error as error:
        raise ValueError(f"not a token id: {error}") from None


def count(tokens: bytes) -> int:
    return len(tokens) // TOKEN_BYTES


def root(model: str, *, salt: str = "", lora: str = "") -> int:
    """Where a chain of block hashes starts: prompts of different roots never share a block."""
    return xxh3_64_intdigest("\0".join((model, salt, lora)).encode())


def block_hashes(start: int, tokens: bytes, block_size: int) -> list[int]:
    """A hash for each full block, each over its own tokens and all before them, from the root `start`."""
    width = block_size * TOKEN_BYTES
    parent = start
    hashes: list[int] = []
    for at in range(0, len(tokens) - width + 1, width):
        # The parent as the seed chains the blocks without copying its bytes in front of each.
        parent = xxh3_64_intdigest(tokens[at : at + width], parent)
        hashes.append(parent)
    return hashes
