"""A session's prompt as it grows: from turn to turn the same bytes, and then some more.

A token is a word of three letters and a space: one token of the simulated replica, and of most models' own.
"""

from random import Random
from typing import Final

import orjson

from loadtest.agents.profile import Compaction
from loadtest.agents.sessions import SessionPlan, Text, TurnPlan

_STEMS: Final = (  # noqa: SIM905 - eighty quoted words would be no clearer
    "the and for are but not you all any can had her was one our out day get has him his how man new now "
    "old see two way who boy did its let put say she too use dad mom car red run sun ten top war win yes "
    "yet air arm art bad bag bar bed big bit box bus buy cat cup cut dog dry due ear eat egg end eye far"
).split()

WORDS: Final = tuple(f"{_STEMS[number % len(_STEMS)]} ".encode() for number in range(256))
"""One for each byte."""

# Keeps the seeds of pretended answers apart from those of what is asked.
_PRETENDED: Final = 1 << 61


def words(text: Text) -> bytes:
    """The text, four bytes a token."""
    return b"".join([WORDS[byte] for byte in Random(text.seed).randbytes(text.tokens)])


class Conversation:
    """What has been said so far. Holds each message as the JSON that it is sent as."""

    def __init__(
        self, plan: SessionPlan, *, model: str, compaction: Compaction | None, exact_answers: bool = False
    ) -> None:
        self._compaction = compaction
        self._system = plan.system
        self._summaries = 0
        self._seed = plan.turns[0].adds.seed
        fields = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        if exact_answers:
            fields["ignore_eos"] = True
        self._fields = orjson.dumps(fields)[:-1]
        self._messages: list[bytes] = []
        self.tokens = 0
        """Of the prompt, about."""
        self._begin()

    def ask(self, turn: TurnPlan) -> bytes:
        """The body of the turn's request."""
        if self._compaction is not None and self.tokens + turn.adds.tokens > self._compaction.above:
            self._summaries += 1
            self._begin()
            # Another text for each: a summary is of what was said since.
            self._say(b"user", words(Text(self._seed - self._summaries, self._compaction.to)))
        self._say(b"user", words(turn.adds))
        return b'%b,"max_tokens":%d,"messages":[%b]}' % (
            self._fields,
            turn.answer_tokens,
            b",".join(self._messages),
        )

    def answered(self, text: str) -> None:
        """The answer is part of what comes next."""
        self._say(b"assistant", orjson.dumps(text)[1:-1])

    def pretend(self, turn: TurnPlan) -> None:
        """As if the turn had been asked and answered: a session that is met half-way."""
        self.ask(turn)
        self._say(b"assistant", words(Text(_PRETENDED + turn.adds.seed, turn.answer_tokens)))

    def _begin(self) -> None:
        self._messages.clear()
        self.tokens = 0
        self._say(b"system", words(self._system))

    def _say(self, role: bytes, text: bytes) -> None:
        """`text`: as it stands in JSON."""
        self._messages.append(b'{"role":"%b","content":"%b"}' % (role, text))
        self.tokens += len(text) // 4 + 2
