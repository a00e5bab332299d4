"""What is learned of one model, whichever replicas serve it, and of all models of a fleet."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from router.base.ids import SessionKey
from router.core.hashing import hash64
from router.core.ratio import TokenRatio

_TAG: Final = 16
"""Digits that tell a session's models apart."""

MOST_MODELS: Final = 1024
"""Models a fleet serves, adapters included."""


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


class Models:
    """What is learned of each. Beyond `most`, those used longest ago are learned again."""

    __slots__ = ("_models", "most")

    def __init__(self, most: int = MOST_MODELS) -> None:
        self._models: OrderedDict[str, Model] = OrderedDict()
        self.most = most

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def __iter__(self) -> Iterator[str]:
        """By name, the one used longest ago first."""
        return iter(self._models)

    def of(self, name: str) -> Model:
        """What is known of a model, or one of which nothing is; asking for it is not learning of it."""
        return self._models.get(name) or Model(name)

    def used(self, name: str, model: Model) -> None:
        """A replica has a turn for it."""
        if name not in self._models:
            self._models[name] = model
            if len(self._models) > self.most:
                self._models.popitem(last=False)
        elif len(self._models) == self.most:
            # Only then does it matter which was used last.
            self._models.move_to_end(name)

    def keys(self, session: SessionKey) -> list[SessionKey]:
        """A session's key with each model."""
        return [model.key(session) for model in self._models.values()]

    def ratios(self) -> tuple[tuple[str, float], ...]:
        """Tokens a prompt byte, by model."""
        return tuple((name, model.ratio.value) for name, model in self._models.items())

    def recall(self, ratios: Iterable[tuple[str, float]]) -> None:
        """Take in what was learned before, of models that nothing is known of."""
        for name, ratio in ratios:
            self._models.setdefault(name, Model(name, ratio))
