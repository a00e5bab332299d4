"""Profiles: YAML files that say which sessions there are and when they come. Knows no client and no clock."""

from collections.abc import Mapping
from math import exp, log
from pathlib import Path
from random import Random
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from router.base.errors import SettingsError
from router.settings.document import read_document
from router.settings.explain import nearest
from router.settings.fields import Duration, DurationOrZero, Model, Name, Size
from router.settings.load import checked, lines_of

FOLDER: Final = Path(__file__).parents[1] / "profiles"
"""Where the shipped profiles are."""

# How many standard deviations the 90th of a hundred lies above the middle.
_P90: Final = 1.2815515655446004

Count = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]


class Counts(Model):
    """Numbers that differ, log-normally: half are below `p50`, nine of ten below `p90`, none above `max`."""

    p50: Count
    p90: Count
    max: Count

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.p50 <= self.p90 <= self.max:
            raise ValueError(f"p50, p90 and max must not fall: {self.p50}, {self.p90}, {self.max}")
        return self


class Times(Model):
    """Times that differ so."""

    p50: Duration
    p90: Duration
    max: Duration

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.p50 <= self.p90 <= self.max:
            raise ValueError(f"p50, p90 and max must not fall: {self.p50:g}, {self.p90:g}, {self.max:g} s")
        return self


def draw(from_: "Counts | Times | float", rng: Random) -> float:
    """One of them; a plain number is always that one."""
    if not isinstance(from_, Counts | Times):
        return from_
    value = from_.p50 * exp(rng.gauss(0.0, 1.0) * log(from_.p90 / from_.p50) / _P90)
    return min(value, from_.max)


class System(Model):
    """Tools and system prompt: what sessions begin with alike."""

    tokens: Counts | Count
    different: Count = 1
    """So many there are; each session has one of them."""


class Compaction(Model):
    """What an agent does whose prompt grows too long: it goes on from a summary."""

    above: Count
    """Prompt tokens beyond which the next turn begins anew."""
    to: Count
    """Tokens of the summary that takes the place of all but the system prompt."""


class SubAgents(Model):
    """Sessions that another one starts, and waits for."""

    chance: Share
    """Of each turn that it is followed by one."""
    kind: Name
    """Of the profile's kinds, what the sub-agent is."""


class Kind(Model):
    """One kind of session."""

    weight: Annotated[float, Field(ge=0)] = 1.0
    """Its share of the sessions. 0: only sub-agents are of this kind."""
    system: System
    opening: Counts | Count
    """Tokens of the first message."""
    same_opening: bool = False
    """Whether all sessions open with the same message."""
    turns: Counts | Count
    adds: Counts | Count = 200
    """Tokens that each further turn brings along: what a tool returned, or what somebody wrote."""
    answer: Counts | Count
    """Tokens at most of each answer."""
    gap: Times | DurationOrZero
    """From an answer to the next turn."""
    compaction: Compaction | None = None
    agents: SubAgents | None = None
    reads: Size | None = None
    """Bytes a second at which the client reads answers; `null` = as they come."""
    leaves: Share = 0.0
    """Chance of each turn that the client leaves before the answer is complete."""


class Stage(Model):
    """From when on so many users are there."""

    at: DurationOrZero
    users: Annotated[int, Field(ge=0)]
    a_second: Annotated[float, Field(gt=0)] = 10.0
    """How many come, or go, a second until it is so."""


class Profile(Model):
    """A profile file."""

    version: Literal[1]
    about: str
    """A line for people."""
    exact_answers: bool = False
    """Whether answers are as long as asked for, by vLLM's `ignore_eos`, which other servers may refuse."""
    header: Name = "x-session-id"
    """In which sessions are named."""
    kinds: dict[Name, Kind] = Field(min_length=1)
    stages: list[Stage] = Field(default_factory=list)
    """When users come and go; empty = whoever starts the test says how many there are."""
    ends: Duration | None = None
    """When the test is over; only with `stages`."""

    @model_validator(mode="after")
    def _kinds_are_there(self) -> Self:
        for name, kind in self.kinds.items():
            if kind.agents is None:
                continue
            if kind.agents.kind not in self.kinds:
                known = nearest(kind.agents.kind, self.kinds)
                raise ValueError(f"kinds.{name}.agents.kind: no kind '{kind.agents.kind}'{known}")
            if self.kinds[kind.agents.kind].agents is not None:
                raise ValueError(
                    f"kinds.{name}.agents.kind: '{kind.agents.kind}' starts sub-agents of its own"
                )
        if not any(kind.weight for kind in self.kinds.values()):
            raise ValueError("kinds: at least one needs a weight above 0")
        return self

    @model_validator(mode="after")
    def _stages_in_order(self) -> Self:
        starts = [stage.at for stage in self.stages]
        if starts != sorted(set(starts)):
            raise ValueError("stages: each must begin after the one before it")
        if (self.ends is not None) != bool(self.stages):
            raise ValueError("stages and ends: neither goes without the other")
        if self.ends is not None and self.ends <= starts[-1]:
            raise ValueError("ends: must lie behind the last stage")
        return self


def shipped() -> Mapping[str, Path]:
    """The shipped profiles by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def load_profile(name_or_path: str) -> Profile:
    """A shipped profile by its name, or one from a file. Raises `SettingsError` with every fault, each with
    its file and line."""
    path = shipped().get(name_or_path)
    if path is None:
        if not name_or_path.endswith((".yaml", ".yml")):
            raise SettingsError([f"no profile '{name_or_path}'{nearest(name_or_path, shipped())}"])
        path = Path(name_or_path)
    profile, faults = checked(Profile, read_document(path, name_or_path))
    if profile is None or faults:
        raise SettingsError(lines_of(faults))
    return profile
