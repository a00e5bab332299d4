"""The soak: what counts as flat, and a short one on the real router."""

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.soak import ROUND_S, Look, Outcome, faults_of, memory, soak

MIB = 2**20
LOOKS = [Look(120.0 * number, 70 * MIB, 40, 2) for number in range(30)]
REST = Look(0.0, 60 * MIB, 20, 1)
GOOD = Outcome(LOOKS, REST, REST, {}, 1000, 3, [])


def growing(mib_in_all: float) -> list[Look]:
    return [
        look._replace(memory=look.memory + int(mib_in_all * MIB * n / 29)) for n, look in enumerate(LOOKS)
    ]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (GOOD, None),
        (replace(GOOD, looks=growing(5.0)), None),
        (replace(GOOD, looks=growing(20.0)), "memory grows"),
        # What the start takes is not growth.
        (replace(GOOD, looks=[LOOKS[0]._replace(memory=30 * MIB), *LOOKS[1:]]), None),
        (replace(GOOD, rested_after=REST._replace(files=21)), "open files: 20 before, 21 after"),
        (replace(GOOD, rested_after=REST._replace(tasks=2)), "tasks: 1 before, 2 after"),
        (replace(GOOD, left_over={"homing_replica_in_flight": 1.0}), "homing_replica_in_flight is 1 at rest"),
        (replace(GOOD, failures=["503: none is there"]), "1 turns failed: 503: none is there"),
        (replace(GOOD, turns=0), "no turn was answered"),
    ],
)
def test_what_is_not_flat_is_told(outcome: Outcome, said: str | None) -> None:
    faults = outcome.faults()
    assert len(faults) == (said is not None)
    assert all(fault.startswith(said or "") for fault in faults)


def test_memory_is_compared_late_with_early() -> None:
    early, late = memory(growing(29.0))
    assert early < late
    assert memory(LOOKS[:1]) == (70 * MIB, 70 * MIB)


def test_a_round_of_faults_leaves_every_replica_as_it_was() -> None:
    for number in range(8):
        at, what, who = zip(*faults_of(number), strict=True)
        assert list(at) == sorted(at)
        assert at[-1] < ROUND_S
        assert what == ("slow", "restore", "kill", "start")
        assert who[0] == who[1] != who[2] == who[3]


@pytest.mark.timeout(180)
async def test_a_short_soak_ends_with_nothing_left_over(tmp_path: Path) -> None:
    outcome = await soak(ROUND_S, 60.0, 1, tmp_path)
    assert outcome.turns > 50
    assert outcome.left_over == {}
    assert outcome.rested_after.files <= outcome.rested_before.files
    assert outcome.rested_after.tasks <= outcome.rested_before.tasks
    assert len(outcome.looks) == 5
