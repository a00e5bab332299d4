"""What happens to a fleet in the midst of a replay: replicas that join, drain, come back, or die.

Values only, and how they are written. Knows no fleet.
"""

import re
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


def parse_event(text: str) -> FleetEvent:
    """`kill:r0@10m` and the like. Raises `ValueError` with an example."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no event; write kill:r0@10m (add, drain, undrain, kill or start)")
    return FleetEvent(parse_duration(match[3]), match[1], match[2])  # type: ignore[arg-type] # of the form
