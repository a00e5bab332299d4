"""What the segments of a prompt are, in a few bytes each: enough to tell what changed, and no text.

A chain says where two prompts part. An outline says what stands there and how the rest compares, as its
hashes are of single segments and not of all that precede them.
"""

from array import array
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

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


class Outline:
    """The segments of a prompt, or of its end. Nine bytes a segment."""

    __slots__ = ("own", "shapes", "tags")

    def __init__(self) -> None:
        self.tags = bytearray()
        """What each segment is of."""
        self.own = array("I")
        """32 bits of each segment's own hash. Two that differ are taken for equal once in four billion."""
        self.shapes = array("I")
        """At a beginning, 32 bits of a hash of the whole payload without its digits; 0 elsewhere."""

    def __len__(self) -> int:
        return len(self.tags)

    def add(self, tag: int, own: int, shape: int) -> None:
        """One more segment; hashes of any width."""
        self.tags.append(tag)
        self.own.append(own & 0xFFFF_FFFF)
        self.shapes.append(shape & 0xFFFF_FFFF)

    def extend(self, other: "Outline") -> None:
        """What follows."""
        self.tags += other.tags
        self.own.extend(other.own)
        self.shapes.extend(other.shapes)

    def followed_by(self, other: "Outline", at: int) -> "Outline":
        """A new one: the first `at` segments, and behind them all of the other."""
        made = Outline()
        made.tags = self.tags[:at] + other.tags
        made.own = self.own[:at] + other.own
        made.shapes = self.shapes[:at] + other.shapes
        return made

    def cut(self, most: int) -> None:
        """Keep the first `most` segments."""
        if most < len(self.tags):
            del self.tags[most:], self.own[most:], self.shapes[most:]

    def drop(self, count: int) -> None:
        """Leave out the first `count` segments."""
        if count:
            del self.tags[:count], self.own[:count], self.shapes[:count]

    def common(self, other: "Outline") -> int:
        """How many leading segments are the same."""
        return common_length(memoryview(self.own), memoryview(other.own))

    def goes_on_at(self, at: int) -> bool:
        """Whether a segment continues what the one before it is of; no where there is none."""
        return at < len(self.tags) and bool(self.tags[at] & CONTINUES)

    def beginning(self, at: int) -> int:
        """Where that which segment `at` is of begins."""
        while at and self.tags[at] & CONTINUES:
            at -= 1
        return at

    def units(self, begins: Sequence[int]) -> list[bytes]:
        """What begins at each of these places and goes on to the next, each message or other part as one
        value."""
        own = self.own.tobytes()
        width = self.own.itemsize
        return [
            own[at * width : end * width] for at, end in zip(begins, [*begins[1:], len(self)], strict=False)
        ]

    def beginnings(self, start: int) -> list[int]:
        """Where what stands at `start` and behind it begins, each message or other part."""
        tags = bytes(self.tags)
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


Describe = Callable[[int], Outline | None]
"""The outline of a prompt's segments from the given one on; `None` where it cannot be told."""


def opening_shape(outline: Outline, opening: int) -> bytes:
    """What conversations have in common that begin alike but for digits: of the first `opening` segments,
    the root and the shapes."""
    return outline.own[:1].tobytes() + _bytes(outline.shapes[:opening])


def _bytes(figures: Sequence[int]) -> bytes:
    return array("I", (figure for figure in figures if figure)).tobytes()
