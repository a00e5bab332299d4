"""Why a prompt does not go on from the one before it: which part differs, and what became of it.

Compares two outlines. Knows no session, and no text: that a change is one of digits only is told by hashes
of what is left without them.
"""

from collections import Counter
from enum import StrEnum
from typing import Any, Final, NamedTuple

from router.core.outline import Outline, Part


class Cause(StrEnum):
    """What became of the first part that differs."""

    DIGITS = "digits"
    """It is the same but for its digits: a date, a time, a counter."""
    CHANGED = "changed"
    """Another text stands in its place."""
    INSERTED = "inserted"
    """Something stands before it that did not."""
    REMOVED = "removed"
    """It is gone, and what followed it has moved up."""
    REORDERED = "reordered"
    """All of it is there in another order."""
    COMPACTED = "compacted"
    """A shorter history has replaced it, as agents do whose context is full."""
    REWOUND = "rewound"
    """The conversation was taken up again from an earlier point."""
    OTHER = "other"
    """It is another conversation under the same session id."""
    UNKNOWN = "unknown"
    """It lies beyond what is kept of a prompt."""


MEANT: Final = frozenset({Cause.COMPACTED, Cause.REWOUND, Cause.OTHER})
"""Causes that are the conversation's own course, not a fault of whoever renders its prompts."""


class Difference(NamedTuple):
    """Where and how two prompts part."""

    part: Part
    cause: Cause
    message: int | None
    """The number of the message, from 0 in the request's own list; `None` where it is no message."""
    role: str | None
    common: int
    """Leading segments that both have."""


class Break(NamedTuple):
    """A turn that did not go on from its session's turn before."""

    part: Part
    cause: Cause
    message: int | None
    role: str | None
    lost_tokens: int
    """Prompt tokens that would have been in the cache, had it gone on, estimated."""
    rederived: bool
    """The session is derived from the opening, which changed, so the turn was taken for a new session's."""
    at: float
    """Monotonic seconds."""

    def words(self) -> str:
        """The cause for a person, with what to do about it where there is something."""
        if self.part is Part.MESSAGE or (self.part is Part.SYSTEM and self.message is not None):
            name = f"message {self.message} ({self.role})"
        else:
            name = _NAMES[self.part]
        words = _WORDS[self.cause].format(name)
        if self.rederived:
            words += "; the session is derived from the opening and so was lost: send a session id"
        return words


_NAMES: Final = {
    Part.PARAMETERS: "what renders the prompt (model, template, its arguments, documents, reasoning effort)",
    Part.TOOLS: "the tool list",
    Part.SYSTEM: "the system prompt",
    Part.MESSAGE: "a message",
    Part.PROMPT: "the prompt",
}

_WORDS: Final = {
    Cause.DIGITS: "{} differs in its digits only: a date, a time or a counter; send it later in the prompt",
    Cause.CHANGED: "{} changed",
    Cause.INSERTED: "{} was inserted before what was there",
    Cause.REMOVED: "{} is gone, and what followed has moved up",
    Cause.REORDERED: "from {} on, all is there in another order",
    Cause.COMPACTED: "from {} on, a shorter history replaces the old one: a compaction",
    Cause.REWOUND: "the conversation was taken up again from {}",
    Cause.OTHER: "another conversation under the same session id, from {} on",
    Cause.UNKNOWN: "something changed far into the prompt",
}


_COMPARED: Final = 64
"""How many messages are held against one another in their places, from the first that differs on."""


def find_difference(before: Outline, after: Outline) -> Difference:
    """Compare a prompt with the one before it, which it does not go on from."""
    common = before.common(after)
    if common == len(before):
        # What is kept of long prompts is cut, and they agree so far.
        return Difference(Part.MESSAGE, Cause.UNKNOWN, None, None, common)
    start = before.beginning(common)
    shown = after if start < len(after) else before
    cause = _cause(before, after, start)
    if cause is Cause.REMOVED:
        shown = before
    return Difference(shown.part(start), cause, shown.message(start), shown.role(start), common)


def _cause(before: Outline, after: Outline, start: int) -> Cause:
    old_begins, new_begins = before.beginnings(start), after.beginnings(start)
    old, new = before.units(old_begins), after.units(new_begins)
    if not new:
        return Cause.REWOUND
    if _follows(old, new):
        return Cause.INSERTED
    if _follows(new, old):
        return Cause.REMOVED
    # What is not even there need not be counted.
    if 1 < len(old) <= len(new) and set(old) <= set(new) and not Counter(old) - Counter(new):
        return Cause.REORDERED
    is_message = after.part(start) is Part.MESSAGE
    if is_message and len(new) == 1 and len(old) == 1:
        return Cause.REWOUND
    if _in_place(before, after, old_begins, new_begins):
        same_shape = before.shapes[start] == after.shapes[start] != 0
        return Cause.DIGITS if same_shape else Cause.CHANGED
    shorter = len(after) < len(before)
    earlier = after.messages(start)
    if not earlier and set(before.message_units(old_begins, old)).isdisjoint(
        after.message_units(new_begins, new)
    ):
        return Cause.COMPACTED if is_message and shorter else Cause.OTHER
    if not shorter:
        return Cause.CHANGED
    return Cause.REWOUND if len(new) == 1 and earlier > 1 else Cause.COMPACTED


def _follows(old: list[Any], new: list[Any]) -> bool:
    """Whether `new` is something and then `old`, as far as either goes. The last of the old may be another:
    agents put notes at the end of a prompt that they leave out of the next."""
    if old[0] not in new:
        return False
    at = new.index(old[0])
    rest = new[at : at + len(old)]
    return old[: len(rest)] == rest or (len(rest) > 2 and old[: len(rest) - 1] == rest[:-1])


def _in_place(before: Outline, after: Outline, old_begins: list[int], new_begins: list[int]) -> bool:
    """Whether what follows the first of each is in its old place, for the better part, at least but for
    digits."""
    if before.part(old_begins[0]) is not after.part(new_begins[0]):
        return False
    if len(old_begins) == 1:
        return True
    both = min(len(old_begins), len(new_begins), _COMPARED)
    same = differ = 0
    for place in range(1, both):
        old, new = old_begins[place], new_begins[place]
        if before.own[old] == after.own[new]:
            same += 1
        elif shape := before.shapes[old]:
            other = after.shapes[new]
            if shape == other:
                same += 1
            elif other:
                differ += 1
    return 0 < same >= differ
