"""Watches whether each turn's prompt goes on from its session's last one, and says why where it does not.

Keeps outlines, which are small and no text, within a budget of bytes; the session not heard of for longest
goes first. Decides nothing: routing is the same without it.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from router.base.common import common_length
from router.base.ids import SessionKey
from router.base.values import Value
from router.core.breaks import Break, Cause, find_difference
from router.core.decide import Decision
from router.core.model import Model
from router.core.outline import (
    CONTINUES,
    PROMPT,
    Describe,
    Drawing,
    Outline,
    Part,
    add_low_32,
    low_32,
    opening_shape,
)
from router.core.request import Chain, Turn

# A session whose agents take turns under one id has so many conversations at once; those of more look broken.
_CONVERSATIONS: Final = 4

# Segments of one conversation that are kept: some four million tokens, or as many messages.
_MOST_SEGMENTS: Final = 4096

# What a session costs besides its segments, and one of those, in bytes: measured by the test of this module.
_SESSION_BYTES: Final = 1500
_SEGMENT_BYTES: Final = 16

_MOST_OPENINGS: Final = 8192


class Told(Value):
    """A turn, as far as watching it is concerned."""

    __match_args__ = (
        "key",
        "chain",
        "derived",
        "prompt_tokens",
        "cached_tokens",
        "now",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        key: SessionKey,
        chain: Chain,
        derived: bool,
        prompt_tokens: int,
        cached_tokens: int,
        now: float,
    ) -> None:
        self.key: Final = key
        """The session's, with its model."""
        self.chain: Final = chain
        self.derived: Final = derived
        """The session has no id of its own but the conversation's opening."""
        self.prompt_tokens: Final = prompt_tokens
        self.cached_tokens: Final = cached_tokens
        """Expected to be found, whatever the chain."""
        self.now: Final = now


def told(turn: Turn, decision: Decision, model: Model) -> Told | None:
    """What to tell of a turn; `None` where nothing can be said: it has no session, computes no prompt, or
    goes on from a stored response, of which the body holds only what is new."""
    if turn.session is None or turn.response_id is not None or not turn.computes or not turn.chain.hashes:
        return None
    return Told(
        model.key(turn.session),
        turn.chain,
        turn.session_source == "derived",
        decision.prompt_tokens,
        decision.cached_tokens,
        decision.at,
    )


@dataclass(slots=True)
class _Conversation:
    """A prompt as it was last seen."""

    final: int
    """Leading segments that do not grow: the last stretch of a prompt that is no conversation may."""
    tail: int
    """The chain's hash of the last of them."""
    end: int
    """Prompt bytes of the whole."""
    outline: Outline
    links: "array[int]"
    """32 bits of the chain's hash of each segment in the outline."""

    def leads_to(self, hashes: tuple[int, ...]) -> bool:
        """Whether a chain goes on from it."""
        return len(hashes) >= self.final and hashes[self.final - 1] == self.tail


@dataclass(slots=True)
class _Watched:
    """A session."""

    conversations: list[_Conversation]
    """The one with the latest turn first."""
    last: Break | None = None
    breaks: dict[Cause, int] = field(default_factory=dict)


