"""What sessions do: each a plan, made of a profile and a seed. The same seed makes the same plans.

A plan holds sizes and seeds of texts and not the texts, so that a long session costs nothing before it is
played.
"""

from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from loadtest.agents.profile import Counts, Kind, Profile, draw

# The seeds of texts that several sessions have in common lie apart from those of one session's own.
_SHARED: Final = 1 << 60


_PLACES: Final = ((1, 1), (2, 5), (6, 20), (21, 60))


class Text(NamedTuple):
    """A text: equal seeds and sizes make equal texts."""

    seed: int
    tokens: int


class TurnPlan(NamedTuple):
    """One request of a session."""

    gap_s: float
    """From the answer before it, and the end of the sub-agents that came after that."""
    adds: Text
    """What it brings along."""
    answer_tokens: int
    """At most."""
    agent: "SessionPlan | None"
    """The sub-agent that is started when it is answered."""
    leaves_after: float | None
    """The share of the answer after which the client leaves; `None` = it stays."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A session from its first turn to its last."""

    id: str
    kind: str
    system: Text
    turns: tuple[TurnPlan, ...]
    parent: str | None = None
    """The session that starts it, if it is a sub-agent."""


class Planner:
    """Makes the sessions of a profile, any in any order."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._seed = seed
        self._names = list(profile.kinds)
        self._weights = [profile.kinds[name].weight for name in self._names]

    def session(self, number: int) -> SessionPlan:
        """The one of that number, from 0."""
        rng = Random(f"{self._seed}/{number}")
        (kind,) = rng.choices(self._names, self._weights)
        return self._plan(f"s{self._seed}-{number}", kind, rng, None)

    def _plan(self, name: str, kind_name: str, rng: Random, parent: str | None) -> SessionPlan:
        kind = self._profile.kinds[kind_name]
        own = rng.getrandbits(59)
        common = _SHARED + self._names.index(kind_name) * 1_000_000
        place = rng.randrange(kind.system.different)
        # All sessions that have this system prompt find it of the same length.
        system_tokens = _whole(kind.system.tokens, Random(f"{self._seed}/{kind_name}/system {place}"))
        system = Text(common + 1 + place, system_tokens)
        count = _whole(kind.turns, rng)
        turns = []
        for number in range(count):
            first = number == 0
            seed = own + number
            adds = _whole(kind.opening if first else kind.adds, rng)
            if first and kind.same_opening:
                seed, adds = common, _whole(kind.opening, Random(f"{self._seed}/{kind_name}/opening"))
            gap_s = 0.0 if first else draw(kind.gap, rng)
            answer = _whole(kind.answer, rng)
            leaves = rng.random() if rng.random() < kind.leaves else None
            last = number == count - 1
            agent = None if last else self._agent(f"{name}-{number}", kind, rng, name)
            turns.append(TurnPlan(gap_s, Text(seed, adds), answer, agent, leaves))
        return SessionPlan(name, kind_name, system, tuple(turns), parent)

    def _agent(self, name: str, kind: Kind, rng: Random, parent: str) -> SessionPlan | None:
        if kind.agents is None or rng.random() >= kind.agents.chance:
            return None
        return self._plan(name, kind.agents.kind, rng, parent)


def _whole(from_: Counts | int, rng: Random) -> int:
    return max(1, round(draw(from_, rng)))


def place(number: int) -> str:
    """With which turns of a session one counts, by its number from 0: first ones are cold, late ones long."""
    for first, last in _PLACES:
        if number < last:
            return f"turn {first}" if first == last else f"turns {first}-{last}"
    return f"turns {_PLACES[-1][1] + 1}+"
