"""Is a replica well? A state machine fed with probes and the outcomes of turns.

It answers with the transitions it made and never calls back; it knows no sockets and starts no probes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, assert_never


class State(StrEnum):
    """What a replica may be given."""

    STARTING = "starting"
    """Never yet seen well: no traffic."""
    HEALTHY = "healthy"
    """Traffic without limit."""
    PROBATION = "probation"
    """Back after an outage: a share of traffic that grows."""
    DOWN = "down"
    """No traffic."""


@dataclass(frozen=True, slots=True)
class ProbePassed:
    """The replica's health endpoint answered well."""

    needed: bool = False
    """No other replica is left for what it serves: better to have it back now than to wait."""


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The replica's health endpoint answered badly, or not in time."""

    why: str


@dataclass(frozen=True, slots=True)
class TurnSucceeded:
    """A turn ended as it should, or with an error that is the client's."""


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """A turn ended in a way that speaks against the replica."""

    why: str
    decisive: bool
    """The connection was refused or the process died: one is enough."""
    spared: bool = False
    """Too few others are left for it to be taken out for this. Means nothing where it is decisive."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The replica's process is another one than before."""


Event = ProbePassed | ProbeFailed | TurnSucceeded | TurnFailed | Restarted


class Transition(NamedTuple):
    """One change of state; or, from a state to itself, a change that was due and is held back."""

    before: State
    after: State
    why: str


# While a replica returns, its allowance doubles this often: 1, 2, 4, … 32 turns at once, then no limit.
_DOUBLINGS: Final = 6

_FAILURE_HALF_LIFE_S: Final = 10.0


