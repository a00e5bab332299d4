"""Edits the members of a JSON object by their place in its bytes: what is not cut stays as it was sent.

Knows nothing of endpoints beyond the few fields that are the router's to set.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from router.base.errors import ErrorKind, Refused

RESERVED: Final = (
    "kv_transfer_params",
    "ec_transfer_params",
    "cache_salt",
    "priority",
    "session_id",
    "request_id",
)
"""Request fields that are the router's to set, never the client's. A `request_id` in a body would be the id
of the stored response, of which one tenant could so claim another's."""
EXTRA: Final = "vllm_xargs"
"""Further parameters, in an object of their own. vLLM looks for transfer parameters among them too, so what
is reserved is reserved there as well."""

_ASK_FOR_USAGE: Final = b'"stream_options":{"include_usage":true}'
_INCLUDE_USAGE: Final = b'"include_usage":true'
_QUOTE: Final = ord('"')

_EMPTY: Final = re.compile(rb"[ \t\r\n]*\}")
_GLANCE: Final = 64

# The way to a member's value. The decoder has checked the grammar by then, so this only has to measure.
_TO_VALUE: Final = re.compile(rb'[ \t\r\n{,]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\r\n]*:[ \t\r\n]*')


class Wanted(Protocol):
    """What `rewrite` has to know of a body. `dialects.Read` says it."""

    @property
    def reserved(self) -> bool: ...

    @property
    def has_stream_options(self) -> bool: ...

    @property
    def asks_usage(self) -> bool: ...


class Member(NamedTuple):
    """One member of an object, as offsets into its bytes."""

    key: str
    """As it reads, escapes resolved."""
    start: int
    """The key's opening quote."""
    value: int
    """First byte of the value."""
    end: int
    """One past the value's last byte."""


Edit = tuple[int, int, bytes]
"""From, to, and what takes the place of these bytes."""


class _Key:
    """A key that equals only itself: a dict of these keeps repeated members, each in its place."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _own_key(_type: type, text: str) -> _Key:
    return _Key(text)


_OBJECT: Final = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=_own_key)


def members(body: bytes) -> list[Member]:
    """The members of the object that `body` holds, in order, repeats included. Linear in its length.

    Raises `msgspec.DecodeError` for what is not a JSON object, `RecursionError` for one nested too deep.
    """
    found: list[Member] = []
    at = 0
    for key, value in _OBJECT.decode(body).items():
        way = _TO_VALUE.match(body, at)
        assert way is not None
        start = way.end()
        at = start + len(value)
        found.append(Member(key.text, way.start(1), start, at))
    return found


def without(body: bytes, drop: Collection[str]) -> bytes:
    """The object in `body` less every member named in `drop`, however written and however often.

    Raises as `members` does.
    """
    found = members(body)
    return b"".join(edited(body, cuts(found, [one.key in drop for one in found])))


def rewrite(
    body: bytes, read: Wanted, *, salt: str | None, include_usage: bool
) -> tuple[bytes | memoryview, ...]:
    """The body to send upstream, as parts to write one after the other.

    Reserved fields are cut out. `salt` becomes `cache_salt`; `None` adds none. With `include_usage`, the
    stream is asked for its usage unless the client asked already (`read.asks_usage`); other stream options
    stay. `read` is what the body's reader said of this body. Raises `Refused` where the body is no object.
    """
    ask = include_usage and not read.asks_usage
    added = []
    if salt is not None:
        added.append(b'"cache_salt":' + msgspec.json.encode(salt))
    if ask and not read.has_stream_options:
        added.append(_ASK_FOR_USAGE)
    widen = ask and read.has_stream_options
    if not read.reserved and not widen:
        if not added:
            return (body,)
        start = body.index(b"{") + 1
        if body[start] == _QUOTE:
            added.append(b"")
            return body[:start] + b",".join(added), memoryview(body)[start:]
    try:
        return tuple(_rewritten(body, added, widen=widen))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(ErrorKind.BAD_REQUEST, f"The request body is not a JSON object: {error}.") from error


def inserted(parts: tuple[bytes | memoryview, ...], member: bytes) -> tuple[bytes | memoryview, ...]:
    """The object that `parts` make up, with one member more, before all others.

    `parts` are what `rewrite` answers: an object, and its brace is in the first of them.
    """
    first = bytes(parts[0][:_GLANCE])
    if b"{" not in first:
        first = bytes(parts[0])
    start = first.index(b"{") + 1
    rest = memoryview(parts[0])[start:]
    behind = rest if len(rest) >= _GLANCE else b"".join((rest, *parts[1:2]))
    comma = b"" if _EMPTY.match(behind) else b","
    return b"".join((first[:start], member, comma)), rest, *parts[1:]


def _rewritten(body: bytes, added: list[bytes], *, widen: bool) -> list[bytes | memoryview]:
    """`rewrite` with a look at every member."""
    found = members(body)
    gone = [one.key in RESERVED for one in found]
    edits = cuts(found, gone)
    for one in found:
        if one.key == EXTRA and body[one.value : one.value + 1] == b"{":
            edits.append((one.value, one.end, without(body[one.value : one.end], RESERVED)))
    if added:
        start = body.index(b"{") + 1
        comma = b"" if all(gone) else b","
        edits.append((start, start, b",".join(added) + comma))
    if widen:
        # Of a repeated field, the last is the one that counts.
        options = [one for one in found if one.key == "stream_options"][-1]
        edits.append((options.value, options.end, _asking(body[options.value : options.end])))
    return edited(body, sorted(edits))


def _asking(options: bytes) -> bytes:
    """Stream options that ask for usage, the others as they were. `options` is an object or null."""
    if options == b"null":
        return b"{%b}" % _INCLUDE_USAGE
    found = members(options)
    gone = [one.key == "include_usage" for one in found]
    comma = b"" if all(gone) else b","
    return b"".join(edited(options, sorted([*cuts(found, gone), (1, 1, _INCLUDE_USAGE + comma)])))


def cuts(found: list[Member], gone: list[bool]) -> list[Edit]:
    """What to cut so that the members that are gone leave a well-formed object behind."""
    stays = max((i for i, is_gone in enumerate(gone) if not is_gone), default=-1)
    # A member goes with the comma after it, and those at the end go with the comma before them.
    edits = [(found[i].start, found[i + 1].start, b"") for i in range(stays) if gone[i]]
    if stays < len(found) - 1:
        edits.append((found[stays].end if stays >= 0 else found[0].start, found[-1].end, b""))
    return edits


def edited(body: bytes, edits: list[Edit]) -> list[bytes | memoryview]:
    """The parts of `body` after `edits`, which are in order and do not overlap."""
    view = memoryview(body)
    parts: list[bytes | memoryview] = []
    at = 0
    for start, end, instead in edits:
        if at < start:
            parts.append(view[at:start])
        if instead:
            parts.append(instead)
        at = end
    parts.append(view[at:])
    return parts
