"""What is asked: sessions that call tools, questions under one long system prompt, and others.

Equal seeds give equal texts in equal order. A token is so many bytes as who answers takes for one.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

TOKEN_BYTES: Final = 4
"""A simulated replica's."""

SYSTEM_TOKENS: Final = 4000
QUESTION_TOKENS: Final = 40
AGENT_TOKENS: Final = 1900
"""Of an agent's first prompt."""
TURN_TOKENS: Final = 420
"""By which each further prompt is longer, its answer included."""
TURNS: Final = 8
"""Prompts of 1,900 to 4,840 tokens, 27,000 together."""
ANSWER_TOKENS: Final = 40
TOOL_S: Final = 10.0
"""What a tool takes between two turns, on average; no two take the same."""

SHARES: Final = {"system": 0.2, "agent": 0.4, "question": 0.4}
"""Of the requests."""


@dataclass(slots=True)
class Item:
    """One request, or the turns of one session."""

    kind: str
    session: str
    """Empty for a single question."""
    opening: list[dict[str, str]]
    additions: list[str] = field(default_factory=list)
    """What tools say before each further turn."""
    tools_s: list[float] = field(default_factory=list)
    """How long each of them takes."""


def workload(requests: int, seed: int, token_bytes: int = TOKEN_BYTES, framing: int = 0) -> list[Item]:
    """Items of so many requests together, shuffled. `framing`: the tokens that a chat template puts around a
    message of the user and its answer, by which the texts are shorter."""
    chance = Random(seed)
    system = text(chance, SYSTEM_TOKENS, token_bytes)
    counts = {kind: round(requests * share) for kind, share in SHARES.items()}
    items = [
        Item(
            "system",
            "",
            [
                _message("system", system),
                _message("user", text(chance, QUESTION_TOKENS - framing, token_bytes)),
            ],
        )
        for _ in range(counts["system"])
    ]
    items += [
        agent(chance, f"agent-{number}", token_bytes, framing) for number in range(counts["agent"] // TURNS)
    ]
    items += [
        Item("question", "", [_message("user", text(chance, QUESTION_TOKENS - framing, token_bytes))])
        for _ in range(counts["question"])
    ]
    chance.shuffle(items)
    return items


def agent(chance: Random, session: str, token_bytes: int = TOKEN_BYTES, framing: int = 0) -> Item:
    """An agent's session. `framing`: as in `workload`."""
    opening = [
        _message("system", text(chance, AGENT_TOKENS // 2, token_bytes)),
        _message("user", text(chance, AGENT_TOKENS // 2 - framing, token_bytes)),
    ]
    new = TURN_TOKENS - ANSWER_TOKENS - framing
    added = [text(chance, new, token_bytes) for _ in range(TURNS - 1)]
    tools_s = [chance.expovariate(1.0 / TOOL_S) for _ in added]
    return Item("agent", session, opening, added, tools_s)


def text(chance: Random, tokens: int, token_bytes: int) -> str:
    """So many tokens that nobody else has."""
    return chance.randbytes(tokens * token_bytes // 2).hex()


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
