"""Events in which KV lies in the wrong place, each with the sessions that it befalls.

A scenario is what is replayed and what happens meanwhile; whatever is measured is of the turns that are asked
for within ten minutes of the event.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from router.core.hashing import hash64
from router.simulator.replay.events import FleetEvent
from router.simulator.replay.trace import SubAgent, Trace, TraceSession, TraceTurn
from router.simulator.replay.workload import Selection

EVENT_AT_S: Final = 1200.0
"""Sessions have come to live somewhere by then."""
MEASURED_S: Final = 600.0

_BLOCK: Final = 64

_GATEWAY_TOKENS: Final = 24_000_000
"""Some 4 TB at the replicas' bytes a token: a few disks."""


class Scenario(NamedTuple):
    """A fleet, its sessions, and what happens."""

    replicas: int
    trace: Trace
    selection: Selection
    events: tuple[FleetEvent, ...]
    gateway_tokens: int = 0
    """What a KV gateway holds, where there are pulls; 0 = there is none."""


def _calm(trace: Trace, seed: int) -> Scenario:
    return Scenario(8, trace, _busy(0.2, seed), ())


def _doubled(trace: Trace, seed: int) -> Scenario:
    added = tuple(FleetEvent(EVENT_AT_S, "add", f"r{number}") for number in range(4, 8))
    return Scenario(4, trace, _busy(0.08, seed), added)


def _drained(trace: Trace, seed: int) -> Scenario:
    return Scenario(8, trace, _busy(0.15, seed), (FleetEvent(EVENT_AT_S, "drain", "r0"),))


def _killed(trace: Trace, seed: int) -> Scenario:
    events = (FleetEvent(EVENT_AT_S, "kill", "r0"), FleetEvent(EVENT_AT_S + 60.0, "start", "r0"))
    return Scenario(8, trace, _busy(0.15, seed), events, _GATEWAY_TOKENS)


def _fan_out(_trace: Trace, seed: int) -> Scenario:
    """Forty sub-agents that all go on from their parent's 100k tokens, one every quarter of a second."""
    parent = _session(f"parent {seed}", 100_032, 1)
    begun = parent.turns[0].fresh
    agents = tuple(
        SubAgent(EVENT_AT_S + number / 4, 1, _session(f"agent {seed}/{number}", 101_120, 4, begun=begun))
        for number in range(40)
    )
    selection = Selection(seed=seed, think_cap_s=2.0 * EVENT_AT_S)
    return Scenario(8, _made(replace(parent, agents=agents)), selection, ())


def _overloaded(_trace: Trace, seed: int) -> Scenario:
    """Ten sessions of 100k tokens that began while nobody else took turns, and are busy from then on."""
    sessions = [
        replace(
            _session(f"long {seed}/{number}", 100_032, 40, pause_s=EVENT_AT_S - 100.0), at_s=10.0 * number
        )
        for number in range(10)
    ]
    others = [f"r{number}" for number in range(1, 8)]
    drains = tuple(FleetEvent(0.0, "drain", name) for name in others)
    back = tuple(FleetEvent(EVENT_AT_S - 300.0, "undrain", name) for name in others)
    selection = Selection(seed=seed, think_cap_s=2.0 * EVENT_AT_S)
    return Scenario(8, _made(*sessions), selection, (*drains, *back))


SCENARIOS: Final[Mapping[str, Callable[[Trace, int], Scenario]]] = {
    "calm": _calm,
    "doubled": _doubled,
    "drained": _drained,
    "killed": _killed,
    "fan-out": _fan_out,
    "overloaded": _overloaded,
}
"""`calm` has no event: it shows that pulls never cost."""


def _busy(rate: float, seed: int) -> Selection:
    return Selection(rate=rate, sessions=200, max_turns=60, think_cap_s=600.0, seed=seed)


def _session(
    name: str, tokens: int, turns: int, *, begun: tuple[int, ...] = (), pause_s: float = 2.0
) -> TraceSession:
    """Turns that each add a thousand tokens, two seconds after the answer before; the second after a pause.

    `begun`: the blocks that its prompts begin with, another's perhaps.
    """
    salt = hash64(name.encode())
    blocks = [*begun]
    made = []
    kept = 0
    for number in range(turns):
        length = tokens + 1024 * number
        while len(blocks) < length // _BLOCK:
            blocks.append(hash64(b"block", (blocks[-1] if blocks else 0) ^ salt))
        think_s = pause_s if number == 1 else 2.0
        made.append(TraceTurn(0.0, length, 200, think_s, kept, tuple(blocks[kept:])))
        kept = len(blocks)
    return TraceSession(name, 0.0, tuple(made), 0)


def _made(*sessions: TraceSession) -> Trace:
    return Trace("made", _BLOCK, sessions, timed=True)
