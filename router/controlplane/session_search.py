"""Finds sessions for people: a page of those that match, in the order asked for.

Looks at a bounded number, the latest ones, so that a search never holds up turns for long.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from router.core.session import Session

MOST_SEARCHED: Final = 20_000
"""Some five milliseconds."""

ORDERS: Final[Mapping[str, Callable[[Session], int]]] = {
    "recent": lambda _: 0,
    "tokens": lambda session: session.resident_tokens,
    "turns": lambda session: session.turns,
    "moves": lambda session: session.moves,
}
"""What a page may be ordered by, the most first; what is equal stays in order of the latest turn."""


class Search(NamedTuple):
    """What is looked for."""

    text: str = ""
    """A part of the key, the model or the tenant, in any case; "" = any."""
    home: str | None = None
    """The replica that sessions live on; `None` = any."""
    order: str = "recent"
    """One of `ORDERS`."""
    offset: int = 0
    limit: int = 100


class Found(NamedTuple):
    """A page, and how many there are."""

    sessions: Sequence[Session]
    matching: int
    """Of those that were looked at."""
    searched: int


def find_sessions(latest: Callable[[int], Sequence[Session]], search: Search) -> Found:
    """`latest` gives so many sessions at most, the newest first."""
    everything = not search.text and search.home is None and search.order == "recent"
    most = min(MOST_SEARCHED, search.offset + search.limit) if everything else MOST_SEARCHED
    sessions = latest(most)
    searched = len(sessions)
    if search.home is not None:
        sessions = [session for session in sessions if session.home == search.home]
    if search.text:
        text = search.text.casefold()
        sessions = [
            session
            for session in sessions
            if text in session.key or text in session.model.casefold() or text in session.tenant.casefold()
        ]
    if search.order != "recent":
        sessions = sorted(sessions, key=ORDERS[search.order], reverse=True)
    page = sessions[search.offset : search.offset + search.limit]
    return Found(page, len(sessions), searched)
