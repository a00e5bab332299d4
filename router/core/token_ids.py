"""Token ids of a prompt, held and compared as the text in which replicas tell them; block ids as well.

Nobody here needs an id as a number: two prompts are held against each other, and a reply is put behind its
prompt. To make numbers of thousands of ids, three times a turn, was most of what a paired turn cost.
Knows no replicas, and no JSON but such lists.
"""

from typing import Final

from router.base.common import common_length

_DIGITS: Final = b"0123456789"


class TokenIds:
    """Ids as decimal numbers with a comma behind each. Never changes.

    So equal prompts are equal texts, a text can be put behind another, and each comma of what two texts begin
    with alike is a token that they share.
    """

    __slots__ = ("_count", "_text")

    def __init__(self, text: bytes, count: int) -> None:
        self._text = text
        self._count = count

    @staticmethod
    def read(told: bytes, like: "TokenIds | None" = None) -> "TokenIds | None":
        """From what may be a list in JSON; `None` for anything but one of ids as replicas write them. `like`:
        what they are expected to be, or to begin with: as far as they do, they are not looked through again.
        """
        if len(told) < 2 or not (told.startswith(b"[") and told.endswith(b"]")):
            return None
        text = told if b" " not in told else told.replace(b", ", b",")
        inner = text[1:-1]
        if like is not None and len(inner) + 1 == len(like._text) and like._text.startswith(inner):
            return like
        if not inner:
            return TokenIds(b"", 0) if like is None or like._count else like
        known, count, rest = 0, 0, inner
        if like is not None:
            # What both begin with was sound in the other, up to its last comma.
            known = inner.rfind(b",", 0, common_length(inner, like._text)) + 1
            count = like._count - like._text.count(b",", known)
            rest = inner[known:]
        # Nothing but digits and commas, and digits before and behind each comma, are whole numbers.
        commas = rest.translate(None, _DIGITS)
        if commas.strip(b",") or b",," in rest or rest.startswith(b",") or not rest or rest.endswith(b","):
            return None
        return TokenIds(inner + b",", count + len(commas) + 1)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenIds) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __add__(self, other: "TokenIds") -> "TokenIds":
        return TokenIds(self._text + other._text, self._count + other._count)

    @property
    def told(self) -> bytes:
        """As a list in JSON."""
        return b"[%b]" % self._text[:-1]

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return len(self._text)

    def first(self, count: int) -> "TokenIds":
        """The first so many, or all where there are no more. Made for a `count` that leaves few behind."""
        if count >= self._count:
            return self
        end = len(self._text)
        for _ in range(self._count - count):
            end = self._text.rfind(b",", 0, end - 1) + 1
        return TokenIds(self._text[:end], count)

    def common(self, other: "TokenIds") -> int:
        """How many ids both begin with."""
        one, two = self._text, other._text
        same = common_length(one, two)
        # Prompts mostly differ at their ends, and counting is what takes time here.
        if 2 * same < len(one):
            return one.count(b",", 0, same)
        return self._count - one.count(b",", same)
