"""What is raced: the fleet, how many sessions there are at once, and what happens to a replica meanwhile."""

from dataclasses import dataclass, replace
from typing import Final, Literal

from router.simulator.settings import ReplicaSettings

REPLICAS: Final = 4

WARM_S: Final = 100.0
"""Simulated seconds ahead of what is measured: sessions come in one after the other, half-way through."""

MEASURED_S: Final = 300.0

SLOWER: Final = 4.0
"""How many times slower a slowed replica is."""

# What a single GPU of 80 GiB does with a model of middle size, but for the KV: a fifth, as the sessions are.
REPLICA: Final = ReplicaSettings(
    kv_blocks=18_751,
    prefill_tps=8_000.0,
    decode_tps=25.0,
    prefill_double_tokens=60_000.0,
    decode_double_seqs=64.0,
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a replica; times are simulated seconds since the measuring began."""

    at_s: float
    what: Literal["slow", "restore", "kill", "start", "add"]
    replica: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One course."""

    name: str
    about: str
    sessions: int
    """At once."""
    events: tuple[Event, ...] = ()
    replicas: int = REPLICAS
    """At the start."""
    replica: ReplicaSettings = REPLICA


_MIDDLE: Final = 48

SCENARIOS: Final = {
    one.name: one
    for one in (
        Scenario("light", "24 sessions at once", 24),
        Scenario("medium", f"{_MIDDLE} sessions at once", _MIDDLE),
        Scenario("heavy", "80 sessions at once", 80),
        Scenario(
            "slowed",
            f"{_MIDDLE} sessions; one replica is {SLOWER:g} times slower from 75 to 200 s",
            _MIDDLE,
            (Event(75.0, "slow", 1), Event(200.0, "restore", 1)),
        ),
        Scenario(
            "killed",
            f"{_MIDDLE} sessions; one replica is killed at 75 s and back, empty, at 150 s",
            _MIDDLE,
            (Event(75.0, "kill", 1), Event(150.0, "start", 1)),
        ),
        Scenario(
            "added",
            f"{_MIDDLE} sessions; a fifth replica comes at 75 s",
            _MIDDLE,
            (Event(75.0, "add", REPLICAS),),
        ),
    )
}

# So much KV that all sessions fit: turns come as fast as they can.
CROWDED: Final = Scenario(
    "crowded",
    "300 sessions at once before 8 replicas: what a router costs",
    300,
    replicas=8,
    replica=replace(REPLICA, kv_blocks=62_501),
)
"""Not raced unless it is asked for."""