class HealthTracker:
    """The health of one replica.

    An outage ejects the replica for a while that doubles when it follows soon after a return, so that one
    that flaps does less and less harm. Times are monotonic seconds. An event that is older than the last
    change of state is late news about the state before: it changes nothing, but a failure still counts
    among the recent ones.
    """

    __slots__ = (
        "_changed_at",
        "_eject_max_s",
        "_eject_s",
        "_ejected_until",
        "_failures",
        "_failures_at",
        "_next_ejection_s",
        "_probe_fails",
        "_probe_fails_limit",
        "_return_s",
        "_return_started_at",
        "_state",
        "_turn_fails",
        "_turn_fails_limit",
        "_why",
    )

    def __init__(
        self,
        *,
        probe_fails: int = 2,
        turn_fails: int = 3,
        return_s: float = 10.0,
        eject_s: float = 2.0,
        eject_max_s: float = 60.0,
    ) -> None:
        """`probe_fails` and `turn_fails`: failures in a row that bring a healthy replica down.

        `return_s`: how long a return takes. `eject_s`: the first ejection, doubled up to `eject_max_s`;
        as long as the longest ejection spent healthy makes the next one short again.
        """
        self._probe_fails_limit = probe_fails
        self._turn_fails_limit = turn_fails
        self._return_s = return_s
        self._eject_s = eject_s
        self._eject_max_s = eject_max_s

        self._state = State.STARTING
        self._why = "not probed yet"
        self._changed_at = float("-inf")
        self._return_started_at = float("-inf")
        self._ejected_until = float("-inf")
        self._next_ejection_s = eject_s
        self._probe_fails = 0
        self._turn_fails = 0
        self._failures = 0.0
        self._failures_at = float("-inf")

    @property
    def state(self) -> State:
        """As of the last event."""
        return self._state

    @property
    def why(self) -> str:
        """The reason for the state, in words."""
        return self._why

    def admits(self, in_flight: int, now: float) -> bool:
        """May it be given one more turn, on top of `in_flight`?"""
        if self._state is State.HEALTHY:
            return True
        if self._state is not State.PROBATION:
            return False
        elapsed = now - self._return_started_at
        if elapsed >= self._return_s:
            return True
        step = int(max(0.0, elapsed) / self._return_s * _DOUBLINGS)
        return in_flight < 1 << step

    def recent_failures(self, now: float) -> float:
        """Failed turns lately, each counting half as much every 10 s: failing fast must not look idle."""
        age = max(0.0, now - self._failures_at)
        return self._failures * float(0.5 ** (age / _FAILURE_HALF_LIFE_S))

    def observe(self, event: Event, now: float) -> list[Transition]:
        """Take in what happened, and answer with the changes of state that it made, in order."""
        if isinstance(event, TurnFailed):
            self._failures = self.recent_failures(now) + 1.0
            self._failures_at = max(self._failures_at, now)
        if now < self._changed_at:
            return []

        made: list[Transition] = []
        if self._state is State.PROBATION and now - self._return_started_at >= self._return_s:
            made.append(self._enter(State.HEALTHY, f"well for {self._return_s:g} s", now))
        change = self._react(event, now)
        if change is not None:
            made.append(change)
        return made

    def _react(self, event: Event, now: float) -> Transition | None:
        match event:
            case ProbePassed(needed):
                return self._probe_passed(needed, now)
            case ProbeFailed(why):
                return self._probe_failed(why, now)
            case TurnSucceeded():
                if self._turn_fails >= self._turn_fails_limit:
                    self._why = "turns succeed again"
                self._turn_fails = 0
                return None
            case TurnFailed():
                return self._turn_failed(event, now)
            case Restarted():
                self._restarted(now)
                return None
            case _:
                assert_never(event)

    def _probe_passed(self, needed: bool, now: float) -> Transition | None:
        self._probe_fails = 0
        if self._state is State.STARTING:
            return self._enter(State.HEALTHY, "first probe passed", now)
        if self._state is State.DOWN and (needed or now >= self._ejected_until):
            early = now < self._ejected_until
            self._return_started_at = now
            return self._enter(
                State.PROBATION, "probe passed, and no other is left" if early else "probe passed", now
            )
        return None

    def _probe_failed(self, why: str, now: float) -> Transition | None:
        if self._state is State.PROBATION:
            return self._eject(f"probe failed while returning: {why}", now)
        if self._state is State.HEALTHY:
            self._probe_fails += 1
            if self._probe_fails >= self._probe_fails_limit:
                return self._eject(f"probes failed in a row ({self._probe_fails}): {why}", now)
            return None
        self._why = f"probe failed: {why}"
        return None

    def _turn_failed(self, event: TurnFailed, now: float) -> Transition | None:
        if self._state is not State.HEALTHY and self._state is not State.PROBATION:
            # Down or starting: turns that were under way when it went down are part of the same outage.
            return None
        self._turn_fails += 1
        if event.decisive:
            returning = " while returning" if self._state is State.PROBATION else ""
            return self._eject(f"turn failed{returning}: {event.why}", now)
        # One error is not enough even of a replica that returns: it may be the prompt's fault.
        if self._turn_fails < self._turn_fails_limit:
            return None
        why = f"turns failed in a row ({self._turn_fails}): {event.why}"
        if not event.spared:
            return self._eject(why, now)
        if self._turn_fails > self._turn_fails_limit:
            return None
        self._why = f"{why}; kept, as too few others are left"
        return Transition(self._state, self._state, self._why)

    def _restarted(self, now: float) -> None:
        """A new process does not answer for what the old one did, but it is no further than its start."""
        self._probe_fails = 0
        self._turn_fails = 0
        self._ejected_until = float("-inf")
        if self._state is State.PROBATION:
            self._return_started_at = now

    def _eject(self, why: str, now: float) -> Transition:
        if self._state is State.HEALTHY and now - self._changed_at >= self._eject_max_s:
            self._next_ejection_s = self._eject_s
        self._ejected_until = now + self._next_ejection_s
        self._next_ejection_s = min(self._eject_max_s, 2.0 * self._next_ejection_s)
        return self._enter(State.DOWN, why, now)

    def _enter(self, state: State, why: str, now: float) -> Transition:
        change = Transition(self._state, state, why)
        self._state = state
        self._why = why
        self._changed_at = now
        self._probe_fails = 0
        self._turn_fails = 0
        return change
