"""What the segments of a prompt are, in a few bytes each: enough to tell what changed, and no text.

A chain says where two prompts part. An outline says what stands there and how the rest compares, as its
hashes are of single segments and not of all that precede them.
"""

from array import array
from collections.abc import Callable, Sequence
from enum import StrEnum
from sys import byteorder
from typing import Any, Final

from router.base.common import common_length

ROOT: Final = 0
"""What the whole rendering depends on: model, tenant, template and its arguments."""
TOOLS: Final = 1
SYSTEM: Final = 2
"""A system prompt that is no message."""
PROMPT: Final = 3
"""A prompt that is no conversation."""
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "item")
FIRST_ROLE: Final = 4
"""The tag of a message of the first of `ROLES`; the others follow. The last is for all that has no role."""
NO_HASH: Final = bytes(8)
"""In the place of one where there is none."""
CONTINUES: Final = 0x80
"""Set in the tag of a segment that is no beginning but a further stretch of what the one before it is of."""


class Part(StrEnum):
    """A part of a request, as its sender knows it."""

    PARAMETERS = "parameters"
    """Model, template, its arguments, documents: what changes the rendering of all the rest."""
    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGE = "message"
    PROMPT = "prompt"
    """The prompt of a request that is no conversation."""


_PARTS: Final = (
    Part.PARAMETERS,
    Part.TOOLS,
    Part.SYSTEM,
    Part.PROMPT,
    Part.SYSTEM,
    Part.SYSTEM,
    *[Part.MESSAGE] * (len(ROLES) - 2),
)
_FIRST_MESSAGE: Final = _PARTS.index(Part.MESSAGE)
"""The first of the tags that are messages and no part of the system prompt."""
_MESSAGES: Final = bytes(tag | more for tag in range(_FIRST_MESSAGE, len(_PARTS)) for more in (0, CONTINUES))

_LOW_32: Final = 0xFFFF_FFFF
_LOW_HALF: Final = 0 if byteorder == "little" else 1


def low_32(hashes: Sequence[Any]) -> "array[int]":
    """32 bits of each of these hashes of 64, none of which is wider."""
    # Every other half of them all, as they lie in memory: a mask makes a new object of each.
    return array("I", array("Q", hashes).tobytes())[_LOW_HALF::2]


def _low_halves(digests: list[bytes]) -> "array[int]":
    """The same of hashes as `digest64` makes them."""
    halves = array("I", b"".join(digests))[1::2]
    if byteorder == "little":
        halves.byteswap()
    return halves


def add_low_32(to: "array[int]", hashes: Sequence[Any]) -> None:
    """Put 32 bits of each at the end: for a few, in half the time that it takes to make an array of them."""
    for each in hashes:
        to.append(each & _LOW_32)


