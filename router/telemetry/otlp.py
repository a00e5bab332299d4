"""Spans in OTLP's wire format, protobuf, and what a collector answers. Knows no name of any, sends nothing.

Written by hand: `docs/adr/0042-spans-encoded-by-hand.md` says why, and tests hold it against the published
schema.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Final

_DOUBLE: Final = Struct("<d").pack
# A span's fields of a fixed size, together: its trace's id and its own, with its parent's or without, and its
# kind, times and flags.
_ROOT: Final = Struct(">H16sHQ").pack
_CHILD: Final = Struct(">H16sHQHQ").pack
_REST: Final = Struct("<BBBQBQHI").pack

_MASK64: Final = (1 << 64) - 1
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1

# Tags of fields: their number and wire type in a byte, or in two.
_SPAN_TRACE_ID: Final = 0x0A10  # and its length
_SPAN_ID: Final = 0x1208
_SPAN_STATE: Final = b"\x1a"
_SPAN_PARENT: Final = 0x2208
_SPAN_NAME: Final = b"\x2a"
_SPAN_KIND: Final = 0x30
_SPAN_START: Final = 0x39
_SPAN_END: Final = 0x41
_SPAN_ATTRIBUTE: Final = b"\x4a"
_SPAN_ERROR: Final = b"\x7a\x02\x18\x02"  # status {code: ERROR}
_SPAN_FLAGS: Final = 0x0185
_FIRST: Final = b"\x0a"
_SECOND: Final = b"\x12"
_BOOL: Final = b"\x10"
_INT: Final = b"\x18"
_FLOAT: Final = b"\x21"
_ARRAY: Final = b"\x2a"
_DOUBLE_ITEM: Final = b"\x0a\x09\x21"  # in an array

# That it is known whether the parent is another process's, and that it is.
_REMOTE_KNOWN: Final = 0x100
_REMOTE: Final = 0x200

# What is kept encoded of each key's texts: most keys have a few, and what comes later is written each time.
_KEPT_BYTES: Final = 256
_MOST_KEPT: Final = 256

_MOST_VARINT: Final = 10
_DOUBLE_BYTES: Final = 8

_SHORT: Final = tuple([bytes((number,)) for number in range(0x80)])
_MORE: Final = tuple([bytes((0x80 | number,)) for number in range(0x80)])


class SpanKind(IntEnum):
    """What a span is to those beside it."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Key:
    """An attribute's name, and how attributes of it begin, encoded once for all spans that have it."""

    __slots__ = ("_kept", "_lists", "_name", "double", "name", "numbers", "true")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._name: Final = _text(_FIRST, name)
        # What comes before a number depends on how many bytes it takes.
        self.numbers: Final = [self._before(_INT, size) for size in range(_MOST_VARINT + 1)]
        self.double: Final = self._before(_FLOAT, _DOUBLE_BYTES)
        self.true: Final = self._whole(_BOOL + b"\x01")
        self._kept: Final[dict[str | tuple[str, ...], bytes]] = {}
        """What was written for texts and lists of texts."""
        self._lists: Final[dict[int, bytes]] = {}
        """What comes before a list of numbers that takes so many bytes."""

    def text(self, value: str) -> bytes:
        """The attribute, as a field of its span."""
        written = self._kept.get(value)
        return written if written is not None else self._keep(value, _text(_FIRST, value))

    def texts(self, value: tuple[str, ...]) -> bytes:
        """As `text`, of a list."""
        written = self._kept.get(value)
        if written is not None:
            return written
        items = b"".join([_field(_FIRST, _text(_FIRST, each)) for each in value])
        return self._keep(value, _field(_ARRAY, items))

    def before_list(self, size: int) -> bytes:
        """What comes before a list of numbers that takes so many bytes."""
        before = self._lists.get(size)
        if before is None:
            before = self._lists[size] = self._before(_ARRAY + _varint(size), size)
        return before

    def _before(self, tag: bytes, size: int) -> bytes:
        """An attribute up to its value's content of so many bytes, `tag` being of its type."""
        whole = self._whole(tag + bytes(size))
        return whole[: len(whole) - size]

    def _keep(self, value: str | tuple[str, ...], content: bytes) -> bytes:
        written = self._whole(content)
        if len(written) <= _KEPT_BYTES and len(self._kept) < _MOST_KEPT:
            self._kept[value] = written
        return written

    def _whole(self, content: bytes) -> bytes:
        return _field(_SPAN_ATTRIBUTE, self._name + _field(_SECOND, content))


