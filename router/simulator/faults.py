"""Faults on demand: what a test or an operator asks a simulated replica to do wrong.

A fault is written `kind`, `kind:argument` or `kind:argument:argument`:
`hang`, `hold`, `close`, `garbage`, `die`, `refuse:SECONDS`, `cut:CHUNKS`, `slow:SECONDS`,
`status:CODE[:RETRY_AFTER]`.
Seconds are real ones, whatever the time scale.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from router.base.errors import HomingError


class Kind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"
    """Stop listening for a time and drop connections on which nothing is in flight."""
    HANG = "hang"
    """Read the request and never answer."""
    HOLD = "hold"
    """Read the request and answer it once the faults are cleared."""
    CLOSE = "close"
    """Close the connection before the head."""
    GARBAGE = "garbage"
    """Bytes that are no HTTP, then close."""
    CUT = "cut"
    """Close the connection after so many chunks of the body."""
    SLOW = "slow"
    """Wait so long ahead of each chunk of the body."""
    STATUS = "status"
    """Answer with an error."""
    DIE = "die"
    """Close every connection and stop listening, without an end to anything."""


class BadFault(HomingError):
    """A fault that cannot be understood."""


class Fault(NamedTuple):
    """One fault, parsed."""

    kind: Kind
    amount: float = 0.0
    """Seconds, chunks or the status, as the kind has it."""
    retry_after: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `BadFault` with what would have been right."""
        name, *arguments = text.strip().split(":")
        try:
            kind = Kind(name)
        except ValueError:
            raise BadFault(f"unknown fault {name!r}: one of {', '.join(Kind)}") from None
        wanted = {Kind.REFUSE: (1, 1), Kind.CUT: (1, 1), Kind.SLOW: (1, 1), Kind.STATUS: (1, 2)}.get(
            kind, (0, 0)
        )
        if not wanted[0] <= len(arguments) <= wanted[1]:
            raise BadFault(f"fault {text!r}: {kind} takes {wanted[0]} to {wanted[1]} arguments")
        try:
            amount = float(arguments[0]) if arguments else 0.0
        except ValueError:
            raise BadFault(f"fault {text!r}: {arguments[0]!r} is not a number") from None
        low, high = (400, 599) if kind is Kind.STATUS else (0, 3600)
        if not low <= amount <= high:
            raise BadFault(f"fault {text!r}: {arguments[0]} is not between {low} and {high}")
        return cls(kind, amount, arguments[1] if len(arguments) > 1 else None)


@dataclass(slots=True)
class Armed:
    """A fault that waits for requests."""

    fault: Fault
    left: int | None
    """For so many requests; `None` = until cleared."""
    path: str
    """Prefix of the paths that it is for."""


class FaultPlan:
    """The faults in force, in the order they were armed: the first whose path fits is it."""

    def __init__(self) -> None:
        self._armed: list[Armed] = []
        self._cleared = asyncio.Event()

    def arm(self, fault: Fault, *, count: int | None = None, path: str = "/") -> None:
        if count is not None and count < 1:
            raise BadFault(f"count: must be at least 1, not {count}")
        self._armed.append(Armed(fault, count, path))

    def clear(self) -> None:
        self._armed.clear()
        cleared, self._cleared = self._cleared, asyncio.Event()
        cleared.set()

    async def cleared(self) -> None:
        """Wait for the next `clear`."""
        await self._cleared.wait()

    def take(self, path: str) -> Fault | None:
        """The fault for a request to `path`, used up by one."""
        for armed in self._armed:
            if path.startswith(armed.path):
                if armed.left is not None:
                    armed.left -= 1
                    if armed.left == 0:
                        self._armed.remove(armed)
                return armed.fault
        return None
