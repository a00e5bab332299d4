"""Where the next turn of a conversation goes on: what its last body and the next one have in common.

A client sends the whole conversation with each turn. Reading all of it anew costs more with every turn; what
is new is the last few messages. So the last body of a conversation is kept, with where its messages end. A
body that begins as that one did up to there, and ends as that one did from there, can only be the same
request with more messages: nothing but these is left to read. So it is with one that leaves the last messages
out and goes on from an earlier turn's, whose end is marked: an edit, a second try, a compaction.

    {"model":"m","messages":[ {…},{…}   ],"tools":[…],"stream":true}
    └────────────── stem ──────────┘   └─────────── end ──────────┘

Compared are the bytes themselves, not hashes of them: what a body may hold is decided by reading it, and no
body may pass for another. Knows nothing of what messages mean.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.base.ids import SessionKey
from router.base.values import Value
from router.dataplane.fingerprint import Message
from router.dataplane.shape import MAX_OBJECTS, braces

LEAST: Final = 4 * 1024
"""Bytes of a body that is kept: to go on from a shorter one takes about as long as to read it."""
MOST: Final = 1 << 20
"""A longer one has bounds of its own (`shape`), and would take the place of too many."""

MARKS: Final = 64
"""Turns of a conversation whose ends are known."""

_KEY: Final = b'"messages"'
_LOOKS: Final = 64
"""How many places are looked at for the value that ends them."""
_NAMES: Final = len('{"role":,"content":')
_KEYS: Final = 4
"""How often the name is looked for: it may also be a value."""
_BLANKS: Final = b" \t\r\n"
_COMMA: Final = b","

_OUTER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NEWS: Final = msgspec.json.Decoder(list[Message])


class Mark(Value):
    """Where the messages of a conversation ended at one of its turns."""

    __match_args__ = ("at", "braces", "note")
    __slots__ = __match_args__

    def __init__(self, at: int, braces: int, note: Any) -> None:
        self.at: Final = at
        """Where the bracket was that closed them."""
        self.braces: Final = braces
        """How many the body had up to there and behind its end, those in texts included."""
        self.note: Final = note
        """What the owner wants to know again of that turn."""


class News(Value):
    """What of a body is to be read."""

    __match_args__ = ("messages", "braces", "mark", "turns")
    __slots__ = __match_args__

    def __init__(self, messages: list[Message], braces: int, mark: Mark, turns: int) -> None:
        self.messages: Final = messages
        self.braces: Final = braces
        """In these."""
        self.mark: Final = mark
        """What they go on from."""
        self.turns: Final = turns
        """Marks of the stem up to that one."""


class Stem:
    """A body that was read, and what was made of it."""

    __slots__ = ("_end", "_marks", "_prefix", "body", "made")

    def __init__(self, body: bytes, marks: list[Mark], made: Any) -> None:
        """`marks`: of the turns that led to it, its own last. `made`: what the owner wants to know again of
        the body. Neither may hold on to that."""
        at = marks[-1].at
        self.body = body
        self.made = made
        self._marks = marks
        self._prefix = memoryview(body)[:at]
        self._end = body[at:]

    def news(self, body: bytes) -> News | None:
        """The messages that `body` has beyond those of the stem's, or of a turn before it, perhaps none;
        `None` where it is not the same request with other messages, or is to be judged as a whole."""
        marks, end = self._marks, self._end
        turns = len(marks)
        at = len(self._prefix)
        stop = len(body) - len(end)
        if len(body) >= MOST or not body.endswith(end):
            return None
        if stop < at or not body.startswith(self._prefix):
            turns = self._turns_of(body, stop)
            if not turns:
                return None
            at = marks[turns - 1].at
        mark = marks[turns - 1]
        if stop == at:
            return News([], 0, mark, turns)
        new = body[at:stop].lstrip(_BLANKS)
        opened = braces(new)
        if not new.startswith(_COMMA) or mark.braces + opened > MAX_OBJECTS:
            return None
        try:
            if not new.isascii():
                new.decode()
            # No text that closes the list and opens another is a list.
            news = _NEWS.decode(b"[%b]" % new[1:])
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
            return None
        return News(news, opened, mark, turns) if news else None

    def _turns_of(self, body: bytes, stop: int) -> int:
        """How many of the marks `body` has, whose messages end before `stop`."""
        marks, prefix = self._marks, self._prefix
        low, high = 0, len(marks) - 1
        while low < high:
            middle = (low + high + 1) // 2
            at = marks[middle - 1].at
            if at <= stop and body.startswith(prefix[:at]):
                low = middle
            else:
                high = middle - 1
        return low

    def grown(self, body: bytes, news: News, note: Any, made: Any) -> "Stem":
        """The stem that `body` is, which has these news. `note`: what to know again of its turn; `made`: of
        all."""
        mark = Mark(len(body) - len(self._end), news.mark.braces + news.braces, note)
        marks = self._marks[: news.turns]
        if len(marks) >= MARKS:
            # The older, the farther apart: who goes back goes back a turn or two, or to the beginning.
            del marks[1 : MARKS // 2 : 2]
        marks.append(mark)
        return Stem(body, marks, made)


class Stems:
    """The latest bodies of conversations, within a budget of bytes; those used longest ago make room."""

    __slots__ = ("_budget", "_held", "_kept")

    def __init__(self, budget: int) -> None:
        """`budget`: bytes; 0 keeps none."""
        self._budget = budget
        self._held = 0
        self._kept: OrderedDict[SessionKey, Stem] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Bytes of all bodies that are kept."""
        return self._held

    def find(self, session: SessionKey) -> Stem | None:
        """The conversation's last body, if it is kept."""
        return self._kept.get(session)

    def keep(self, session: SessionKey, stem: Stem) -> None:
        """Keep a body in the place of the conversation's last."""
        kept = self._kept
        before = kept.pop(session, None)
        if before is not None:
            self._held -= len(before.body)
        kept[session] = stem
        self._held += len(stem.body)
        while self._held > self._budget:
            _, oldest = kept.popitem(last=False)
            self._held -= len(oldest.body)


