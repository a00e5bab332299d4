"""Members of a JSON object that were left as they were sent: what one holds, read only where it is needed."""

from typing import Final

import msgspec
from msgspec import Raw, UnsetType

OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_TEXT: Final = msgspec.json.Decoder(str)


def raw(value: Raw | UnsetType) -> bytes:
    """A member as sent; empty where it is absent or null."""
    if isinstance(value, UnsetType):
        return b""
    sent = bytes(value)
    return b"" if sent == b"null" else sent


def text(value: Raw | UnsetType) -> str | None:
    """A member that is a text with something in it."""
    sent = raw(value)
    return _TEXT.decode(sent) or None if sent.startswith(b'"') else None


def text_or_number(value: Raw) -> str | None:
    """The same, or a number as it was written."""
    sent = bytes(value)
    return text(value) if sent[:1] not in b"-0123456789" else sent.decode()


def sized(*texts: bytes) -> bytes:
    """Texts one after the other, each after its length, so that none can be taken for another."""
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)
