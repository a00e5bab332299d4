"""Takes the lists of token ids and of block ids out of an answer before it is read: thousands of numbers, of
which none is looked at.

Knows of an answer no more than how such a list is called.
"""

from typing import Final, NamedTuple

_KEY_ENDS: Final = b'_ids":'
_TOKENS: Final = (b'"prompt_token_ids":', b'"token_ids":')
_BLOCKS: Final = (b'"remote_block_ids":',)
_BACKSLASH: Final = ord("\\")

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
            mark = _mark(at)
            if text == mark:
                return one
            text = text.replace(mark, one)
        return text


def abridged(answer: bytes) -> Abridged:
    """The answer without its long lists of ids. It is sound JSON where that was."""
    lists: list[bytes] = []
    parts: list[bytes] = []
    done = found = 0
    while (found := answer.find(_KEY_ENDS, found)) >= 0:
        found += len(_KEY_ENDS)
        start = found
        if answer[start : start + 1] == b" ":
            start += 1
        opening = answer[start : start + 2]
        if opening == b"[[" and _is_key(answer, found, _BLOCKS):
            # A list for each kind of layers, of which the first goes: there is seldom another.
            start += 1
        elif opening[:1] != b"[" or not _is_key(answer, found, _TOKENS):
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
    text = b"".join(parts)
    if text.count(_MARK) != len(lists):
        # Somebody writes marks. The lists hold none: there is no text in them.
        return Abridged(answer, ())
    return Abridged(text, tuple(lists))


def _is_key(answer: bytes, end: int, keys: tuple[bytes, ...]) -> bool:
    """Whether one of these keys, and no longer one, ends there with its colon. No text can hold its closing
    quote and go on; but a longer key, with a quote in it, can end so."""
    for key in keys:
        begins = end - len(key)
        if begins > 0 and answer[begins:end] == key and answer[begins - 1] != _BACKSLASH:
            return True
    return False


def _mark(at: int) -> bytes:
    return b'"%b%d"' % (_MARK, at)
