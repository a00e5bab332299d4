"""Spans in OTLP's wire format, protobuf, and what a collector answers. Knows no name of any, sends nothing.

Written by hand: `docs/adr/0042-spans-encoded-by-hand.md` says why, and tests hold it against the published
schema.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

Value = str | bool | int | float | tuple[str, ...] | tuple[float, ...]
"""Of an attribute. Integers are of 64 bits."""

_FIXED16: Final = Struct("<H").pack
_FIXED32: Final = Struct("<I").pack
_ID: Final = Struct(">Q").pack
_DOUBLE: Final = Struct("<d").pack
_TIMES: Final = Struct("<BQBQ").pack

_MASK64: Final = (1 << 64) - 1

# Tags of fields: their number and wire type in a byte, or in two.
_SPAN_TRACE_ID: Final = b"\x0a\x10"  # and its length
_SPAN_ID: Final = b"\x12\x08"
_SPAN_STATE: Final = b"\x1a"
_SPAN_PARENT: Final = b"\x22\x08"
_SPAN_NAME: Final = b"\x2a"
_SPAN_KIND: Final = b"\x30"
_SPAN_START: Final = 0x39
_SPAN_END: Final = 0x41
_SPAN_ATTRIBUTE: Final = b"\x4a"
_SPAN_ERROR: Final = b"\x7a\x02\x18\x02"  # status {code: ERROR}
_SPAN_FLAGS: Final = b"\x85\x01"
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


class SpanKind(IntEnum):
    """What a span is to those beside it."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Key:
    """An attribute's name, and how attributes of it begin, encoded once for all spans that have it."""

    __slots__ = ("_double", "_kept", "_name", "_numbers", "_true", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._name: Final = _text(_FIRST, name)
        # What comes before a number depends on how many bytes it takes.
        self._numbers: Final = [self._before(_INT, size) for size in range(_MOST_VARINT + 1)]
        self._double: Final = self._before(_FLOAT, _DOUBLE_BYTES)
        self._true: Final = self._before(_BOOL, 1) + b"\x01"
        self._kept: Final[dict[Value, bytes]] = {}
        """What was written for texts and lists of texts."""

    def write(self, value: Value, parts: list[bytes]) -> None:
        """Append the attribute, as a field of its span."""
        if type(value) is str or (isinstance(value, tuple) and value and type(value[0]) is str):
            written = self._kept.get(value)
            parts.append(written if written is not None else self._keep(value))
        elif type(value) is float:
            parts.append(self._double)
            parts.append(_DOUBLE(value))
        elif isinstance(value, bool):
            parts.append(self._true if value else self._whole(_value(value)))
        elif isinstance(value, int):
            number = _varint(value)
            parts.append(self._numbers[len(number)])
            parts.append(number)
        else:
            parts.append(self._whole(_value(value)))

    def _before(self, tag: bytes, size: int) -> bytes:
        """An attribute up to its value's content of so many bytes, `tag` being of its type."""
        whole = self._whole(tag + bytes(size))
        return whole[: len(whole) - size]

    def _keep(self, value: Value) -> bytes:
        written = self._whole(_value(value))
        if len(written) <= _KEPT_BYTES and len(self._kept) < _MOST_KEPT:
            self._kept[value] = written
        return written

    def _whole(self, value: bytes) -> bytes:
        return _field(_SPAN_ATTRIBUTE, self._name + _field(_SECOND, value))


Attributes = Sequence[tuple[Key, Value]]


def span(
    name: str,
    kind: SpanKind,
    *,
    trace_id: int,
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
    parts = [
        _SPAN_TRACE_ID,
        trace_id.to_bytes(16, "big"),
        _SPAN_ID,
        _ID(span_id),
    ]
    if state:
        parts.append(_text(_SPAN_STATE, state))
    if parent_id:
        parts.append(_SPAN_PARENT)
        parts.append(_ID(parent_id))
    parts.append(_text(_SPAN_NAME, name))
    parts.append(_SPAN_KIND)
    parts.append(_SHORT[kind])
    parts.append(_TIMES(_SPAN_START, start_ns, _SPAN_END, end_ns))
    for key, value in attributes:
        key.write(value, parts)
    if failed:
        parts.append(_SPAN_ERROR)
    remote = _REMOTE if remote_parent and parent_id else 0
    parts.append(_SPAN_FLAGS)
    parts.append(_FIXED32(flags | _REMOTE_KNOWN | remote))
    return _field(_SECOND, b"".join(parts))


class Envelope:
    """Wraps spans as a request to a collector: whose they are, and what made them."""

    __slots__ = ("_resource", "_scope")

    def __init__(self, resource: Iterable[tuple[str, Value]], scope: str, version: str) -> None:
        attributes = b"".join(
            _field(_FIRST, _text(_FIRST, name) + _field(_SECOND, _value(value))) for name, value in resource
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


def _value(value: Value) -> bytes:
    """The content of an `AnyValue`."""
    if type(value) is str:
        return _text(_FIRST, value)
    if type(value) is float:
        return _FLOAT + _DOUBLE(value)
    if isinstance(value, bool):
        return _BOOL + _SHORT[value]
    if isinstance(value, int):
        return _INT + _varint(value)
    if isinstance(value, tuple):
        if value and type(value[0]) is float:
            return _field(_ARRAY, b"".join([_DOUBLE_ITEM + _DOUBLE(each) for each in value]))
        return _field(_ARRAY, b"".join([_field(_FIRST, _value(each)) for each in value]))
    if isinstance(value, str):
        return _text(_FIRST, value)
    return _FLOAT + _DOUBLE(value)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the last first. A negative number as one of 64 bits."""
    if 0 <= number < 0x80:
        return _SHORT[number]
    if 0 < number < 0x4000:
        return _FIXED16(number & 0x7F | 0x80 | number >> 7 << 8)
    number &= _MASK64
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


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
