"""Bounds how many values a request body may be made of, before anything is decoded.

A body is read on the event loop, where every other request waits meanwhile. Long texts cost next to nothing
there, however long; what costs is each object, list and string, some microseconds apiece. 64 MiB hold 20
million of the least of them. Knows nothing of what the values mean.
"""

from typing import Final

from router.base.errors import ErrorKind, Refused

MAX_OBJECTS: Final = 20_000
"""Messages, items, blocks and all that is an object in them, tool schemas included. The longest conversations
of agents have some thousands."""
MAX_LISTS: Final = 20_000
"""Lists, of which a batch of prompts in token ids has one each."""
MAX_STRINGS: Final = 100_000
"""Strings, names of members included: five an object."""

_SMALL: Final = 40_000
"""Bytes of a body that has no room for as many values."""
_MIDDLING: Final = 1 << 20
"""Bytes of a body in which strings and lists alone, however many, cost little: only objects are counted."""


def braces(text: bytes) -> int:
    """How many braces open in a text, those in strings included.

    What is replaced is looked for many bytes at a time; counting looks at one after the other.
    """
    return len(text) - len(text.replace(b"{", b""))


def check_shape(body: bytes) -> int | None:
    """Raise `Refused` where `body` has more values than are read. The answer is how many braces open in it,
    where they were counted.

    What is not JSON passes, or fails, as if the part that is stood alone: the decoder refuses it in any case.
    """
    size = len(body)
    if size < _SMALL:
        return None
    if size < _MIDDLING:
        opened = braces(body)
        if opened <= MAX_OBJECTS:
            return opened
    # Braces and quotes in texts are counted too, so these say only that there cannot be too many.
    if (
        body.count(b"{") <= MAX_OBJECTS
        and body.count(b"[") <= MAX_LISTS
        and body.count(b'"') <= 2 * MAX_STRINGS
    ):
        return None
    if b"\\" in body:
        # What is left is never valid again, but each quote in it begins or ends a string.
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = body.split(b'"', 2 * MAX_STRINGS + 1)
    if len(pieces) > 2 * MAX_STRINGS + 1:
        raise _too_many(MAX_STRINGS, "strings")
    outside = b"".join(pieces[::2])
    if outside.count(b"{") > MAX_OBJECTS:
        raise _too_many(MAX_OBJECTS, "messages, blocks and other objects")
    if outside.count(b"[") > MAX_LISTS:
        raise _too_many(MAX_LISTS, "lists")
    return None


def _too_many(most: int, what: str) -> Refused:
    return Refused(
        ErrorKind.BAD_REQUEST,
        f"The request body has too many parts: more than {most} {what}; send fewer, longer ones.",
    )