class Outline:
    """The segments of a prompt, or of its end. Nine bytes a segment."""

    __slots__ = ("own", "shapes", "tags")

    def __init__(self, tags: bytearray, own: "array[int]", shapes: "array[int]") -> None:
        self.tags = tags
        """What each segment is of."""
        self.own = own
        """32 bits of each segment's own hash. Two that differ are taken for equal once in four billion."""
        self.shapes = shapes
        """At a beginning, 32 bits of a hash of the whole payload without its digits; 0 elsewhere, and where
        none was made: amid a long history that came at once."""

    def __len__(self) -> int:
        return len(self.tags)

    def extend(self, other: "Outline") -> None:
        """What follows."""
        self.tags += other.tags
        self.own.extend(other.own)
        self.shapes.extend(other.shapes)

    def followed_by(self, other: "Outline", at: int) -> "Outline":
        """A new one: the first `at` segments, and behind them all of the other."""
        return Outline(
            self.tags[:at] + other.tags, self.own[:at] + other.own, self.shapes[:at] + other.shapes
        )

    def cut(self, most: int) -> None:
        """Keep the first `most` segments."""
        if most < len(self.tags):
            del self.tags[most:], self.own[most:], self.shapes[most:]

    def common(self, other: "Outline") -> int:
        """How many leading segments are the same."""
        return common_length(self.own.tobytes(), other.own.tobytes()) // self.own.itemsize

    def goes_on_at(self, at: int) -> bool:
        """Whether a segment continues what the one before it is of; no where there is none."""
        return at < len(self.tags) and bool(self.tags[at] & CONTINUES)

    def beginning(self, at: int) -> int:
        """Where that which segment `at` is of begins."""
        while at and self.tags[at] & CONTINUES:
            at -= 1
        return at

    def units(self, begins: Sequence[int]) -> list[Any]:
        """What begins at each of these places and goes on to the next, each message or other part as one
        value."""
        own = self.own.tolist()
        if begins and len(begins) == len(own) - begins[0]:
            return own[begins[0] :]
        ends = [*begins[1:], len(own)]
        return [
            own[at] if ends[place] == at + 1 else tuple(own[at : ends[place]])
            for place, at in enumerate(begins)
        ]

    def message_units(self, begins: Sequence[int], units: Sequence[Any]) -> list[Any]:
        """Of the units that begin there, those that are messages and no part of the system prompt."""
        tags = bytes(self.tags)
        if units and not tags[begins[0] :].translate(None, _MESSAGES):
            return list(units)
        return [units[place] for place, at in enumerate(begins) if tags[at] >= _FIRST_MESSAGE]

    def messages(self, end: int) -> int:
        """How many messages begin before segment `end`, those of the system prompt not counted."""
        return len([tag for tag in bytes(self.tags[:end]) if _FIRST_MESSAGE <= tag < CONTINUES])

    def beginnings(self, start: int) -> list[int]:
        """Where what stands at `start` and behind it begins, each message or other part."""
        tags = bytes(self.tags)
        if tags[start:].isascii():  # nothing continues
            return list(range(start, len(tags)))
        return [at for at in range(start, len(tags)) if not tags[at] & CONTINUES]

    def part(self, at: int) -> Part:
        """The part that a segment is of."""
        return _PARTS[self.tags[at] & ~CONTINUES]

    def role(self, at: int) -> str | None:
        """The role of the message that a segment is of; `None` where it is of none."""
        role = (self.tags[at] & ~CONTINUES) - FIRST_ROLE
        return ROLES[role] if role >= 0 else None

    def message(self, at: int) -> int | None:
        """The number of the message that a segment is of, from 0; `None` where it is of none."""
        if self.role(at) is None:
            return None
        tags = bytes(self.tags[: at + 1])
        return len([tag for tag in tags if FIRST_ROLE <= tag < CONTINUES]) - 1


class Drawing:
    """An outline in the making."""

    __slots__ = ("own", "shapes", "tags")

    def __init__(self) -> None:
        self.tags: list[int] = []
        self.own: list[bytes] = []
        self.shapes: list[bytes] = []

    def add(self, tag: int, own: bytes, shape: bytes) -> None:
        """One more segment (`Outline.tags`, `own`, `shapes`), with hashes as `digest64` makes them."""
        self.tags.append(tag)
        self.own.append(own)
        self.shapes.append(shape)

    def outline(self, skipped: int = 0) -> Outline:
        """What was drawn, but for the first so many segments."""
        count = len(self.tags) - skipped
        # Both at once: of the one or two messages that a turn adds, most is what the calls cost.
        halves = _low_halves(self.own[skipped:] + self.shapes[skipped:])
        return Outline(bytearray(self.tags[skipped:]), halves[:count], halves[count:])


Describe = Callable[[int], Outline | None]
"""The outline of a prompt's segments from the given one on; `None` where it cannot be told."""


def opening_shape(outline: Outline, opening: int) -> bytes:
    """What conversations have in common that begin alike but for digits: of the first `opening` segments,
    the root and the shapes."""
    return outline.own[:1].tobytes() + _bytes(outline.shapes[:opening])


def _bytes(figures: Sequence[int]) -> bytes:
    return array("I", (figure for figure in figures if figure)).tobytes()
