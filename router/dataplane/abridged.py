"""Takes the lists of token ids out of an answer before it is read: thousands of numbers, of which none is
looked at.

Knows of an answer no more than how such a list is called.
"""

from typing import Final, NamedTuple

_KEY_ENDS: Final = b'token_ids":'
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_PROMPT: Final = b'"prompt_'

# A shorter list is read as quickly as it is taken out.
_LEAST_BYTES: Final = 256

# A list without any of these ends where the first bracket closes.
_OTHERS: Final = (b"[", b"{", b'"')

_MARK: Final = b"~token-ids~"


class Abridged(NamedTuple):
    """An answer, and what was taken out of it."""

    text: bytes
    """Where a list was there is a mark, a text of JSON."""
    lists: tuple[bytes, ...]
    """Each as it was sent, with its brackets. Whether what is between them is sound, nobody has looked."""

    def restored(self, text: bytes) -> bytes:
        """A part of `text` with the lists in the place of their marks."""
        if not self.lists or _MARK not in text:
            return text
        for at, one in enumerate(self.lists):
            text = text.replace(_mark(at), one)
        return text


def abridged(answer: bytes) -> Abridged:
    """The answer without its long lists of token ids. It is sound JSON where that was."""
    if _MARK in answer:
        return Abridged(answer, ())
    lists: list[bytes] = []
    parts: list[bytes] = []
    done = found = 0
    while (found := answer.find(_KEY_ENDS, found)) >= 0:
        key, found = found, found + len(_KEY_ENDS)
        start = found + answer.startswith(b" ", found)
        if not answer.startswith(b"[", start) or not _is_key(answer, key):
            continue
        end = answer.find(b"]", start) + 1
        if end - start < _LEAST_BYTES or any(answer.find(one, start + 1, end) >= 0 for one in _OTHERS):
            continue
        parts += (answer[done:start], _mark(len(lists)))
        lists.append(answer[start:end])
        done = found = end
    if not lists:
        return Abridged(answer, ())
    parts.append(answer[done:])
    return Abridged(b"".join(parts), tuple(lists))


def _is_key(answer: bytes, at: int) -> bool:
    """Whether a whole key ends with what is there. No text can hold its closing quote and go on; but a longer
    key, with a quote in it, can end so."""
    begins = at - len(_PROMPT) if answer.startswith(_PROMPT, max(0, at - len(_PROMPT))) else at - 1
    return begins > 0 and answer[begins] == _QUOTE and answer[begins - 1] != _BACKSLASH


def _mark(at: int) -> bytes:
    return b'"%b%d"' % (_MARK, at)