class ChainWatch:
    """Told of every turn once it is chosen, before its prompt is let go."""

    __slots__ = ("_bytes", "_max_bytes", "_openings", "_sessions", "breaks", "lost_tokens", "turns")

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sessions: OrderedDict[SessionKey, _Watched] = OrderedDict()
        self._openings: OrderedDict[bytes, SessionKey] = OrderedDict()
        """The latest derived session by what its opening has in common with those that differ in digits."""
        self.turns = 0
        """Turns that had one to go on from. Read-only, as are the next two."""
        self.breaks: dict[tuple[Part, Cause], int] = {}
        self.lost_tokens: dict[tuple[Part, Cause], int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def turn(self, told: Told, describe: Describe) -> Break | None:
        """A session's next turn; why it does not go on from one before it, where it does not."""
        hashes = told.chain.hashes
        watched = self._sessions.get(told.key)
        if watched is not None:
            for conversation in watched.conversations:
                if conversation.leads_to(hashes):
                    self.turns += 1
                    self._sessions.move_to_end(told.key)
                    self._go_on(watched, conversation, told.chain, describe)
                    return None
        links = low_32(hashes)
        outline = _whole(links, describe, watched)
        if outline is None:
            return None
        found = self._find(told, outline)
        broken: Break | None = None
        if found is None:
            watched = _Watched([])
            self._bytes += _SESSION_BYTES
        else:
            under, before, broken = found
            # A derived session that lost its key goes on under the new one.
            watched = self._sessions.pop(under)
            if broken.cause is not Cause.OTHER:
                self._drop(watched, before)
            self._count(watched, broken)
        self._sessions[told.key] = watched
        self._begin(watched, told, outline, links)
        return broken

    def look(self, told: Told, describe: Describe) -> Break | None:
        """What `turn` would answer. Changes nothing."""
        watched = self._sessions.get(told.key)
        if watched is not None and any(each.leads_to(told.chain.hashes) for each in watched.conversations):
            return None
        outline = _whole(low_32(told.chain.hashes), describe, watched)
        found = self._find(told, outline) if outline is not None else None
        return found[2] if found is not None else None

    def last(self, key: SessionKey) -> Break | None:
        """A session's last break; `None` where there was none or it is no longer kept."""
        watched = self._sessions.get(key)
        return watched.last if watched is not None else None

    def latest(self, most: int) -> list[tuple[SessionKey, Break]]:
        """Sessions whose chain broke, the one with the latest break first. Looks at all: for people."""
        broken = [(key, each.last) for key, each in self._sessions.items() if each.last is not None]
        return nlargest(most, broken, key=lambda one: one[1].at)

    def counts(self, key: SessionKey) -> Mapping[Cause, int]:
        """A session's breaks by cause."""
        watched = self._sessions.get(key)
        return watched.breaks if watched is not None else {}

    def _find(self, told: Told, outline: Outline) -> tuple[SessionKey, _Conversation, Break] | None:
        """The session that a turn is of, the conversation of it that the turn shares most with, and how it
        departs from that; `None` where nothing is known of the session."""
        key: SessionKey | None = told.key
        watched = self._sessions.get(told.key)
        rederived = watched is None
        if rederived and told.derived:
            key = self._openings.get(opening_shape(outline, told.chain.opening))
            watched = self._sessions.get(key) if key is not None else None
        if watched is None or key is None:
            return None
        before = max(watched.conversations, key=lambda each: each.outline.common(outline))
        if rederived and not _goes_on_behind(before.outline, outline, told.chain.opening):
            return None
        part, cause, message, role, common = find_difference(before.outline, outline)
        ends = told.chain.ends
        ratio = told.prompt_tokens / max(1, ends[-1])
        kept = max(told.cached_tokens, int(ratio * ends[common - 1]) if common else 0)
        lost = max(0, int(ratio * min(before.end, ends[-1])) - kept)
        return key, before, Break(part, cause, message, role, lost, rederived, told.now)

    def _go_on(
        self, watched: _Watched, conversation: _Conversation, chain: Chain, describe: Describe
    ) -> None:
        """The prompt has grown, or is the same again."""
        if conversation is not watched.conversations[0]:
            watched.conversations.remove(conversation)
            watched.conversations.insert(0, conversation)
        outline, count = conversation.outline, len(chain.hashes)
        known = min(len(outline), conversation.final)
        if known == conversation.final and known < min(count, _MOST_SEGMENTS):
            added = describe(known)
            if added is not None and len(added) == count - known:
                before = len(outline)
                outline.cut(known)
                outline.extend(added)
                outline.cut(_MOST_SEGMENTS)
                del conversation.links[known:]
                add_low_32(conversation.links, chain.hashes[known : len(outline)])
                self._bytes += _SEGMENT_BYTES * (len(outline) - before)
                self._shrink()
        if count > conversation.final or chain.ends[-1] > conversation.end:
            _settle(conversation, chain)

    def _begin(self, watched: _Watched, told: Told, outline: Outline, links: "array[int]") -> None:
        """A prompt that goes on from none, as the session's latest. `links`: of all its segments."""
        if told.derived:
            self._openings[opening_shape(outline, told.chain.opening)] = told.key
            if len(self._openings) > _MOST_OPENINGS:
                self._openings.popitem(last=False)
        outline.cut(_MOST_SEGMENTS)
        conversation = _Conversation(0, 0, 0, outline, links[: len(outline)])
        _settle(conversation, told.chain)
        watched.conversations.insert(0, conversation)
        self._bytes += _SEGMENT_BYTES * len(outline)
        if len(watched.conversations) > _CONVERSATIONS:
            self._drop(watched, watched.conversations[-1])
        self._shrink()

    def _count(self, watched: _Watched, broken: Break) -> None:
        self.turns += 1
        watched.last = broken
        watched.breaks[broken.cause] = watched.breaks.get(broken.cause, 0) + 1
        labels = broken.part, broken.cause
        self.breaks[labels] = self.breaks.get(labels, 0) + 1
        self.lost_tokens[labels] = self.lost_tokens.get(labels, 0) + broken.lost_tokens

    def _drop(self, watched: _Watched, conversation: _Conversation) -> None:
        watched.conversations.remove(conversation)
        self._bytes -= _SEGMENT_BYTES * len(conversation.outline)

    def _shrink(self) -> None:
        """Forget the sessions not heard of for longest, as many as the budget takes."""
        while self._bytes > self._max_bytes and len(self._sessions) > 1:
            _, gone = self._sessions.popitem(last=False)
            segments = sum(len(each.outline) for each in gone.conversations)
            self._bytes -= _SESSION_BYTES + _SEGMENT_BYTES * segments


def _whole(links: "array[int]", describe: Describe, watched: _Watched | None) -> Outline | None:
    """The outline of a whole prompt, whose chain has these links; `None` where there is none that fits it.

    What a conversation of the session has in common with it is taken from there: a compaction, or an edit far
    down, leaves most of a prompt as it was.
    """
    count = len(links)
    known, common = Drawing().outline(), 0
    if watched is not None:
        sought = links.tobytes()
        for conversation in watched.conversations:
            shared = common_length(conversation.links.tobytes(), sought) // links.itemsize
            if shared > common:
                known, common = conversation.outline, shared
    # A payload's first segment tells of all of it, and the last common one may go on in another way: in the
    # conversation, which can be seen, or in the prompt, which can be seen once that is described from there.
    if common and not known.goes_on_at(common) and len(known) < _MOST_SEGMENTS:
        added = describe(common) if common < count else Drawing().outline()
        if added is not None and len(added) == count - common and not added.goes_on_at(0):
            return known.followed_by(added, common)
    start = known.beginning(common - 1) if common else 0
    if start:
        added = describe(start)
        if added is not None and len(added) == count - start:
            return known.followed_by(added, start)
    outline = describe(0)
    return outline if outline is not None and len(outline) == count else None


def _settle(conversation: _Conversation, chain: Chain) -> None:
    """The conversation's prompt is this one."""
    tags = conversation.outline.tags
    count = len(chain.hashes)
    grows = count == len(tags) and tags[-1] & ~CONTINUES == PROMPT
    conversation.final = count - 1 if grows else count
    conversation.tail = chain.hashes[conversation.final - 1]
    conversation.end = chain.ends[-1]


def _goes_on_behind(before: Outline, after: Outline, opening: int) -> bool:
    """Whether a prompt with another opening is of the same conversation: it has the messages that followed
    the old one, or may have."""
    behind = after.own[opening : opening + 1]
    return bool(behind) and before.own[opening : opening + 1] in (behind, behind[:0])