def end_of_messages(body: bytes, messages: Sequence[Message]) -> tuple[int, int] | None:
    """Where the list of messages begins, behind its bracket, and where the bracket is that closes it, of a
    body that is valid JSON and has these messages. `None` where it is not found at once.

    The name may be found in an object within the body, too, and a value in another one. Whoever asks has to
    make sure (`is_all`). What is answered is never behind the bracket that closes them: all that precedes the
    last value of the last message takes the room that is left to it at least, and the first value from there
    on that is followed by the two brackets is taken.
    """
    if not messages or not messages[-1]:
        return None
    last = bytes(next(reversed(messages[-1].values())))
    at = 0
    for _ in range(_KEYS):
        at = body.find(_KEY, at)
        if at < 0:
            return None
        at += len(_KEY)
        begin = _behind(body, _behind(body, at, b":"), b"[")
        if begin < 0:
            continue
        end = begin - 2
        for message in messages:
            end += 2  # the brace that closes the one before, and a comma
            if len(message) == 2:
                role, content = message.get("role"), message.get("content")
                if role is not None and content is not None:
                    end += _NAMES + len(role) + len(content)  # the same as below, for nearly all messages
                    continue
            for name, value in message.items():
                end += len(name) + 4 + len(value)  # two quotes, a colon, and the comma or brace before it
        # Escapes in names, and blanks, only make it longer.
        start = end - len(last) - 1
        for _ in range(_LOOKS):
            start = body.find(last, start + 1)
            if start < 0:
                return None
            end = _before(body, _behind(body, start + len(last), b"}"), b"]")
            if end > 0:
                return begin, end
        return None
    return None


def is_all(body: bytes, begin: int, end: int) -> bool:
    """Whether all that stands in between is the list of the body's own messages: with something else in its
    place, that is what the body has. Less than all would leave brackets that nothing opens."""
    try:
        outer = _OUTER.decode(b"%b0%b" % (body[:begin], body[end:]))
    except (msgspec.DecodeError, RecursionError):
        return False
    messages = outer.get("messages")
    return messages is not None and bytes(messages) == b"[0]"


def _before(body: bytes, at: int, what: bytes) -> int:
    """Where `what` is, behind blanks only; below 0 where something else is there."""
    behind = _behind(body, at, what)
    return behind - len(what) if behind > 0 else -1


def _behind(body: bytes, at: int, what: bytes) -> int:
    """Behind `what` and the blanks before it; below 0 where something else is there."""
    if at < 0:
        return -1
    while at < len(body) and body[at] in _BLANKS:
        at += 1
    return at + 1 if body.startswith(what, at) else -1
