"""Traces by hand."""

from itertools import count

import pytest

from router.simulator.replay.trace import SubAgent, Trace, TraceSession, TraceTurn


class Maker:
    """Makes sessions whose blocks are no other's."""

    def __init__(self) -> None:
        self._blocks = count(1)

    def session(self, name="s", *turns, at=0.0, lead=0, agents=()) -> TraceSession:
        """Turns as (prompt tokens, kept blocks, output tokens, think)."""
        made = []
        for number, (tokens, kept, output, think) in enumerate(turns):
            fresh = tuple(next(self._blocks) for _ in range(tokens // 64 - kept))
            made.append(TraceTurn(float(number * 100), tokens, output, think, kept, fresh))
        return TraceSession(name, at, tuple(made), lead, tuple(agents))

    def agent(self, at, after, session) -> SubAgent:
        return SubAgent(at, after, session)

    def trace(self, *sessions) -> Trace:
        return Trace("made", 64, sessions, timed=True)


@pytest.fixture
def make() -> Maker:
    return Maker()
