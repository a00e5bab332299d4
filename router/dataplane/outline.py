"""Outlines of request bodies: what each segment of the chain is of, read only when somebody asks.

Walks a decoded body as `fingerprint` does, and hashes each payload by itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from router.core.hashing import digest64, hash64
from router.core.outline import (
    CONTINUES,
    FIRST_ROLE,
    NO_HASH,
    PROMPT,
    ROLES,
    ROOT,
    SYSTEM,
    TOOLS,
    Drawing,
    Outline,
)
from router.dataplane.fingerprint import CARE, CHUNK, Message, Segments, message_payload

_ROLE_TAGS: Final = {f'"{role}"'.encode(): FIRST_ROLE + at for at, role in enumerate(ROLES)}
_ITEM: Final = FIRST_ROLE + len(ROLES) - 1
_USER: Final = FIRST_ROLE + ROLES.index("user")
"""The first of the tags that are of no system prompt."""
_ASSISTANT: Final = FIRST_ROLE + ROLES.index("assistant")

# How much of one payload is looked through for digits, at some 2 ns a byte: all of any system prompt, and as
# much of a message as has the time at its head, be it in a block. What follows counts as it is.
_SHAPED: Final = 1 << 15
_SHAPED_MESSAGE: Final = 1 << 7
# And of how many messages, the first and the last of those that are described at once: of most histories all,
# as a turn adds a few. One that comes whole and long is told apart by its messages' hashes alone in between.
_SHAPED_EACH: Final = 8
# No UTF-8 holds this byte, so what becomes one was a digit: `translate` would leave digits out itself, but
# takes twice as long for it.
_GONE: Final = b"\xff"
_WITHOUT_DIGITS: Final = bytes(_GONE[0] if digit in b"0123456789" else digit for digit in range(256))
_QUOTE: Final = ord('"')
_join: Final = b"".join
_hash64: Final = hash64
_digest64: Final = digest64
"""Found at once: what another module defines is looked up by its name."""


class BodyOutline:
    """What can be told of one body's segments. Keeps the body alive, so it must be dropped with that."""

    __slots__ = ("_add_prompt", "_body", "_decode", "_head", "_segments")

    def __init__(
        self,
        head: Any,
        add_prompt: "Callable[[Any, Segments], int]",
        segments: Segments,
        decode: "Callable[[bytes], Any] | None" = None,
        body: bytes = b"",
    ) -> None:
        """`add_prompt` made `segments` of the decoded `head`. Where only the end of the body was read, `head`
        is `None`, and `decode` makes it of the `body`."""
        self._head = head
        self._add_prompt = add_prompt
        self._segments = segments
        self._decode = decode
        self._body = body

    def __call__(self, first: int) -> Outline | None:
        """The outline from segment `first` on; `None` where only the whole one could be told."""
        segments = self._segments
        if first == 0:
            walk = _Walk(segments.hashes[0])
            head = self._head if self._decode is None else self._decode(self._body)
            self._add_prompt(head, walk)
            if walk.care < 0:
                return None  # the body is too much of a muddle
            return walk.drawing.outline()
        return _end(segments.messages, segments.billing, len(segments.hashes) - first)


class _Walk(Segments):
    """Makes an outline of what makes a chain."""

    __slots__ = ("_tag", "drawing")

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self.drawing = Drawing()
        self.drawing.add(ROOT, root.to_bytes(8, "big"), NO_HASH)
        self._tag = PROMPT

    def add(self, payload: bytes) -> None:
        before = len(self.drawing.own)
        _add(self.drawing, [payload], [self._tag])
        # The base counts what it has added by these.
        added = [0] * (len(self.drawing.own) - before)
        self.hashes += added
        self.ends += added

    def add_tools(self, tools: bytes) -> None:
        self._tag = TOOLS
        super().add_tools(tools)

    def add_system(self, system: bytes) -> None:
        self._tag = SYSTEM
        super().add_system(system)

    def add_messages(self, messages: Sequence[Message], *, billing: bool = False, opening: int = 0) -> int:
        payloads: list[bytes] = []
        tags: list[int] = []
        for message in messages:
            payload, tag, objects = _payload(message, billing=billing)
            self.care -= objects
            if self.care < 0:
                break
            payloads.append(payload)
            tags.append(tag)
        _add(self.drawing, payloads, tags)
        return opening

    def add_prompt(self, prompt: bytes) -> None:
        self._tag = PROMPT
        super().add_prompt(prompt)


def _end(messages: Sequence[Message], billing: bool, count: int) -> Outline | None:
    """The last `count` segments, where messages make them."""
    payloads: list[bytes] = []
    tags: list[int] = []
    segments, care = 0, CARE
    for message in reversed(messages):
        if segments >= count:
            break
        payload, tag, objects = _payload(message, billing=billing)
        care -= objects
        if care < 0:
            return None
        payloads.append(payload)
        tags.append(tag)
        segments += 1 if len(payload) <= CHUNK else -(-len(payload) // CHUNK)
    if segments < count:
        return None
    payloads.reverse()
    tags.reverse()
    drawing = Drawing()
    _add(drawing, payloads, tags)
    return drawing.outline(segments - count)


def _add(drawing: Drawing, payloads: list[bytes], tags: list[int]) -> None:
    """The segments of these payloads, each of what its tag says."""
    count = len(payloads)
    for at, payload in enumerate(payloads):
        tag, size = tags[at], len(payload)
        shape = NO_HASH
        if tag < _USER:
            shape = _shape(payload, _SHAPED)
        elif at < _SHAPED_EACH or at >= count - _SHAPED_EACH:
            shape = _shape(payload, _SHAPED_MESSAGE)
        if size <= CHUNK:
            drawing.add(tag, _digest64(payload), shape)
        else:
            drawing.add(tag, _digest64(payload[:CHUNK]), shape)
            for place in range(CHUNK, size, CHUNK):
                drawing.add(tag | CONTINUES, _digest64(payload[place : place + CHUNK]), NO_HASH)


def _shape(payload: bytes, shaped: int) -> bytes:
    """The hash of a payload without the digits among its first so many bytes."""
    if len(payload) <= shaped:
        return _digest64(payload.translate(_WITHOUT_DIGITS).replace(_GONE, b""))
    bare = payload[:shaped].translate(_WITHOUT_DIGITS).replace(_GONE, b"")
    return _digest64(bare, _hash64(payload[shaped:]))


def _payload(message: Message, *, billing: bool) -> tuple[bytes, int, int]:
    """What a message is hashed by, its tag, and how many objects there are to look into in it."""
    if len(message) == 2:
        try:
            role = message["role"]
            payload = _join((role, message["content"]))
        except KeyError:
            pass
        else:
            if payload[-1] == _QUOTE and not (billing and payload.startswith(b'"system"')):
                if payload.startswith(b'"user"'):
                    return payload, _USER, 0
                return payload, _tag(payload[: len(role)]), 0
    objects = 1 + bytes(message.get("content", b"")).count(b"{")
    tag = _tag(bytes(message.get("role", b"")))
    if objects > CARE:
        return b"", tag, objects
    return message_payload(message, billing=billing), tag, objects


def _tag(role: bytes) -> int:
    """The tag of a message, from its role as sent: of the most usual one without a look into the table."""
    if role == b'"assistant"':
        return _ASSISTANT
    return _ROLE_TAGS.get(role, _ITEM)