class Attributes:
    """Of one span, each written as it is given: there are some tens, and nothing is made in between."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: Final[list[bytes]] = []
        """In this order, fields of the span."""

    def text(self, key: Key, value: str) -> None:
        self.parts.append(key.text(value))

    def number(self, key: Key, value: int) -> None:
        """Of 64 bits; what has more, as a replica may count, is the one that comes nearest."""
        written = _varint(min(max(value, _LEAST), _MOST))
        self.parts.append(key.numbers[len(written)])
        self.parts.append(written)

    def double(self, key: Key, value: float) -> None:
        self.parts.append(key.double)
        self.parts.append(_DOUBLE(value))

    def true(self, key: Key) -> None:
        self.parts.append(key.true)

    def texts(self, key: Key, value: tuple[str, ...]) -> None:
        self.parts.append(key.texts(value))

    def doubles(self, key: Key, value: list[float]) -> None:
        items: list[bytes | float] = []
        for each in value:
            items.append(_DOUBLE_ITEM)
            items.append(each)
        written = _list_packer(len(value))(*items)
        self.parts.append(key.before_list(len(written)))
        self.parts.append(written)


def span(
    name: str,
    kind: SpanKind,
    *,
    trace_id: bytes,
    span_id: int,
    parent_id: int,
    remote_parent: bool,
    flags: int,
    state: str,
    start_ns: int,
    end_ns: int,
    attributes: Attributes,
    failed: bool,
) -> bytes:
    """One span as a field of its scope. `parent_id` is 0 where there is none; times are Unix nanoseconds."""
    if parent_id:
        ids = _CHILD(_SPAN_TRACE_ID, trace_id, _SPAN_ID, span_id, _SPAN_PARENT, parent_id)
    else:
        ids = _ROOT(_SPAN_TRACE_ID, trace_id, _SPAN_ID, span_id)
    flags |= _REMOTE_KNOWN | _REMOTE if remote_parent and parent_id else _REMOTE_KNOWN
    rest = _REST(_SPAN_KIND, kind, _SPAN_START, start_ns, _SPAN_END, end_ns, _SPAN_FLAGS, flags)
    parts = [ids, _text(_SPAN_NAME, name), rest]
    parts += attributes.parts
    if state:
        parts.append(_text(_SPAN_STATE, state))
    if failed:
        parts.append(_SPAN_ERROR)
    return _field(_SECOND, b"".join(parts))


class Envelope:
    """Wraps spans as a request to a collector: whose they are, and what made them."""

    __slots__ = ("_resource", "_scope")

    def __init__(self, resource: Iterable[tuple[str, str]], scope: str, version: str) -> None:
        attributes = b"".join(
            _field(_FIRST, _text(_FIRST, name) + _field(_SECOND, _text(_FIRST, value)))
            for name, value in resource
        )
        self._resource = _field(_FIRST, attributes)
        self._scope = _field(_FIRST, _text(_FIRST, scope) + _text(_SECOND, version))

    def request(self, spans: Sequence[bytes]) -> bytes:
        """The body of an `ExportTraceServiceRequest`."""
        return _field(_FIRST, self._resource + _field(_SECOND, self._scope + b"".join(spans)))


def rejected_spans(answer: bytes) -> int:
    """How many spans a collector says it did not take; 0 for an answer that is not understood.

    `answer` is an `ExportTraceServiceResponse`, or whatever a stranger says.
    """
    partial = _find(answer, 1, _LENGTH)
    rejected = _find(partial, 1, _NUMBER) if isinstance(partial, bytes) else None
    return rejected if isinstance(rejected, int) and rejected < 1 << 63 else 0


def _field(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (_SHORT[size] if size < 0x80 else _varint(size)) + content


def _text(tag: bytes, text: str) -> bytes:
    # A surrogate that stands alone is no text that protobuf could carry.
    return _field(tag, text.encode("utf-8", "replace"))


@lru_cache(maxsize=32)
def _list_packer(count: int) -> Callable[..., bytes]:
    """Packs so many numbers, each behind what an item of a list begins with."""
    return Struct("<" + "3sd" * count).pack


def _varint(number: int) -> bytes:
    """Seven bits a byte, the last first. A negative number as one of 64 bits."""
    if 0 <= number < 0x80:
        return _SHORT[number]
    if number < 0:
        number &= _MASK64
    return _MORE[number & 0x7F] + _varint(number >> 7)


_NUMBER: Final = 0
_LENGTH: Final = 2
_SKIPPED: Final = {1: 8, 5: 4}
"""Bytes of the wire types that have a fixed size."""


def _find(message: bytes, wanted: int, wire_type: int) -> bytes | int | None:
    """The last field of that number and type, as protobuf has it; `None` where there is none, or where the
    message cannot be read up to its end."""
    found: bytes | int | None = None
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value: bytes | int | None = None
        kind = tag & 7
        if kind == _NUMBER:
            value, at = _read_varint(message, at)
        elif kind == _LENGTH:
            size, at = _read_varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            at += _SKIPPED.get(kind, len(message) + 1)
        if at > len(message):
            return None
        if tag == wanted << 3 | wire_type:
            found = value
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends: beyond the end of a message that breaks off in it, or has one too long."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
    return 0, len(message) + 1
