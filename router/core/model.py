"""What is learned of one model, whichever replicas serve it."""

from typing import Final

from router.base.ids import SessionKey
from router.core.hashing import hash64
from router.core.ratio import TokenRatio

_TAG: Final = 16
"""Digits that tell a session's models apart."""


class Model:
    """What is learned of one model."""

    __slots__ = ("_key", "_session", "_tag", "ratio")

    def __init__(self, name: str, ratio: float | None = None) -> None:
        """`ratio` = tokens a prompt byte as learned before; `None` = nothing is known."""
        self.ratio = TokenRatio() if ratio is None else TokenRatio(ratio)
        self._tag = f"{hash64(name.encode('utf-8', 'surrogatepass')):0{_TAG}x}"
        # The last one made: it is asked for several times a turn.
        self._session: SessionKey | None = None
        self._key = SessionKey("")

    def key(self, session: SessionKey) -> SessionKey:
        """The key in the session table of a session with this model.

        An agent that uses a large and a small model under one id has two prompts, each with its own home.
        """
        if session != self._session:
            self._session = session
            self._key = session + self._tag  # type: ignore[assignment] # spares a call; the two are a key
        return self._key

    @staticmethod
    def session_of(key: SessionKey) -> SessionKey:
        """The session that a key in the table is of, whatever the model."""
        return SessionKey(key[:-_TAG])
