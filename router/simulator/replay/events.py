"""What happens to a fleet in the midst of a replay: replicas that join, drain, come back, or die.

Values only, and how they are written. Knows no fleet.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from router.base.units import parse_duration

What = Literal["add", "drain", "undrain", "kill", "start"]

_FORM: Final = re.compile(r"(add|drain|undrain|kill|start):([^@\s]+)@(\S+)")


class FleetEvent(NamedTuple):
    """One change of one replica."""

    at_s: float
    what: What
    replica: str
    """`add`: a replica that was not there. `kill`: its process is gone, `start`: it is there again, empty."""

    def __str__(self) -> str:
        return f"{self.what}:{self.replica}@{self.at_s:.15g}s"


def parse_event(text: str) -> FleetEvent:
    """`kill:r0@10m` and the like. Raises `ValueError` with an example."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no event; write kill:r0@10m (add, drain, undrain, kill or start)")
    return FleetEvent(parse_duration(match[3]), match[1], match[2])  # type: ignore[arg-type] # of the form


def check_events(events: Iterable[FleetEvent], replicas: Iterable[str]) -> None:
    """Raise `ValueError` where one of them cannot happen to a fleet that begins with these replicas."""
    living, dead = set(replicas), set[str]()
    for event in sorted(events, key=lambda event: event.at_s):
        name, known = event.replica, ", ".join(sorted(living | dead))
        if event.what == "add":
            if name in living or name in dead:
                raise ValueError(f"{event}: there is a replica {name} already")
            living.add(name)
        elif name not in living and name not in dead:
            raise ValueError(f"{event}: there is no replica {name} then, but {known}")
        elif event.what == "kill":
            if name in dead:
                raise ValueError(f"{event}: {name} is dead already")
            living.remove(name)
            dead.add(name)
        elif event.what == "start":
            if name in living:
                raise ValueError(f"{event}: {name} lives; kill it first")
            dead.remove(name)
            living.add(name)
