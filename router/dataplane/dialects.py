"""Which endpoints have bodies and answers that look alike."""

from enum import StrEnum
from typing import Final


class Dialect(StrEnum):
    """Endpoints whose bodies and answers look alike."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    TOKENIZE = "tokenize"
    """Bodies like chat or completions, answers like neither."""
    POOLING = "pooling"
    """Embeddings, scores and the like: a prompt and no reply."""


_PATHS: Final = {
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/completions": Dialect.COMPLETIONS,
    "/v1/responses": Dialect.RESPONSES,
    "/v1/messages": Dialect.MESSAGES,
    "/v1/messages/count_tokens": Dialect.MESSAGES,
    "/tokenize": Dialect.TOKENIZE,
    "/v1/embeddings": Dialect.POOLING,
    "/v1/rerank": Dialect.POOLING,
    "/v1/score": Dialect.POOLING,
    "/v1/classify": Dialect.POOLING,
    "/v1/pooling": Dialect.POOLING,
}


# What generates an answer, in JSON or in events.
_GENERATE: Final = frozenset({Dialect.CHAT, Dialect.COMPLETIONS, Dialect.MESSAGES, Dialect.RESPONSES})


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a path without its query; `None` where the body's prompt, if any, is not known."""
    return _PATHS.get(path)


def generates(dialect: Dialect | None) -> bool:
    """Whether its answers are tokens, in JSON or in events."""
    return dialect in _GENERATE
