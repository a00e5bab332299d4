"""Numbers as the hashes that outlines are drawn of."""


def digest(number: int) -> bytes:
    """The hash that is this number, of 64 bits."""
    return number.to_bytes(8, "big")
