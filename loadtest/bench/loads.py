"""The work that every proxy is given: the same bytes, connections and sessions for each. Pure."""

import random
from typing import Final, NamedTuple

import orjson

SESSIONS: Final = 97
"""A prime, so that sessions and connections do not fall into step."""

TURNS: Final = 16
"""Turns of a session, each with one message more, before its client compacts the history: to as many messages
as the first of them had, of which none but the system prompt was there before. Of two messages there is one
body only."""

HISTORIES: Final = 2
"""How many a session has before the first is sent again."""

CHUNKS: Final = 50
"""Chunks of a streamed answer."""

STEP_S: Final = 0.020
"""Between two chunks of a stream."""

MESSAGE_BYTES: Final = 1_000
"""One message in the body, its JSON included."""

_PHRASES: Final = (
    "the agent reads file after file",
    "it asks for one more change",
    "until every test of this module passes",
    "then it writes a short note",
    "what was done and why",
    "what should be looked at next",
)


class Load(NamedTuple):
    """One kind of work."""

    name: str
    """Short, for the command line and the results."""
    title: str
    """For the table."""
    body_bytes: int
    """Nominal length of a request's body, the mean over a session's turns."""
    upstreams: int
    connections: int
    """Keep-alive connections, each with one request at a time."""
    requests: int
    """Measured requests, over all connections."""
    streams: bool
    limit: float
    """What ours may cost at most, as a share of the yardstick's processor time a unit."""

    @property
    def units(self) -> int:
        """What the processor time is divided by: requests, or streamed chunks."""
        return self.requests * CHUNKS if self.streams else self.requests

    @property
    def unit(self) -> str:
        return "chunk" if self.streams else "request"

    @property
    def deadline_s(self) -> float:
        """When a measurement is given up: many times what the slowest proxy needs."""
        rounds = -(-self.requests // self.connections)
        return 20.0 + (rounds * CHUNKS * STEP_S * 3 if self.streams else self.requests * 0.02)

    def shortened(self, factor: int) -> "Load":
        """The same load with fewer requests: the whole of each connection's first, at the least."""
        return self._replace(requests=max(self.connections, self.requests // factor))


# Enough requests that the slowest proxy works for half a second and more, so that what a proxy does once a
# second beside (probing, scraping) is in the figure in its true share.
LOADS: Final = (
    Load("2k", "2 KB", 2_000, 2, 16, 10_000, False, 0.5),
    Load("32k", "32 KB", 32_000, 2, 16, 5_000, False, 0.45),
    Load("190k", "190 KB", 190_000, 2, 16, 1_600, False, 0.5),
    Load("stream", "200 streams", 2_000, 2, 200, 600, True, 0.75),
    Load("2k-8", "2 KB, 8 upstreams", 2_000, 8, 16, 10_000, False, 0.6),
)


def session_id(load: Load, session: int) -> str:
    return f"{load.name}-{session}"


Parts = tuple[bytes, memoryview, bytes]
"""A request in three pieces: a session's turns have messages in common, so they share the bytes."""


def requests(load: Load) -> tuple[tuple[Parts, ...], ...]:
    """For each session the requests of its turns, head and body, as the `openai` client would write them."""
    return tuple(_turns(load, session) for session in range(SESSIONS))


def _turns(load: Load, session: int) -> tuple[Parts, ...]:
    counts = _message_counts(load)
    histories = range(HISTORIES if len(counts) > 1 else 1)
    return tuple(part for history in histories for part in _history(load, session, history, counts))


def _history(load: Load, session: int, history: int, counts: range) -> list[Parts]:
    messages = [orjson.dumps(message) for message in _messages(session, history, counts[-1])]
    # The messages come first in a body, and what follows them is the same for all turns.
    begin, end = _around(load)
    longest = memoryview(begin + b",".join(messages))
    turns: list[Parts] = []
    for count in counts:
        at = len(begin) + sum(map(len, messages[:count])) + count - 1
        turns.append((_head(load, session, at + len(end)), longest[:at], end))
    return turns


def _around(load: Load) -> tuple[bytes, bytes]:
    """What stands before the messages of a body, and what behind them."""
    asked: dict[str, object] = {"messages": [], "model": "bench", "max_tokens": 64}
    if load.streams:
        asked["stream"] = True
    begin, bracket, rest = orjson.dumps(asked).partition(b"[")
    return begin + bracket, rest


def _message_counts(load: Load) -> range:
    """How many messages a session's bodies have, the system prompt among them, turn by turn."""
    nominal = max(2, load.body_bytes // MESSAGE_BYTES)
    half = TURNS // 2 if nominal >= TURNS else 0
    return range(nominal - half, nominal + max(1, half))


def _head(load: Load, session: int, length: int) -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        "Accept-Encoding: gzip, deflate\r\n"
        "Connection: keep-alive\r\n"
        "Accept: application/json\r\n"
        "Content-Type: application/json\r\n"
        "User-Agent: OpenAI/Python 2.8.0\r\n"
        f"X-Session-ID: {session_id(load, session)}\r\n"
        "Authorization: Bearer none\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    return head.encode("ascii")


def chat_body(load: Load, session: int, turn: int = 0) -> bytes:
    """A conversation of `MESSAGE_BYTES` a message: one system prompt for all, the rest the session's own."""
    _, messages, end = _turns(load, session)[turn]
    return bytes(messages) + end


def _messages(session: int, history: int, count: int) -> list[dict[str, str]]:
    drawn = session + SESSIONS * history
    lines = _lines(random.Random(drawn))
    choose = random.Random(drawn).choices
    messages = [
        {"role": "system", "content": _text("You are a careful coding agent.", _lines(random.Random(-1)))}
    ]
    for number in range(1, count):
        text = _text(f"Session {session}, history {history}, message {number}.", choose(lines, k=len(lines)))
        messages.append({"role": "user" if number % 2 else "assistant", "content": text})
    return messages


def _lines(rng: random.Random) -> list[str]:
    return [", ".join(rng.choices(_PHRASES, k=3)) for _ in range(16)]


def _text(opening: str, lines: list[str]) -> str:
    """Prose in lines, as long as makes `MESSAGE_BYTES` of JSON."""
    # What JSON adds: the keys and quotes around the text, and a backslash a line.
    room = MESSAGE_BYTES - len('{"role":"user","content":""},')
    text = "\n".join([opening, *lines])
    return text[: room - text[:room].count("\n")]
